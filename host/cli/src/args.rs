//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand};
use counterfoil_domain::fair_share::{Share, WEIGHT_MAX};
use url::Url;

use crate::exit::{self, Exit, Failure};
use crate::output::{Column, Format, Output};
use crate::{
    approval, block, completion, connection, dev, doctor, event, key, migrate, receipt, run, schema, secret,
    serve, tenant, worker, workflow,
};

/// Runs durable work of sandboxed blocks, and keeps a receipt of every call that they make.
#[derive(Debug, Parser)]
#[command(
    name = "counterfoil",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = exit::CODES
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Global {
    /// How data is printed; it goes to the standard output, everything else to the standard error.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    // What the environment says is read below: read as an argument, it would be shown as one that every command needs.
    /// Where the API is, in place of `COUNTERFOIL_URL` [default: where `counterfoil dev` runs].
    #[arg(long, global = true, help_heading = "API")]
    url: Option<Url>,
    /// Key for the API, in place of `COUNTERFOIL_KEY` [default: the one that `counterfoil dev` made].
    #[arg(long, global = true, help_heading = "API")]
    key: Option<String>,
    /// Where the host keeps what is its own [default: ~/.local/share/counterfoil].
    #[arg(long, global = true, value_name = "DIR", help_heading = "Host")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration in TOML, in place of `COUNTERFOIL_CONFIG` [default: counterfoil.toml, where there is one].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Host")]
    config: Option<PathBuf>,
}

impl Global {
    /// Where the API is, if the command line or the environment says so.
    ///
    /// # Errors
    /// A [`Failure`] for what is in the environment and is no URL.
    pub(crate) fn url(&self) -> Result<Option<Url>, Failure> {
        const VARIABLE: &str = "COUNTERFOIL_URL";
        if self.url.is_some() {
            return Ok(self.url.clone());
        }
        let parse = |text: OsString| {
            let text = text.to_string_lossy();
            text.parse().map_err(|error| {
                Failure::new(Exit::Usage, format!("{VARIABLE} = {text:?} is no URL: {error}"))
            })
        };
        variable(VARIABLE).map(parse).transpose()
    }

    /// The key for the API, likewise.
    pub(crate) fn key(&self) -> Option<String> {
        let given = || variable("COUNTERFOIL_KEY").map(|key| key.to_string_lossy().into_owned());
        self.key.clone().or_else(given)
    }

    /// The file of the configuration, likewise.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| variable("COUNTERFOIL_CONFIG").map(PathBuf::from))
    }
}

/// What the environment says; nothing if that is empty, as a variable is that a script has cleared.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Which part of a list.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Page {
    /// How many at most, up to 200.
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on where the last part ended.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl Page {
    /// As much as there may be on one.
    pub(crate) const FIRST: Self = Self { limit: Some(200), after: None };

    /// The same, as the API reads it.
    pub(crate) fn query(self) -> [(&'static str, Option<String>); 2] {
        [("limit", self.limit.map(|limit| limit.to_string())), ("after", self.after)]
    }
}

/// What to change of how much of a host's room somebody may have; nothing shows it.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ShareChange {
    /// How much of the room, beside the others that have work due: 1 to 1000, and 1 where nobody has set another.
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Steps in flight at most on each host; `none` for as many as there is room for.
    #[arg(long, value_name = "N")]
    in_flight_max: Option<Own>,
}

/// A limit of somebody's own, or that there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own(pub(crate) Option<u64>);

impl FromStr for Own {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "none" => Ok(Self(None)),
            Ok(limit) if limit > 0 => Ok(Self(Some(limit))),
            _ => Err("a whole number from 1 on, or `none`"),
        }
    }
}

/// A share, as it is shown.
pub(crate) const SHARE: &[Column] =
    &[Column::plain("weight", "/weight"), Column::plain("in flight max", "/in_flight_max").or("none")];

impl ShareChange {
    /// Whether nothing is to be changed.
    pub(crate) const fn is_empty(self) -> bool {
        self.weight.is_none() && self.in_flight_max.is_none()
    }

    /// What `share` becomes. What is not named stays.
    ///
    /// # Errors
    /// A [`Failure`] for what no host would take.
    pub(crate) fn of(self, share: Share) -> Result<Share, Failure> {
        let weight = self.weight.unwrap_or(share.weight);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(Failure::new(Exit::Usage, format!("a weight is from 1 to {WEIGHT_MAX}")));
        }
        let in_flight_max = match self.in_flight_max {
            None => share.in_flight_max,
            Some(Own(most)) => most
                .map(i32::try_from)
                .transpose()
                .map_err(|_| Failure::new(Exit::Usage, "less than 2^31 may be in flight"))?
                .map(i32::cast_unsigned),
        };
        Ok(Share { weight, in_flight_max })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything in one process, with a tenant, a key and a database of its own.
    Dev(dev::Args),
    /// Run a host.
    Serve(serve::Args),
    /// Bring the database's tables up to this version.
    Migrate,
    /// Look at the configuration and the machine, and say everything that is wrong.
    Doctor,
    /// Create tenants, and say what their blocks may use, how much of a host each may have, and how long its runs are kept.
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Write, build and upload blocks.
    #[command(subcommand)]
    Block(block::Command),
    /// Check, save and activate workflows.
    #[command(subcommand)]
    Workflow(workflow::Command),
    /// Start runs, and see what became of them.
    #[command(subcommand)]
    Run(run::Command),
    /// See effects and their receipts, and settle what is unknown.
    #[command(subcommand)]
    Effect(receipt::Command),
    /// See what runs ask people, and decide.
    #[command(subcommand)]
    Approval(approval::Command),
    /// Fetch work from queues, and say what came of it.
    #[command(subcommand)]
    Worker(worker::Command),
    /// Send events.
    #[command(subcommand)]
    Event(event::Command),
    /// Manage connections to the systems that blocks call.
    #[command(subcommand)]
    Connection(connection::Command),
    /// Manage API keys.
    #[command(subcommand)]
    Key(key::Command),
    /// Manage the keys that secrets of connections are sealed with, on a host.
    #[command(subcommand)]
    Secret(secret::Command),
    /// Print the JSON Schemas that this version reads.
    #[command(subcommand)]
    Schema(schema::Command),
    /// Print a shell's completion script.
    Completion(completion::Args),
}

impl Cli {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        let Self { global, command } = self;
        let output = Output::new(global.output);
        match command {
            Command::Dev(args) => dev::run(args, &global, output).await,
            Command::Serve(args) => serve::run(args, &global, output).await,
            Command::Migrate => migrate::run(&global, output).await,
            Command::Doctor => doctor::run(&global, output).await,
            Command::Tenant(command) => tenant::run(command, &global, output).await,
            Command::Block(command) => block::run(command, &global, output).await,
            Command::Workflow(command) => workflow::run(command, &global, output).await,
            Command::Run(command) => run::run(command, &global, output).await,
            Command::Effect(command) => receipt::run(command, &global, output).await,
            Command::Approval(command) => approval::run(command, &global, output).await,
            Command::Worker(command) => worker::run(command, &global, output).await,
            Command::Event(command) => event::run(command, &global, output).await,
            Command::Connection(command) => connection::run(command, &global, output).await,
            Command::Key(command) => key::run(command, &global, output).await,
            Command::Secret(command) => secret::run(command, &global, output).await,
            Command::Schema(command) => schema::run(&command),
            Command::Completion(args) => completion::run(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
