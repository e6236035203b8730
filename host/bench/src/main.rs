//! The benchmarks: what a step costs, and what it could cost at best on the same machine in the same minute.
//!
//! Each command prints what it finds as it goes, and one JSON object as its last line. Everything runs on this machine:
//! Postgres with fsync on, the provider and the host.

mod bare;
mod bars;
mod guard;
mod guests;
mod history;
mod killed;
mod latency;
mod limit;
mod load;
mod machine;
mod measure;
mod picture;
mod quiet;
mod stock;
mod tenants;
mod timers;
mod world;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
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
    /// Draws each curve into this directory.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Measures with ten million sleepers, and ten million steps of history, as well.
    #[arg(long)]
    large: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// What tells most, in a few minutes.
    Quick,
    /// Everything that is below, the blocks excepted.
    Full,
    /// What must hold on any machine, however busy; fails where it does not.
    Bars,
    /// Steps a second at saturation, of blocks and of `http` nodes.
    Throughput,
    /// From a submission to its first effect, one at a time.
    Latency,
    /// The same effect with and without its receipt.
    Guard,
    /// How late timers fire while others sleep.
    Timers,
    /// A tenant's single runs beside another tenant's burst.
    Quiet,
    /// Claims with ten thousand tenants.
    Tenants,
    /// What a step costs with ever more behind it.
    History,
    /// The host is killed in the middle of its work.
    Killed,
    /// Steps a second by how many may be in flight, and with guests in the host's own process.
    Shapes,
    /// A block in the host's process, in a runner, and in the runtime alone. Needs no database.
    Guests,
    /// What bombs cost a runtime without limits, each in a process of its own. Needs no database.
    Bombs,
}

impl Measurement {
    fn includes(self, one: Self) -> bool {
        use Measurement::{Full, Guard, Latency, Quick, Quiet, Throughput, Timers};
        self == one
            || (self == Full && one != Self::Bars)
            || (self == Quick && [Throughput, Latency, Guard, Timers, Quiet].contains(&one))
    }
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
    let binary = arguments.binary.clone().unwrap_or(beside);
    let world = World::new(binary, arguments.guests.clone()).await?;
    let machine = machine::describe();
    let mut found = match arguments.what {
        Measurement::Bars => bars::measure(&world).await?,
        _ => measured(&world, &arguments).await?,
    };
    found.insert("machine".into(), machine);
    if let Some(directory) = &arguments.pictures {
        picture::draw(&found, directory)?;
    }
    let missed = bars::missed(&found);
    told(found, arguments.json.as_deref())?;
    ensure!(arguments.what != Measurement::Bars || missed.is_empty(), "{}", missed.join("; "));
    Ok(())
}

async fn measured(world: &World, arguments: &Arguments) -> anyhow::Result<Map<String, Value>> {
    let Arguments { what, runs, large, .. } = *arguments;
    let is_full = what == Measurement::Full;
    let mut found = Map::new();
    if what.includes(Measurement::Latency) {
        found.extend(latency::measure(world).await?);
    }
    if what.includes(Measurement::Guard) {
        found.extend(guard::measure(world).await?);
    }
    if what.includes(Measurement::Throughput) {
        found.extend(throughput(world, runs).await?);
    }
    if what.includes(Measurement::Quiet) {
        found.extend(quiet::measure(world, if is_full { 100_000 } else { 8_000 }).await?);
    }
    if what.includes(Measurement::Killed) {
        found.extend(killed::measure(world).await?);
    }
    if what.includes(Measurement::Shapes) {
        found.extend(shapes(world, runs).await?);
    }
    if what.includes(Measurement::Tenants) {
        found.extend(tenants::measure(world).await?);
    }
    if what.includes(Measurement::History) {
        let sizes = [10_000, 100_000, 1_000_000, 10_000_000];
        found.extend(history::measure(world, if large { &sizes } else { &sizes[..3] }).await?);
    }
    // The last: what sleeps stays.
    if what.includes(Measurement::Timers) {
        let sleepers: &[i32] = match (what, large) {
            (Measurement::Quick, _) => &[100_000],
            (_, false) => &[0, 100_000, 1_000_000],
            (_, true) => &[0, 100_000, 1_000_000, 10_000_000],
        };
        found.extend(timers::measure(world, sleepers).await?);
    }
    Ok(found)
}

async fn throughput(world: &World, runs: usize) -> anyhow::Result<Map<String, Value>> {
    let limit = limit::steps_per_second(world).await?;
    println!("batched SQL limit: {limit:.0} steps/s");
    let blocks = load::steps_per_second(world, Shape::Blocks, runs).await?;
    let nodes = load::steps_per_second(world, Shape::HttpNodes, runs).await?;
    let mut found = Map::new();
    found.insert("sql_limit_steps_per_s".into(), json!(limit.round()));
    found.insert("steps_per_s".into(), json!(blocks.steps_per_s.round()));
    found.insert("http_steps_per_s".into(), json!(nodes.steps_per_s.round()));
    found.insert("ratio".into(), json!(measure::rounded(blocks.steps_per_s / limit)));
    found.insert("http_ratio".into(), json!(measure::rounded(nodes.steps_per_s / limit)));
    found.insert("flushes_per_step".into(), json!(measure::rounded(blocks.flushes_per_step)));
    found.insert("hot_ratio".into(), json!(measure::rounded(blocks.hot_ratio)));
    found.insert("cpu_seconds".into(), blocks.cpu);
    Ok(found)
}

/// Steps a second by how many may be in flight, and with guests in the host's own process.
async fn shapes(world: &World, runs: usize) -> anyhow::Result<Map<String, Value>> {
    let mut by_room = vec![];
    for in_flight in [16, 64, 256, 512, 1_024] {
        let most = [("COUNTERFOIL__ENGINE__IN_FLIGHT_MAX", &*in_flight.to_string())];
        let load = load::steps_per_second_with(world, Shape::Blocks, runs, &most).await?;
        by_room.push(json!({ "in_flight": in_flight, "steps_per_s": load.steps_per_s.round() }));
    }
    let alone = [("COUNTERFOIL__ENGINE__RUNNERS", "0")];
    let in_host = load::steps_per_second_with(world, Shape::Blocks, runs, &alone).await?;
    let in_runners = load::steps_per_second(world, Shape::Blocks, runs).await?;
    let mut found = Map::new();
    found.insert("throughput_by_in_flight".into(), Value::Array(by_room));
    found.insert("steps_per_s_in_runners".into(), json!(in_runners.steps_per_s.round()));
    found.insert("steps_per_s_without_runners".into(), json!(in_host.steps_per_s.round()));
    Ok(found)
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
