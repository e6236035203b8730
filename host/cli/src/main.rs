//! One binary: the host, and the commands of authors and operators.

use std::process::ExitCode;

use clap::Parser as _;

mod api;
mod approval;
mod args;
mod block;
mod completion;
mod config;
mod connection;
mod data;
mod database;
mod dev;
mod doctor;
mod event;
mod excerpt;
mod exit;
mod faults;
mod input;
mod key;
mod migrate;
mod output;
mod progress;
mod receipt;
mod run;
mod schema;
mod secret;
mod serve;
mod telemetry;
mod tenant;
mod timeline;
mod wire;
mod worker;
mod workflow;

use counterfoil_store::cluster::reexec;

use crate::exit::Exit;

/// A host makes and drops many short-lived values in many tasks at once, which the system's allocator spends a fifth of the
/// host's time on.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == reexec::COMMAND => {
            return exit::report(&reexec::main(arguments).into()).into();
        }
        Some(first) => {
            if let Some(exit) = counterfoil_sandbox::child(&first, arguments) {
                return exit;
            }
        }
        None => {}
    }
    let cli = args::Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&error.into()).into(),
    };
    let exit = runtime.block_on(cli.run()).unwrap_or_else(|error| exit::report(&error));
    // A step that is still in flight belongs to whoever claims it next; nobody waits for it here.
    runtime.shutdown_background();
    exit.into()
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
