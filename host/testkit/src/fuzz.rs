//! Components that nobody wrote, each sent the way that every block goes, from its upload to the end of its step, to a
//! host that must stay whole: no panic, no process lost, memory bounded, and one end for every run.

mod made;
mod outside;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use counterfoil_domain::code::Code;
use serde_json::{Value, json};
use sqlx::PgPool;

use self::made::Case;
use self::outside::Outside;
use crate::guest::Guest;
use crate::host::Caller;
use crate::provider::{Provider, ProviderConfig};
use crate::stage::Stage;
use crate::watch::{Peaks, Watch};

/// What host and runners may hold beyond what they held at the beginning. Two runners keep 2 MiB warm in each of their 130
/// places, and the machine code of blocks that they have run.
const MEMORY_KIB_SPARE: u64 = 1 << 20;
/// What a case may take: two attempts of the compiler, and a step that waits for its retries.
const CASE_MAX: Duration = Duration::from_mins(3);
/// What a host says of itself, or of a process of its own, when it is not whole.
const BROKEN: [&str; 3] = [" ERROR ", "panicked", "a runner has ended"];
/// So is a compiler that dies, but of what bounds it: its time of CPU, or the host's patience.
const COMPILER_DIED: &str = "the compiler ended without an answer";
const BOUNDED: [&str; 2] = ["signal: 24", "signal: 9"];
/// From so many runs on, some must have got an answer to a call, some one from a worker, and some blocks must have been asked
/// what became of their effects.
const RUNS_WITH_ANSWERS_MIN: usize = 500;
/// Those that the examples name.
const CONNECTIONS: [&str; 2] = ["payments", "crm"];
/// Lines of the host that are shown.
const LINES_SHOWN: usize = 20;

