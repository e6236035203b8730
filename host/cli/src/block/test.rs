//! `counterfoil block test`: a block's scenarios, played with the component that a host would run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anstyle::AnsiColor;
use anyhow::Context as _;
use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::limits::{CPU_TICK_MS, StepLimits};
use counterfoil_domain::ports::ComponentInspector as _;
use counterfoil_domain::rehearsal::scenario::{Mismatch, Scenario};
use counterfoil_domain::schema::Schema;
use serde_json::{Value, json};

use self::play::{Played, Player, Stand};
use super::{component, local};
use crate::args::Global;
use crate::config::{Flags, Purpose, Read};
use crate::excerpt::{excerpt, from_one};
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output::Output;
use crate::progress::Progress;

mod play;

/// Where a block's scenarios are, beside its manifest or its component.
const SCENARIOS: &str = "scenarios";

/// What to play.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The crate's directory, which is built first, or the component's file.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// The manifest that goes with the component, of a program without an SDK.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// A scenario, or a directory of them [default: `scenarios` beside the crate's manifest, or the component].
    #[arg(long, value_name = "PATH")]
    scenarios: Vec<PathBuf>,
    /// Grant less memory than a host does.
    #[arg(long, value_name = "N")]
    memory_mib: Option<u64>,
    /// Grant less CPU than a host does; it is counted in tens of milliseconds.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(CPU_TICK_MS..))]
    cpu_ms: Option<u64>,
    /// Grant less time than a host does.
    #[arg(long, value_name = "MS")]
    wall_ms: Option<u64>,
}

impl Args {
    /// What the block is granted: no more than by a host, and no more than it wants.
    fn limits(&self, wanted: WantedLimits) -> StepLimits {
        let flags = WantedLimits {
            memory_bytes_max: self.memory_mib.map(|mib| mib.saturating_mul(1 << 20)),
            cpu_ms_max: self.cpu_ms,
            wall_ms_max: self.wall_ms,
        };
        wanted.narrow(flags.narrow(StepLimits::DEFAULT))
    }

    /// Where the scenarios are.
    fn places(&self) -> Vec<PathBuf> {
        if !self.scenarios.is_empty() {
            return self.scenarios.clone();
        }
        let beside = if self.path.is_dir() { Some(&*self.path) } else { self.path.parent() };
        vec![beside.unwrap_or(Path::new("")).join(SCENARIOS)]
    }
}

/// A scenario that can be played.
struct Script {
    file: PathBuf,
    text: String,
    scenario: Scenario,
}

impl Script {
    fn name(&self) -> String {
        let stem = || self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.scenario.name().map_or_else(stem, Into::into)
    }
}

pub(super) async fn run(args: Args, global: &Global, output: Output) -> anyhow::Result<Exit> {
    let scenarios = read(&args.places())?;
    let data = Read::new(Flags::of(global), Purpose::Command).into_config()?.data;
    let bytes = component(&args.path, args.manifest.as_deref())?.bytes;
    let progress = Progress::new("checking and compiling the component");
    let stand = Arc::new(Stand::default());
    data.create()?;
    let sandbox = local::sandbox(data.blocks_dir(), Arc::clone(&stand) as _)?;
    let inspection = sandbox.inspect(bytes).await;
    let inspection = inspection.map_err(|refused| local::refusal(&refused, args.manifest.as_deref()).1)?;
    let descriptor = inspection.descriptor;
    let limits = args.limits(descriptor.limits);
    let takes = Schema::new(&descriptor.input)?;
    let player = Player { runner: &sandbox, stand, component: inspection.digest, limits, takes };
    let mut results = vec![];
    for script in scenarios {
        progress.say(format!("playing {}", script.name()));
        let rehearsal = script.scenario.rehearsal(descriptor.effects.clone());
        let came = player.play(&script.scenario, rehearsal).await;
        results.push((script, came));
    }
    drop(progress);
    let failed = results.iter().filter(|(_, played)| !is_passed(played)).count();
    let record = json!({
        "block": descriptor.name,
        "digest": inspection.digest,
        "limits": limits,
        "failed": failed,
        "scenarios": results.iter().map(|(script, played)| record(script, played)).collect::<Vec<_>>(),
    });
    output.show(&record, || {
        results.iter().map(|(script, played)| shown(script, played)).collect::<Vec<_>>().join("\n")
    })?;
    let reruns: usize = results.iter().map(|(_, played)| played.reruns).sum();
    anstream::eprintln!(
        "{} of {} scenarios hold; the block was run again from {reruns} beginnings of their journals",
        results.len() - failed,
        results.len(),
    );
    Ok(if failed == 0 { Exit::Ok } else { Exit::Error })
}

