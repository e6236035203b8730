//! Kills hosts while they work, and shows that nothing was sent twice, nothing was lost, and whatever is unknown can be
//! explained. `scripts/kill` builds what it needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use counterfoil_store::cluster::reexec;
use counterfoil_testkit::kill::{self, Options, Report, guards};
use counterfoil_testkit::{asks_for_help, seed_of_now};

const USAGE: &str = "usage: scripts/kill [--kills N] [--seed S] [--hosts H] [--json FILE] \
                     [--guard-off NAME]… | --guards-off";

/// The rest is in the JSON file.
const VIOLATIONS_SHOWN: usize = 40;

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

/// What was asked for.
struct Asked {
    options: Options,
    json: Option<PathBuf>,
    /// Every guard off, one at a time, instead of an ordinary run.
    guards_off: bool,
}

fn run(args: Vec<OsString>) -> anyhow::Result<bool> {
    if asks_for_help(&args) {
        say(USAGE);
        return Ok(true);
    }
    let asked = read(args)?;
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let seed = asked.options.seed;
    let (json, is_right) = if asked.guards_off {
        let judged =
            runtime.block_on(guards::run_all(&asked.options)).with_context(|| format!("seed {seed}"))?;
        say(&guards::table(&judged));
        (serde_json::to_string_pretty(&judged)?, judged.iter().all(|judged| judged.is_right))
    } else {
        let report = runtime.block_on(kill::run(&asked.options)).with_context(|| format!("seed {seed}"))?;
        say(&told(&report));
        (serde_json::to_string_pretty(&report)?, report.is_clean())
    };
    if let Some(file) = asked.json {
        std::fs::write(&file, json).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(is_right)
}

#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
fn say(text: &str) {
    println!("{text}");
}

fn told(report: &Report) -> String {
    let mut lines = vec![report.table()];
    lines.extend(
        report.violations.iter().take(VIOLATIONS_SHOWN).map(|violation| format!("VIOLATED: {violation}")),
    );
    lines.extend(report.traces.iter().map(|trace| format!("HELD BY: {trace}")));
    if !report.is_clean() {
        lines.push(format!("again: {}", report.replay));
    }
    lines.push(report.last_line());
    lines.join("\n")
}

fn read(args: Vec<OsString>) -> anyhow::Result<Asked> {
    let target = |name: &str| {
        let named =
            std::env::var_os(name).with_context(|| format!("{name} names nothing: start scripts/kill"));
        named.map(PathBuf::from)
    };
    let (binary, blocks) = (target("COUNTERFOIL")?, target("COUNTERFOIL_GUESTS")?);
    let options = Options::new(binary, blocks, 200, seed_of_now());
    let mut asked = Asked { options, json: None, guards_off: false };
    let mut args = args.into_iter();
    while let Some(name) = args.next() {
        if name == "--guards-off" {
            asked.guards_off = true;
            continue;
        }
        let value = args.next().with_context(|| USAGE)?;
        let text = value.to_str().with_context(|| USAGE)?;
        let number = || text.parse::<u64>().with_context(|| format!("{} takes a number", name.display()));
        match name.to_str() {
            Some("--kills") => asked.options.kills = number()?,
            Some("--seed") => asked.options.seed = number()?,
            Some("--hosts") => asked.options.hosts = usize::try_from(number()?)?,
            Some("--json") => asked.json = Some(value.into()),
            Some("--guard-off") => {
                asked.options.guards.0.push(text.parse().map_err(|error: String| anyhow::anyhow!(error))?);
            }
            _ => bail!(USAGE),
        }
    }
    ensure!(asked.options.kills > 0 && asked.options.hosts > 0, USAGE);
    Ok(asked)
}
