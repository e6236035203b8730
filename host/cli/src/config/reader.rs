//! Looks each setting up in its layers, and keeps what is wrong instead of stopping at it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use counterfoil_domain::wording;
use figment::Figment;
use figment::providers::{Env, Format as _, Serialized, Toml};
use figment::value::{Dict, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Flags;

/// Stands before every variable. The double underscore keeps apart what is a setting and what, like
/// `COUNTERFOIL_URL`, is not.
const VARIABLES: &str = "COUNTERFOIL__";
/// Read from the working directory where no other file is named.
const FILE: &str = "counterfoil.toml";

/// A setting's value, and where it is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// Its name, such as `server.listen`.
    pub(crate) key: &'static str,
    /// Its value; never a secret's.
    pub(crate) value: String,
    /// A flag, a variable, a file, or `default`.
    pub(crate) origin: String,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Where: the setting's name in the dress in which it was given.
    pub(crate) place: String,
    /// What, and how it should be.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// What settings are looked up in, the strongest first.
struct Layer {
    origin: Origin,
    values: Figment,
}

enum Origin {
    Flags(Vec<(&'static str, &'static str)>),
    Environment,
    File(PathBuf),
}

impl Origin {
    /// The setting `key` as it is written here.
    fn place(&self, key: &str) -> String {
        match self {
            Self::Flags(names) => {
                names.iter().find(|(name, _)| *name == key).map_or(key, |(_, flag)| flag).to_owned()
            }
            Self::Environment => format!("{VARIABLES}{}", key.replace('.', "__").to_uppercase()),
            Self::File(path) => format!("{key} in {}", path.display()),
        }
    }
}

pub(super) struct Reader {
    layers: Vec<Layer>,
    known: BTreeSet<&'static str>,
    settings: Vec<Setting>,
    findings: Vec<Finding>,
}

impl Reader {
    pub(super) fn new(flags: Flags) -> Self {
        let mut reader = Self { layers: vec![], known: BTreeSet::new(), settings: vec![], findings: vec![] };
        let names = flags.values.iter().map(|(key, flag, _)| (*key, *flag)).collect();
        let given = flags
            .values
            .iter()
            .fold(Figment::new(), |figment, (key, _, value)| figment.merge(Serialized::default(key, value)));
        reader.layers.push(Layer { origin: Origin::Flags(names), values: given });
        // Each stays the text that it is, until a setting says what it should be: a secret may look like a number.
        let variables = Env::prefixed(VARIABLES).split("__");
        let variables = variables.iter().fold(Figment::new(), |figment, (name, value)| {
            figment.merge(Serialized::default(name.as_str(), value))
        });
        reader.layers.push(Layer { origin: Origin::Environment, values: variables });
        match flags.file {
            Some(path) => reader.read_file(path),
            None if Path::new(FILE).is_file() => reader.read_file(FILE.into()),
            None => {}
        }
        reader
    }

    fn read_file(&mut self, path: PathBuf) {
        let values = Figment::from(Toml::file_exact(&path));
        match values.extract::<Dict>() {
            Ok(_) => self.layers.push(Layer { origin: Origin::File(path), values }),
            Err(error) => {
                let finding = Finding { place: path.display().to_string(), message: error.kind.to_string() };
                self.findings.push(finding);
            }
        }
    }

    /// The value of `key`, or `default`, which is also what stands for a value that cannot be read.
    pub(super) fn value<T: DeserializeOwned + fmt::Display>(&mut self, key: &'static str, default: T) -> T {
        let found = self.look_up(key);
        let (value, origin) = found.unwrap_or_else(|| (default, "default".to_owned()));
        self.settings.push(Setting { key, value: value.to_string(), origin });
        value
    }

    /// The value of `key`, if it is given.
    pub(super) fn optional<T: DeserializeOwned>(
        &mut self,
        key: &'static str,
        shown: impl FnOnce(&T) -> String,
        otherwise: &str,
    ) -> Option<T> {
        let (value, origin) = self.look_up::<T>(key).unzip();
        let text = value.as_ref().map_or_else(|| otherwise.to_owned(), shown);
        self.settings.push(Setting { key, value: text, origin: origin.unwrap_or_else(|| "default".into()) });
        value
    }

    /// Says that a value was taken from elsewhere.
    pub(super) fn note(&mut self, key: &'static str, value: impl Into<String>, origin: impl Into<String>) {
        self.known.insert(key);
        self.settings.push(Setting { key, value: value.into(), origin: origin.into() });
    }

    /// Keeps what is wrong with the value of `key`, where `is_right` does not hold.
    pub(super) fn check(&mut self, key: &'static str, is_right: bool, message: impl FnOnce() -> String) {
        if is_right {
            return;
        }
        let place = self.layers.iter().find(|layer| layer.values.contains(key));
        let place = place.map_or_else(|| Origin::Environment.place(key), |layer| layer.origin.place(key));
        self.findings.push(Finding { place, message: message() });
    }

    /// Keeps what is wrong at a place that is no setting's.
    pub(super) fn fault(&mut self, place: &str, message: String) {
        self.findings.push(Finding { place: place.to_owned(), message });
    }

    fn look_up<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<(T, String)> {
        self.known.insert(key);
        let layer = self.layers.iter().find(|layer| layer.values.contains(key))?;
        let place = layer.origin.place(key);
        match layer.values.extract_inner_lossy(key) {
            Ok(value) => Some((value, place)),
            Err(error) => {
                self.findings.push(Finding { place, message: wording::told(&error.kind.to_string()) });
                None
            }
        }
    }

    /// All that was read, and all that is wrong; names that are nobody's too.
    pub(super) fn finish(mut self) -> (Vec<Setting>, Vec<Finding>) {
        for layer in &self.layers {
            let mut given = vec![];
            if let Ok(values) = layer.values.extract::<Dict>() {
                names("", &values, &mut given);
            }
            let unknown = given.iter().filter(|key| !self.known.contains(key.as_str()));
            self.findings.extend(
                unknown.map(|key| Finding {
                    place: layer.origin.place(key),
                    message: nearest(key, &self.known),
                }),
            );
        }
        self.settings.sort_by_key(|setting| setting.key);
        (self.settings, self.findings)
    }
}

/// The names of all values, tables joined by dots.
fn names(prefix: &str, values: &Dict, into: &mut Vec<String>) {
    for (name, value) in values {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Dict(_, inner) => names(&key, inner, into),
            _ => into.push(key),
        }
    }
}

fn nearest(key: &str, known: &BTreeSet<&'static str>) -> String {
    let shared = |candidate: &str| candidate.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
    match known.iter().max_by_key(|candidate| shared(candidate)).filter(|candidate| shared(candidate) > 0) {
        Some(candidate) => format!("there is no such setting; did you mean {candidate}?"),
        None => "there is no such setting".into(),
    }
}