/// What to do.
#[derive(Debug)]
pub struct Options {
    /// The `counterfoil` program.
    pub binary: PathBuf,
    /// Where built example blocks lie.
    pub blocks: PathBuf,
    /// What all cases follow from.
    pub seed: u64,
    /// How long new cases are begun.
    pub time: Duration,
    /// This one alone.
    pub case: Option<u64>,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Report {
    seed: u64,
    /// Ends of cases, by family and code.
    ends: BTreeMap<(&'static str, String), usize>,
    cases: usize,
    runs: usize,
    /// Calls that took place.
    committed: usize,
    /// Work that was done.
    worked: usize,
    /// Tasks that workers took.
    tasks: usize,
    /// Effects of which a block said what became of them, and was believed.
    told: usize,
    /// Effects of which a block was asked and was not.
    asked_in_vain: usize,
    host_kib: (u64, u64),
    /// What is wrong, with the number of the case where there is one.
    pub faults: Vec<(Option<u64>, String)>,
}

/// The component of the one case that is asked for.
///
/// # Errors
/// None is asked for, or it cannot be made.
pub fn component(options: &Options) -> anyhow::Result<Vec<u8>> {
    let number = options.case.context("there is no case")?;
    Ok(made::case(options.seed, number, &made::originals(&options.blocks)?)?.bytes)
}

/// Tries cases until the time is over.
///
/// # Errors
/// The harness itself could not go on. What it finds is in the report.
pub async fn run(options: Options) -> anyhow::Result<Report> {
    let originals = made::originals(&options.blocks)?;
    let stage = Stage::build(options.binary, &["fuzzer", "other-fuzzer"]).await?;
    let host = &stage.host;
    // All that grows once has grown before anything is measured.
    for key in &stage.keys {
        warm(host.as_holder_of(key)).await?;
    }
    let provider = Provider::start(ProviderConfig::default()).await?;
    for key in &stage.keys {
        connect(host.as_holder_of(key), &provider).await?;
    }
    let watch = Watch::new(host.pid()?)?;
    let mut report = Report { seed: options.seed, ..Report::default() };
    report.host_kib.0 = watch.host_kib()?;
    let watching = Watch::start(host.pid()?)?;

    let next = AtomicU64::new(options.case.unwrap_or(0));
    let until = Instant::now() + options.time;
    let outside = Outside::default();
    let pool = PgPool::connect(&stage.database_url()).await?;
    let player = async |key: &String| -> (Vec<Tried>, Option<(Option<u64>, String)>) {
        let mut all = vec![];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_over = options.case.map_or(Instant::now() >= until, |only| only != number);
            if is_over {
                return (all, None);
            }
            let tried = async {
                let case = made::case(options.seed, number, &originals)?;
                attempt(host.as_holder_of(key), &outside, number, case).await
            };
            match tried.await {
                Ok(tried) => all.push(tried),
                // The host may be gone, and the case of the other tenant may be why.
                Err(error) => return (all, Some((Some(number), format!("{error:#}")))),
            }
        }
    };
    let [one, other] = &stage.keys[..] else { anyhow::bail!("two tenants") };
    let (one, other) = tokio::select! {
        tried = async { tokio::join!(player(one), player(other)) } => tried,
        _ = async {
            let worker = |key| outside.work(host.as_holder_of(key), &pool);
            tokio::join!(worker(one), worker(other))
        } => anyhow::bail!("workers work until the end"),
    };
    report.faults.extend(outside.said().into_iter().map(|fault| (None, fault)));
    for (tried, broken_off) in [one, other] {
        for tried in tried {
            report.take(tried);
        }
        report.faults.extend(broken_off);
    }
    let log = host.log();
    if !report.faults.is_empty() && watch.host_kib().is_err() {
        let last = log.lines().rev().take(LINES_SHOWN);
        report.faults.extend(last.map(|line| (None, format!("the host said last: {line}"))));
    } else {
        report.judge(watching.stop().await?, &log);
        report.faults.extend(unended(&pool, report.runs + stage.keys.len()).await?);
        report.reach(&pool, &outside).await?;
    }
    pool.close().await;
    drop(provider);
    stage.strike().await?;
    Ok(report)
}

/// What is charged, is charged once and answered at once.
async fn connect(caller: Caller<'_>, provider: &Provider) -> anyhow::Result<()> {
    for connection in CONNECTIONS {
        let base = json!({ "base_url": provider.url() });
        caller.call("PUT", &format!("/v1/connections/{connection}"), &base).await?;
    }
    Ok(())
}

async fn warm(caller: Caller<'_>) -> anyhow::Result<()> {
    const NAME: &str = "warm";
    let reply = caller.upload(NAME, Guest::echo().build()).await?;
    ensure!(reply.status < 300, "{}", reply.json()?);
    let run = start(caller, NAME, &json!(1)).await?;
    caller.wait_for_run(&run).await.map(drop)
}

async fn start(caller: Caller<'_>, name: &str, input: &Value) -> anyhow::Result<String> {
    let step = json!({ "only": { "block": name, "input": "=input", "retry": { "attempts": 1 } } });
    caller.activate(&json!({ "name": name, "steps": [step] })).await?;
    caller.start_run(name, input).await
}

/// What a case came to.
struct Tried {
    number: u64,
    family: &'static str,
    /// The code of a refusal or failure, or `succeeded`.
    came_to: String,
    has_run: bool,
    fault: Option<String>,
}

async fn attempt(caller: Caller<'_>, outside: &Outside, number: u64, case: Case) -> anyhow::Result<Tried> {
    let Case { family, bytes, input } = case;
    let name = format!("fuzz-{number}");
    let begun = Instant::now();
    let told = async {
        let reply = caller.upload(&name, bytes).await?;
        if reply.status >= 300 {
            let refusal = reply.json()?;
            let code = refusal["code"].as_str().unwrap_or_default().to_owned();
            let fault = (reply.status >= 500 || Code::from_name(&code).is_none())
                .then(|| format!("its upload is answered {}: {refusal}", reply.status));
            return Ok(Tried { number, family, came_to: code, has_run: false, fault });
        }
        let run = start(caller, &name, &input).await?;
        let run = outside.see_to_its_end(caller, &run, CASE_MAX).await?;
        let code = run["error"]["code"].as_str().unwrap_or_default();
        let (came_to, is_right) = match run["state"].as_str() {
            Some("succeeded") => ("succeeded", true),
            Some("failed") => (code, Code::from_name(code).is_some_and(|code| code != Code::HostLost)),
            _ => (code, false),
        };
        let fault = (!is_right).then(|| format!("its run came to {run}"));
        Ok(Tried { number, family, came_to: came_to.into(), has_run: true, fault })
    };
    let told: anyhow::Result<Tried> = told.await;
    let mut tried = told.with_context(|| format!("case {number}, {family}"))?;
    if begun.elapsed() > CASE_MAX {
        tried.fault.get_or_insert_with(|| format!("it took {} s", begun.elapsed().as_secs()));
    }
    Ok(tried)
}

/// Runs that have not exactly one end, and steps without one.
async fn unended(pool: &PgPool, runs: usize) -> anyhow::Result<Vec<(Option<u64>, String)>> {
    let ends: Vec<(String, i64)> = sqlx::query_as(
        "SELECT r.state, count(s.id) FROM runs r
         LEFT JOIN settled_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id
         GROUP BY r.tenant_id, r.id, r.state",
    )
    .fetch_all(pool)
    .await?;
    let (open, unsent): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM open_steps),
                (SELECT count(*) FROM receipts WHERE state IN ('planned', 'prepared', 'dispatched', 'unknown'))",
    )
    .fetch_one(pool)
    .await?;
    let mut faults = vec![];
    let wrong = ends.iter().filter(|(state, settled)| state == "open" || *settled != 1).count();
    for (count, what) in [
        (ends.len().abs_diff(runs), "runs more or fewer than were started"),
        (wrong, "runs without exactly one end"),
        (usize::try_from(open)?, "steps are open still"),
        (usize::try_from(unsent)?, "receipts have no outcome"),
    ] {
        if count > 0 {
            faults.push((None, format!("{count} {what}")));
        }
    }
    Ok(faults)
}

