//! Values on the command line: as they are, from a file (`@FILE`), or from the standard input (`-`).

use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context as _;
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
        serde_json::from_str(&text).map_err(|error| {
            Failure::new(Exit::Usage, format!("{name} is not JSON: {error}"))
                .details((text.len() <= 200).then(|| text.trim_end().to_owned()))
                .into()
        })
    }
}

/// Reads a file of text.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
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
}