/// Reads every scenario; the error says what is wrong with all of them.
fn read(places: &[PathBuf]) -> anyhow::Result<Vec<Script>> {
    let mut files = vec![];
    for place in places {
        if place.is_dir() {
            let mut found = vec![];
            for entry in place.read_dir().with_context(|| format!("cannot read {}", place.display()))? {
                let path = entry?.path();
                let ends = ["yaml", "yml", "json"];
                if path.extension().is_some_and(|end| ends.iter().any(|known| end == *known)) {
                    found.push(path);
                }
            }
            found.sort();
            files.extend(found);
        } else if place.exists() {
            files.push(place.clone());
        }
    }
    if files.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(Failure::new(Exit::Error, format!("there is no scenario in {}", places.join(", ")))
            .details([
                "write one, as docs/block-author.md says, or name another place with --scenarios".into()
            ])
            .into());
    }
    let (mut scripts, mut problems) = (vec![], vec![]);
    for file in files {
        let text = input::read_file(&file)?;
        match Scenario::read(&text) {
            Ok(scenario) => scripts.push(Script { file, text, scenario }),
            Err(problem) => {
                let at = (from_one(problem.line), from_one(problem.column));
                problems.push(excerpt(&file, &text, at, &problem.message));
            }
        }
    }
    if problems.is_empty() {
        return Ok(scripts);
    }
    let count = problems.len();
    let what = if count == 1 {
        "a scenario cannot be read".into()
    } else {
        format!("{count} scenarios cannot be read")
    };
    Err(Failure::new(Exit::Usage, what).details(problems).into())
}

fn is_passed(played: &Played) -> bool {
    played.mismatches.is_empty() && played.differences.is_empty()
}

fn record(script: &Script, played: &Played) -> Value {
    let Played { mismatches, differences, reruns, refusals, logs, cpu_ms, memory_bytes_peak } = played;
    json!({
        "name": script.name(),
        "file": script.file,
        "passed": is_passed(played),
        "mismatches": mismatches,
        "differences": differences,
        "reruns": reruns,
        "cpu_ms": cpu_ms,
        "memory_bytes_peak": memory_bytes_peak,
        "refusals": refusals,
        "logs": logs,
    })
}

fn shown(script: &Script, played: &Played) -> String {
    let (green, red) = (AnsiColor::Green.on_default(), AnsiColor::Red.on_default());
    if is_passed(played) {
        return format!("{green}ok{green:#}      {}", script.name());
    }
    let mut lines = vec![format!("{red}FAILED{red:#}  {}", script.name())];
    for Mismatch { line, column, expected, found, .. } in &played.mismatches {
        let at = (from_one(*line), from_one(*column));
        lines.push(excerpt(&script.file, &script.text, at, "it came otherwise").trim_end().to_owned());
        lines.push(format!("  expected  {expected}\n  found     {found}"));
    }
    lines.extend(played.differences.iter().cloned());
    lines.extend(played.refusals.iter().map(|refusal| format!("  was told  {refusal}")));
    lines.extend(played.logs.iter().map(|line| format!("  logged    {}", line.message)));
    lines.join("\n").replace('\n', "\n        ")
}
