//! Bombs, and what becomes of a host that is given them: each goes the way that every block goes, from its upload to the
//! end of its step, while another tenant works on the same host.

mod made;
mod neighbour;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use counterfoil_domain::code::Code;
use serde_json::{Value, json};

pub use self::made::{ALL, Bomb, End};

use self::neighbour::{Latencies, Neighbour, Runs};

use crate::guest::Guest;
use crate::host::Caller;
use crate::stage::Stage;
use crate::watch::Watch;

/// A second of guest CPU, and four for a machine that does much else.
const STEP_MAX: Duration = Duration::from_secs(5);
/// Two attempts of the compiler, each with 20 s of CPU, at the pace of a busy machine, and then `describe`.
const UPLOAD_MAX: Duration = Duration::from_mins(2);
/// What the host's memory may be above its baseline once a bomb is over: its pool keeps what it has touched.
const MEMORY_KIB_SPARE: u64 = 96 << 10;
/// How long it may take to come down to that.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How long the host works before anything is measured, so that all that grows once has grown.
const WARM: Duration = Duration::from_secs(5);
/// Quiet after each bomb, in which the neighbour is measured too: whatever else the machine does meanwhile, it does in
/// both.
const QUIET: Duration = Duration::from_secs(2);
/// How much longer the neighbour's slow runs should take beside bombs.
const SLOWDOWN_MAX: f64 = 2.0;

/// What became of one bomb.
#[derive(Debug)]
pub struct Survived {
    /// Which.
    pub name: &'static str,
    bytes_len: usize,
    /// The code, or `succeeded`, of each run; of the upload, if it was refused.
    came_to: Vec<String>,
    upload: Duration,
    step: Option<Duration>,
    host_kib_peak: u64,
    child_kib_peak: u64,
    /// From its upload to the end of its last run.
    time: (Instant, Instant),
    /// What is wrong, if anything.
    pub faults: Vec<String>,
}

/// What became of all of them.
#[derive(Debug)]
pub struct Report {
    /// One each, in order.
    pub bombs: Vec<Survived>,
    host_kib: u64,
    host_kib_after: u64,
    neighbour: Runs,
}

/// Gives a host all bombs in whose names `name` is.
///
/// # Errors
/// The harness itself could not go on. What it finds is in the report.
pub async fn run(binary: PathBuf, name: &str) -> anyhow::Result<Report> {
    let bombs: Vec<&Bomb> = ALL.iter().filter(|bomb| bomb.name.contains(name)).collect();
    ensure!(!bombs.is_empty(), "no bomb's name has `{name}` in it");
    let stage = Stage::build(binary, &["bomber", "neighbour"]).await?;
    let report = stage.play(&bombs).await;
    stage.strike().await?;
    report
}

