//! Gives a host components that nobody wrote, and shows that it stays whole. `scripts/fuzz` builds what it needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use counterfoil_store::cluster::reexec;
use counterfoil_testkit::fuzz::{self, Options};
use counterfoil_testkit::{asks_for_help, seed_of_now};

const USAGE: &str = "usage: scripts/fuzz [--seconds N] [--seed S] [--case NUMBER [--out FILE]]";
const SECONDS: u64 = 120;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = if args.first().is_some_and(|arg| arg == reexec::COMMAND) {
        Err(reexec::main(args.drain(1..)).into())
    } else {
        run(args)
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
fn run(args: Vec<OsString>) -> anyhow::Result<bool> {
    if asks_for_help(&args) {
        println!("{USAGE}");
        return Ok(true);
    }
    let (options, out) = read(args)?;
    if let Some(file) = out {
        let component = fuzz::component(&options).context("--out is for one --case")?;
        std::fs::write(&file, component).with_context(|| format!("writing {}", file.display()))?;
    }
    let seed = options.seed;
    eprintln!("seed {seed}");
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let report = runtime.block_on(fuzz::run(options)).with_context(|| format!("seed {seed}"))?;
    println!("{}", report.text());
    Ok(report.faults.is_empty())
}

fn read(args: Vec<OsString>) -> anyhow::Result<(Options, Option<PathBuf>)> {
    let target = |name: &str| {
        let named =
            std::env::var_os(name).with_context(|| format!("{name} names nothing: start scripts/fuzz"));
        named.map(PathBuf::from)
    };
    let mut options = Options {
        binary: target("COUNTERFOIL")?,
        blocks: target("COUNTERFOIL_GUESTS")?,
        seed: seed_of_now(),
        time: Duration::from_secs(SECONDS),
        case: None,
    };
    let mut out = None;
    let mut args = args.into_iter();
    while let Some(name) = args.next() {
        let value = args.next().context(USAGE)?;
        if name == "--out" {
            out = Some(value.into());
            continue;
        }
        let text = value.to_str().context(USAGE)?;
        let number: u64 = text.parse().with_context(|| format!("{} takes a number", name.display()))?;
        match name.to_str() {
            Some("--seconds") => options.time = Duration::from_secs(number),
            Some("--seed") => options.seed = number,
            Some("--case") => options.case = Some(number),
            _ => bail!(USAGE),
        }
    }
    Ok((options, out))
}
