//! Values on the command line: as they are, from a file (`@FILE`), or from the standard input (`-`).

use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context as _;
use secrecy::SecretString;
use serde_json::Value;

use crate::exit::{Exit, Failure};

/// A text that is given or named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Text {
    Given(String),
    File(String),
    Stdin,
}

impl FromStr for Text {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(path.to_owned()),
            None if text == "-" => Self::Stdin,
            None => Self::Given(text.to_owned()),
        })
    }
}

impl Text {
    /// The text, and what to call it in an error.
    fn read(&self) -> anyhow::Result<(String, &str)> {
        Ok(match self {
            Self::Given(text) => (text.clone(), "the argument"),
            Self::File(path) => (read_file(Path::new(path))?, path),
            Self::Stdin => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
                (text, "the standard input")
            }
        })
    }

    /// The text as it is.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        self.read().map(|(text, _)| text)
    }

    /// The JSON that it is.
    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        let (text, name) = self.read()?;
        parse(&text, name)
    }

    /// The JSON that it is; `None` if it is blank.
    pub(crate) fn json_unless_blank(&self) -> anyhow::Result<Option<Value>> {
        let (text, name) = self.read()?;
        if text.trim().is_empty() { Ok(None) } else { parse(&text, name).map(Some) }
    }
}

/// Reads JSON; an error says what it is called and where it breaks off.
pub(crate) fn parse(text: &str, name: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).map_err(|error| {
        Failure::new(Exit::Usage, format!("{name} is not JSON: {error}"))
            .details((text.len() <= 200).then(|| text.trim_end().to_owned()))
            .into()
    })
}

/// A secret, and where it is read from: what stands on the command line, every user of the machine can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretSource {
    /// What the API calls it.
    pub(crate) name: String,
    from: From,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    File(String),
    Variable(String),
    Stdin,
}

impl FromStr for SecretSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = text.split_once('=').ok_or("write NAME=@FILE, NAME=env:VARIABLE or NAME=-")?;
        let from = if let Some(path) = source.strip_prefix('@') {
            From::File(path.to_owned())
        } else if let Some(variable) = source.strip_prefix("env:") {
            From::Variable(variable.to_owned())
        } else if source == "-" {
            From::Stdin
        } else {
            return Err(
                "a secret is not given on the command line, where every user of this machine can read it: \
                        write NAME=@FILE, NAME=env:VARIABLE or NAME=-"
                    .into(),
            );
        };
        Ok(Self { name: name.to_owned(), from })
    }
}

impl SecretSource {
    /// The secret, without the end of its line.
    pub(crate) fn read(&self) -> anyhow::Result<SecretString> {
        let text = match &self.from {
            From::File(path) => read_file(Path::new(path))?,
            From::Variable(name) => {
                std::env::var(name).with_context(|| format!("cannot read the variable {name}"))?
            }
            From::Stdin => Text::Stdin.text()?,
        };
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(line.strip_suffix('\r').unwrap_or(line).into())
    }
}

/// Reads a file of text.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_given_or_named() -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "{\"a\": 1}\n")?;
        for (text, expected) in [
            ("{\"a\": [1, null]}".to_owned(), json!({ "a": [1, null] })),
            ("\"@\"".to_owned(), json!("@")),
            (format!("@{}", file.path().display()), json!({ "a": 1 })),
        ] {
            let Ok(value) = text.parse::<Text>();
            assert_eq!(value.json()?, expected, "{text}");
        }
        let Ok(broken) = "{".parse::<Text>();
        let error = broken.json().expect_err("it breaks off").to_string();
        assert_eq!(error, "the argument is not JSON: EOF while parsing an object at line 1 column 1");
        Ok(())
    }

    #[test]
    fn a_secret_is_read_from_where_only_its_owner_looks() -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "Bearer a=b\r\n")?;
        let source: SecretSource =
            format!("header:authorization=@{}", file.path().display()).parse().map_err(anyhow::Error::msg)?;
        assert_eq!(source.name, "header:authorization");
        assert_eq!(source.read()?.expose_secret(), "Bearer a=b");
        let variable: SecretSource = "password=env:PATH".parse().map_err(anyhow::Error::msg)?;
        assert_eq!(variable.read()?.expose_secret(), std::env::var("PATH")?);
        for text in ["password", "password=canary", "password="] {
            let refused = text.parse::<SecretSource>().expect_err(text);
            assert!(refused.contains("NAME=@FILE") && !refused.contains("canary"), "{refused}");
        }
        Ok(())
    }
}
