//! The benchmarks: what a step costs, and what it could cost at best on the same machine in the same minute.
//!
//! Each command prints what it finds as it goes, and one JSON object as its last line. Everything runs on this machine:
//! Postgres with fsync on, the provider and the host.

mod bare;
mod guard;
mod guests;
mod latency;
mod limit;
mod load;
mod machine;
mod measure;
mod stock;
mod world;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use counterfoil_store::cluster::reexec;
use serde_json::{Map, Value, json};

use crate::load::Shape;
use crate::world::World;

#[derive(Debug, Parser)]
#[command(name = "counterfoil-bench", about = "Measures this machine, with everything on it")]
struct Arguments {
    /// What to measure.
    #[arg(value_enum, default_value_t = Measurement::Quick)]
    what: Measurement,
    /// The host to measure; the one beside this program if absent.
    #[arg(long, env = "COUNTERFOIL")]
    binary: Option<PathBuf>,
    /// The example blocks, built by scripts/guests.
    #[arg(long, env = "COUNTERFOIL_GUESTS")]
    guests: PathBuf,
    /// Runs of three steps in the throughput measurement.
    #[arg(long, default_value_t = 2_000)]
    runs: usize,
    /// Writes the JSON object here as well.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// All of them, in a few minutes.
    Quick,
    /// Steps a second at saturation, of blocks and of `http` nodes.
    Throughput,
    /// From a submission to its first effect, one at a time.
    Latency,
    /// The same effect with and without its receipt.
    Guard,
    /// A block in the host's process, in a runner, and in the runtime alone. Needs no database.
    Guests,
    /// What bombs cost a runtime without limits, each in a process of its own. Needs no database.
    Bombs,
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, others)) = args.split_first()
        && let Some(exit) = counterfoil_sandbox::child(first, others.iter().cloned())
    {
        return exit;
    }
    if let Some((_, others)) = args.split_first().filter(|(first, _)| *first == stock::COMMAND) {
        return stock::child(others);
    }
    let result = if args.first().is_some_and(|arg| arg == reexec::COMMAND) {
        Err(reexec::main(args.drain(1..)).into())
    } else {
        tokio::runtime::Runtime::new()
            .context("starting the runtime")
            .and_then(|runtime| runtime.block_on(run(Arguments::parse())))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if matches!(arguments.what, Measurement::Guests | Measurement::Bombs) {
        let mut found = match arguments.what {
            Measurement::Bombs => stock::measure().await?,
            _ => guests::measure(&arguments.guests).await?,
        };
        found.insert("machine".into(), machine::describe());
        return told(found, arguments.json.as_deref());
    }
    let beside = std::env::current_exe()?.with_file_name("counterfoil");
    let world = World::new(arguments.binary.unwrap_or(beside), arguments.guests).await?;
    let what = arguments.what;
    let measures = |one| what == one || what == Measurement::Quick;
    let mut found = Map::new();
    found.insert("machine".into(), machine::describe());
    if measures(Measurement::Latency) {
        found.extend(latency::measure(&world).await?);
    }
    if measures(Measurement::Guard) {
        found.extend(guard::measure(&world).await?);
    }
    if measures(Measurement::Throughput) {
        let limit = limit::steps_per_second(&world).await?;
        println!("batched SQL limit: {limit:.0} steps/s");
        let blocks = load::steps_per_second(&world, Shape::Blocks, arguments.runs).await?;
        let nodes = load::steps_per_second(&world, Shape::HttpNodes, arguments.runs).await?;
        found.insert("sql_limit_steps_per_s".into(), json!(limit.round()));
        found.insert("steps_per_s".into(), json!(blocks.steps_per_s.round()));
        found.insert("http_steps_per_s".into(), json!(nodes.steps_per_s.round()));
        found.insert("ratio".into(), json!(measure::rounded(blocks.steps_per_s / limit)));
        found.insert("flushes_per_step".into(), json!(measure::rounded(blocks.flushes_per_step)));
        found.insert("hot_ratio".into(), json!(measure::rounded(blocks.hot_ratio)));
        found.insert("cpu_seconds".into(), blocks.cpu);
    }
    told(found, arguments.json.as_deref())
}

/// The last line, and the file if one is asked for.
fn told(mut found: Map<String, Value>, file: Option<&Path>) -> anyhow::Result<()> {
    found.insert("load_after".into(), json!(machine::load()));
    let line = Value::Object(found).to_string();
    if let Some(path) = file {
        std::fs::write(path, &line).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{line}");
    Ok(())
}
