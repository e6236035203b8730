//! What an operator decides: flags over the environment over a TOML file over defaults.
//!
//! Everything is read, and every finding is told, before a port is bound. A setting is one name in three dresses: the
//! flag `--listen`, the variable `COUNTERFOIL__SERVER__LISTEN`, and `listen` in the table `[server]` of the file.

mod address;
mod reader;
mod retention;
mod settings;

use std::path::PathBuf;

use serde_json::Value;

use crate::args::Global;
use crate::exit::{Exit, Failure};

pub(crate) use self::address::without_password;
pub(crate) use self::reader::{Finding, Setting};
pub(crate) use self::retention::{DAYS, RetentionConfig};
pub(crate) use self::settings::{
    DataConfig, DatabaseConfig, EffectsConfig, EngineConfig, LimitsConfig, LogConfig, LogFormat,
    SecretsConfig, ServerConfig,
};

use self::reader::Reader;

/// What the configuration is read for; some defaults, and what must be there, follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A host for one developer on this machine.
    Development,
    /// A host for others, or what only one that has its secrets may do.
    Service,
    /// A command that is no host.
    Command,
}

/// All of it.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) data: DataConfig,
    pub(crate) database: DatabaseConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) effects: EffectsConfig,
    pub(crate) limits: LimitsConfig,
    pub(crate) retention: RetentionConfig,
    pub(crate) log: LogConfig,
    pub(crate) secrets: SecretsConfig,
}

/// A configuration as it was read: usable only if nothing was found.
pub(crate) struct Read {
    config: Config,
    /// Each setting, and where its value is from.
    pub(crate) settings: Vec<Setting>,
    /// What is wrong.
    pub(crate) findings: Vec<Finding>,
}

/// What flags say; they are strongest.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    file: Option<PathBuf>,
    values: Vec<(&'static str, &'static str, Value)>,
}

impl Flags {
    /// The flags that every command has.
    pub(crate) fn of(global: &Global) -> Self {
        let mut flags = Self { file: global.config(), values: vec![] };
        flags.set("data.dir", "--data-dir", global.data_dir.as_ref().map(|dir| dir.display().to_string()));
        flags
    }

    /// One more setting that has a flag.
    pub(crate) fn set(&mut self, key: &'static str, flag: &'static str, value: Option<impl Into<Value>>) {
        self.values.extend(value.map(|value| (key, flag, value.into())));
    }
}

impl Read {
    /// Reads everything, and stops at nothing.
    pub(crate) fn new(flags: Flags, purpose: Purpose) -> Self {
        let mut reader = Reader::new(flags);
        let data = DataConfig::read(&mut reader);
        let config = Config {
            server: ServerConfig::read(&mut reader),
            database: DatabaseConfig::read(&mut reader),
            engine: EngineConfig::read(&mut reader),
            effects: EffectsConfig::read(&mut reader, purpose),
            limits: LimitsConfig::read(&mut reader),
            retention: RetentionConfig::read(&mut reader),
            log: LogConfig::read(&mut reader),
            secrets: SecretsConfig::read(&mut reader, &data, purpose),
            data,
        };
        let (settings, findings) = reader.finish();
        Self { config, settings, findings }
    }

    /// The configuration.
    ///
    /// # Errors
    /// A [`Failure`] that lists all findings.
    pub(crate) fn into_config(self) -> Result<Config, Failure> {
        if self.findings.is_empty() {
            return Ok(self.config);
        }
        let count = self.findings.len();
        let what = if count == 1 {
            "the configuration has a fault".into()
        } else {
            format!("the configuration has {count} faults")
        };
        Err(Failure::new(Exit::Usage, what)
            .details(self.findings.iter().map(Finding::to_string))
            .next("counterfoil doctor"))
    }

    /// The configuration, with defaults in place of what is wrong: for looking at the rest of the machine.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}
