//! Gives bombs to a host, and shows that it, and whoever else works on it, survives them. `scripts/bombs` builds what it
//! needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use counterfoil_store::cluster::reexec;
use counterfoil_testkit::{asks_for_help, bombs};

const USAGE: &str = "usage: scripts/bombs [PART OF A NAME]";

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = if args.first().is_some_and(|arg| arg == reexec::COMMAND) {
        Err(reexec::main(args.drain(1..)).into())
    } else {
        run(&args)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
fn run(args: &[OsString]) -> anyhow::Result<bool> {
    if asks_for_help(args) {
        println!("{USAGE}");
        return Ok(true);
    }
    let name = match args {
        [] => "",
        [name] => name.to_str().context(USAGE)?,
        _ => bail!(USAGE),
    };
    let binary = std::env::var_os("COUNTERFOIL").map(PathBuf::from);
    let binary = binary.context("COUNTERFOIL names no program: start scripts/bombs")?;
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let report = runtime.block_on(bombs::run(binary, name))?;
    println!("{}", report.text());
    Ok(report.is_clean())
}
