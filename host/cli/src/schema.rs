//! `counterfoil schema`: what the files that an author writes may hold.

use clap::Subcommand;
use counterfoil_domain::workflow;

use crate::exit::Exit;
use crate::output;

/// Which file.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The schema of a workflow's definition, for editors and validators.
    Workflow,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Workflow => output::json(&workflow::schema())?,
    }
    Ok(Exit::Ok)
}