impl Report {
    /// How far the cases came, and whether all of it was reached.
    async fn reach(&mut self, pool: &PgPool, outside: &Outside) -> anyhow::Result<()> {
        let (committed, worked, told): (i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM receipts WHERE state = 'committed' AND kind = 'http'),
                    (SELECT count(*) FROM receipts WHERE state = 'committed' AND kind = 'worker'),
                    (SELECT count(*) FROM receipt_history WHERE actor = 'verifier')",
        )
        .fetch_one(pool)
        .await?;
        self.committed = usize::try_from(committed)?;
        self.worked = usize::try_from(worked)?;
        self.told = usize::try_from(told)?;
        (self.tasks, self.asked_in_vain) = outside.counts();
        for (count, what) in [
            (self.committed, "no case made a call that was answered"),
            (self.worked, "no case handed over work that was done"),
            (self.told + self.asked_in_vain, "no block was asked what became of an effect"),
        ] {
            if self.runs >= RUNS_WITH_ANSWERS_MIN && count == 0 {
                self.faults.push((None, what.into()));
            }
        }
        Ok(())
    }

    /// What the machine and the host say of the whole time.
    fn judge(&mut self, peaks: Peaks, log: &str) {
        self.host_kib.1 = peaks.host_kib;
        if peaks.host_kib > self.host_kib.0 + MEMORY_KIB_SPARE {
            self.faults.push((None, format!("host and runners held {} MiB", peaks.host_kib >> 10)));
        }
        if peaks.children_left > 0 {
            self.faults.push((None, format!("{} compilers were left", peaks.children_left)));
        }
        let has = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
        let unwell = log
            .lines()
            .filter(|line| has(line, &BROKEN) || line.contains(COMPILER_DIED) && !has(line, &BOUNDED));
        self.faults.extend(unwell.take(LINES_SHOWN).map(|line| (None, format!("the host says: {line}"))));
    }

    fn take(&mut self, tried: Tried) {
        self.cases += 1;
        self.runs += usize::from(tried.has_run);
        *self.ends.entry((tried.family, tried.came_to)).or_default() += 1;
        self.faults.extend(tried.fault.map(|fault| (Some(tried.number), fault)));
    }

    /// What each family came to, what is wrong, and last how many cases there were.
    pub fn text(&self) -> String {
        let mut text = String::from("| family | came to | cases |\n|---|---|---:|\n");
        for ((family, came_to), count) in &self.ends {
            let _ = writeln!(text, "| {family} | {came_to} | {count} |");
        }
        let (before, most) = self.host_kib;
        let _ = writeln!(
            text,
            "\nworkers took {} tasks, and {} were done; blocks said of {} effects what became of them, and were asked of {} in vain",
            self.tasks, self.worked, self.told, self.asked_in_vain,
        );
        let _ = writeln!(text, "host and runners: {} MiB before, {} MiB at most", before >> 10, most >> 10);
        for (number, fault) in &self.faults {
            let which = number.map(|number| format!("case {number}: ")).unwrap_or_default();
            let _ = writeln!(text, "BROKEN: {which}{fault}");
            if let Some(number) = number {
                let _ = writeln!(text, "again: scripts/fuzz --seed {} --case {number}", self.seed);
            }
        }
        let _ = write!(
            text,
            "{} cases, {} runs, {} calls answered, {} faults, seed {}",
            self.cases,
            self.runs,
            self.committed,
            self.faults.len(),
            self.seed
        );
        text
    }
}