impl Stage {
    async fn play(&self, all: &[&'static Bomb]) -> anyhow::Result<Report> {
        // Made beforehand: that, too, takes the machine's time.
        let made: Vec<Vec<u8>> = all.iter().map(|bomb| (bomb.build)()).collect();
        let [bomber, neighbour] = &self.keys[..] else { bail!("two tenants") };
        let bomber = self.host.as_holder_of(bomber);
        let neighbour = Neighbour::settle(self.host.base(), neighbour).await?;
        upload(bomber, "warm", Guest::echo().build()).await?;
        neighbour.work_for(WARM).await?;
        let host_kib = Watch::new(self.host.pid()?)?.host_kib()?;

        let working = neighbour.work();
        let mut bombs = vec![];
        for (bomb, bytes) in all.iter().zip(made) {
            let name = format!("bomb-{}", bombs.len());
            let survived = self.one(bomber, &name, bomb, bytes, host_kib).await;
            bombs.push(survived.with_context(|| bomb.name)?);
            tokio::time::sleep(QUIET).await;
        }
        let neighbour = working.stop().await?;
        let host_kib_after = Watch::new(self.host.pid()?)?.host_kib()?;
        Ok(Report { bombs, host_kib, host_kib_after, neighbour })
    }

    async fn one(
        &self,
        bomber: Caller<'_>,
        name: &str,
        bomb: &Bomb,
        bytes: Vec<u8>,
        host_kib: u64,
    ) -> anyhow::Result<Survived> {
        let bytes_len = bytes.len();
        let watch = Watch::start(self.host.pid()?)?;
        let begun = Instant::now();
        let refused = upload(bomber, name, bytes).await?;
        let upload = begun.elapsed();
        let (mut came_to, mut steps) = (vec![], vec![]);
        match refused {
            Some(code) => came_to.push(Came { code, text: String::new(), is_upload: true }),
            None => {
                for input in bomb.inputs {
                    let begun = Instant::now();
                    came_to.push(step(bomber, name, *input).await?);
                    steps.push(begun.elapsed());
                }
            }
        }
        let ended = Instant::now();
        let peaks = watch.stop().await?;
        let settled = settled(self.host.pid()?, host_kib + MEMORY_KIB_SPARE).await?;
        let mut faults = wrong_ends(bomb, &came_to);
        let step = steps.into_iter().max();
        for (is_late, what) in [
            (upload > UPLOAD_MAX, "its upload took too long"),
            (step.is_some_and(|step| step > STEP_MAX), "its step took too long"),
            (!settled, "the host's memory did not come down"),
            (peaks.children_left > 0, "a compiler of the host was left"),
        ] {
            if is_late {
                faults.push(what.into());
            }
        }
        Ok(Survived {
            name: bomb.name,
            bytes_len,
            came_to: came_to.into_iter().map(|came| came.code).collect(),
            upload,
            step,
            host_kib_peak: peaks.host_kib.saturating_sub(host_kib),
            child_kib_peak: peaks.child_kib,
            time: (begun, ended),
            faults,
        })
    }
}

/// What an upload or a run came to.
struct Came {
    code: String,
    text: String,
    is_upload: bool,
}

const SUCCEEDED: &str = "succeeded";

fn wrong_ends(bomb: &Bomb, came_to: &[Came]) -> Vec<String> {
    let is = |end: &End, came: &Came| match end {
        End::Refused(code) => came.is_upload && came.code == code.name(),
        End::Failed(code) => !came.is_upload && came.code == code.name(),
        End::Succeeded => !came.is_upload && came.code == SUCCEEDED,
    };
    let mut faults: Vec<String> = match came_to {
        [came] if bomb.ends.iter().any(|end| is(end, came)) => vec![],
        many if many.len() == bomb.ends.len()
            && bomb.ends.iter().zip(many).all(|(end, came)| is(end, came)) =>
        {
            vec![]
        }
        _ => vec![format!("it should come to {:?}", bomb.ends)],
    };
    for came in came_to {
        if came.text.len() > 8 << 10 {
            faults.push(format!("its error has {} bytes", came.text.len()));
        }
        if came.text.chars().any(|character| character.is_control() && character != '\n') {
            faults.push("its error has control characters".into());
        }
    }
    faults
}

/// The code that the upload is refused with, if it is.
async fn upload(caller: Caller<'_>, name: &str, bytes: Vec<u8>) -> anyhow::Result<Option<String>> {
    let reply = caller.upload(name, bytes).await?;
    let value = reply.json()?;
    if reply.status < 300 {
        let step = json!({ "only": { "block": name, "input": "=input" } });
        caller.activate(&json!({ "name": name, "steps": [step] })).await?;
        return Ok(None);
    }
    let code = value["code"].as_str().context("a refusal has a code")?;
    ensure!(Code::from_name(code).is_some(), "{value}");
    Ok(Some(code.into()))
}

async fn step(caller: Caller<'_>, name: &str, input: u64) -> anyhow::Result<Came> {
    let run = caller.run_to_end(name, &json!(input)).await?;
    let came = |code: &str, text: &Value| Came {
        code: code.into(),
        text: text.as_str().unwrap_or_default().into(),
        is_upload: false,
    };
    if run["state"] == "succeeded" {
        return Ok(came(SUCCEEDED, &Value::Null));
    }
    let error = &run["error"];
    Ok(came(error["code"].as_str().with_context(|| format!("{run} has a code"))?, &error["message"]))
}

/// Waits until the host has no more memory than this.
async fn settled(host: u32, kib_max: u64) -> anyhow::Result<bool> {
    let watch = Watch::new(host)?;
    let begun = Instant::now();
    while watch.host_kib()? > kib_max {
        if begun.elapsed() > SETTLE_MAX {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(true)
}

impl Report {
    /// Whether every bomb was survived.
    pub fn is_clean(&self) -> bool {
        self.survived() == self.bombs.len()
    }

    fn survived(&self) -> usize {
        self.bombs.iter().filter(|bomb| bomb.faults.is_empty()).count()
    }

    /// The neighbour's runs beside bombs, and between them.
    fn beside_and_quiet(&self) -> [Latencies; 2] {
        let is_beside =
            |begun: Instant| self.bombs.iter().any(|bomb| (bomb.time.0..bomb.time.1).contains(&begun));
        [self.neighbour.which(is_beside), self.neighbour.which(|begun| !is_beside(begun))]
    }

    /// The table, what the neighbour saw, and last how many were survived.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "| bomb | bytes | came to | upload | step | host's memory | compiler's memory | neighbour's p99 |\n\
             |---|---:|---|---:|---:|---:|---:|---:|\n",
        );
        for bomb in &self.bombs {
            let beside = self.neighbour.which(|begun| (bomb.time.0..bomb.time.1).contains(&begun));
            let step = bomb.step.map_or_else(|| "–".into(), |step| format!("{} ms", step.as_millis()));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} ms | {step} | +{} MiB | {} MiB | {:.0} ms |",
                bomb.name,
                bomb.bytes_len,
                bomb.came_to.join(", then "),
                bomb.upload.as_millis(),
                bomb.host_kib_peak >> 10,
                bomb.child_kib_peak >> 10,
                beside.p99().as_secs_f64() * 1_000.0,
            );
        }
        text.push('\n');
        for bomb in self.bombs.iter().filter(|bomb| !bomb.faults.is_empty()) {
            let _ = writeln!(text, "NOT SURVIVED: {}: {}", bomb.name, bomb.faults.join("; "));
        }
        let (before, after) = (self.host_kib >> 10, self.host_kib_after >> 10);
        let _ = writeln!(text, "memory of the host: {before} MiB before, {after} MiB after");
        let [beside, quiet] = self.beside_and_quiet();
        let slowdown = beside.p99().as_secs_f64() / quiet.p99().as_secs_f64();
        let _ = writeln!(text, "runs of a neighbour: beside bombs {beside}; between them {quiet}");
        let _ = writeln!(
            text,
            "its p99 took {slowdown:.2} times as long beside bombs (at most {SLOWDOWN_MAX} is right)"
        );
        let _ = write!(text, "{} bombs, {} survived", self.bombs.len(), self.survived());
        text
    }
}
