//! What it costs to run a block, beside the runtime alone: in the host's process, and in runners.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use async_trait::async_trait;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, HttpResponse};
use counterfoil_domain::id::{Digest, LeaseId, LineageId, Place};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{ComponentInspector as _, EffectPort, StepEnd, StepJob, StepRunner as _};
use counterfoil_sandbox::{Allocation, Budget, Guests, Program, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};

use crate::bare::{self, CHARGED};
use crate::machine;
use crate::measure::{Samples, number, rounded};

/// Executions of one sample, and samples of each form, taken in turns.
const BATCH: usize = 500;
const ROUNDS: usize = 15;
/// Steps at once, where there are several.
const AT_ONCE: usize = 64;
/// Executions over which memory must not grow.
const CYCLES: usize = 100_000;
/// Executions after which it has what it needs.
const WARM_CYCLES: usize = 10_000;
/// Steps that wait for their answers at once, over two runners.
const WAITING: usize = 10_000;
const CHARGE: &str = r#"{"order":"o-1","cents":500}"#;

/// Answers at once, or never.
struct Port {
    answers: bool,
    asked: AtomicUsize,
}

#[async_trait]
impl EffectPort for Port {
    async fn perform(&self, _execution: LeaseId, _call: EffectCall) -> EffectReply {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if !self.answers {
            std::future::pending::<()>().await;
        }
        EffectReply::Answered(Answer::Http(HttpResponse {
            status: 201,
            headers: Vec::new(),
            body: CHARGED.into(),
            truncated: false,
        }))
    }
}

/// A sandbox, and what its guests ask.
struct House {
    sandbox: Arc<Sandbox>,
    port: Arc<Port>,
    _cache: tempfile::TempDir,
}

impl House {
    fn new(guests: Guests, slots: usize, answers: bool) -> anyhow::Result<Self> {
        let cache = tempfile::tempdir()?;
        let port = Arc::new(Port { answers, asked: AtomicUsize::new(0) });
        let config = SandboxConfig {
            cache_dir: cache.path().into(),
            cache_bytes_max: u64::MAX,
            allocation: Allocation::Pooled,
            slots: u32::try_from(slots)?,
            limits: StepLimits { wall_ms_max: 600_000, ..StepLimits::DEFAULT },
            guests,
            program: Program::this()?,
            compile_budget: Budget::DEFAULT,
            heard_on: None,
        };
        let sandbox = Arc::new(Sandbox::new(config, Arc::clone(&port) as _)?);
        Ok(Self { sandbox, port, _cache: cache })
    }

    async fn ready(&self, component: &[u8]) -> anyhow::Result<Digest> {
        let digest = Digest::of(component);
        self.sandbox.prepare(digest, component.to_vec()).await?;
        Ok(digest)
    }

    /// Runs so many steps, `at_once` of them side by side, and says how long all took.
    async fn run(&self, component: Digest, steps: usize, at_once: usize) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        if at_once == 1 {
            for _ in 0..steps {
                check(self.sandbox.run(job(component)).await.end)?;
            }
            return Ok(begun.elapsed());
        }
        let permits = Arc::new(Semaphore::new(at_once));
        let mut running = JoinSet::new();
        for _ in 0..steps {
            let permit = Arc::clone(&permits).acquire_owned().await?;
            let sandbox = Arc::clone(&self.sandbox);
            running.spawn(async move {
                let end = sandbox.run(job(component)).await.end;
                drop(permit);
                check(end)
            });
            while let Some(ended) = running.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(begun.elapsed())
    }
}

fn check(end: StepEnd) -> anyhow::Result<()> {
    match end {
        StepEnd::Output(_) => Ok(()),
        end => Err(anyhow!("a block did not succeed: {end:?}")),
    }
}

fn job(component: Digest) -> StepJob {
    StepJob {
        execution: LeaseId(Uuid::now_v7()),
        component,
        input: CHARGE.into(),
        place: Place { lineage: LineageId(Uuid::nil()), node: "charge".into(), iteration: Vec::new() },
        started_at_ms: 0,
        seed: [0; 32],
        limits: StepLimits { wall_ms_max: 600_000, ..StepLimits::DEFAULT },
        losses: 0,
    }
}

/// The runtime as its own documentation starts it, with a pool.
struct Bare {
    engine: Engine,
    block: bare::BlockPre<bare::Host>,
}

impl Bare {
    fn new(component: &[u8]) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        let pool = PoolingAllocationConfig::default();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config)?;
        let component = Component::new(&engine, component)?;
        let mut linker = Linker::new(&engine);
        bare::Block::add_to_linker::<_, HasSelf<_>>(&mut linker, |host| host)?;
        Ok(Self { block: bare::BlockPre::new(linker.instantiate_pre(&component)?)?, engine })
    }

    fn run(&self, steps: usize) -> wasmtime::Result<Duration> {
        let begun = Instant::now();
        for _ in 0..steps {
            let mut store = Store::new(&self.engine, bare::Host);
            let block = self.block.instantiate(&mut store)?;
            let output = block.counterfoil_block_step().call_run(&mut store, CHARGE)?;
            wasmtime::ensure!(output.is_ok(), "the block failed without a host");
        }
        Ok(begun.elapsed())
    }
}

pub(crate) async fn measure(guests: &Path) -> anyhow::Result<Map<String, Value>> {
    let file = guests.join("charge-card.wasm");
    let component = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut found = Map::new();
    found.extend(overhead(&component).await?);
    found.extend(scaling(&component).await?);
    found.extend(memory(&component).await?);
    found.extend(waiting(&component).await?);
    found.extend(uploading(&component).await?);
    Ok(found)
}

fn apart(runners: u32) -> anyhow::Result<Guests> {
    Ok(Guests::Apart(NonZeroU32::new(runners).context("some")?))
}

/// One step after the other: the runtime alone, this process, a runner.
async fn overhead(component: &[u8]) -> anyhow::Result<Map<String, Value>> {
    let bare = Bare::new(component).map_err(|error| anyhow!("{error:#}"))?;
    let [here, runner] = [House::new(Guests::Here, 4, true)?, House::new(apart(1)?, 4, true)?];
    let digest = here.ready(component).await?;
    runner.ready(component).await?;
    let [mut alone, mut inside, mut outside] = [(); 3].map(|()| Samples::default());
    for round in 0..=ROUNDS {
        let taken = [
            bare.run(BATCH).map_err(|error| anyhow!("{error:#}"))?,
            here.run(digest, BATCH, 1).await?,
            runner.run(digest, BATCH, 1).await?,
        ];
        // The first is to warm them.
        if round > 0 {
            for (samples, taken) in [&mut alone, &mut inside, &mut outside].into_iter().zip(taken) {
                samples.add(taken);
            }
        }
    }
    let us = |samples: &Samples| rounded(samples.quantile_ms(0.5) * 1_000.0 / number(BATCH));
    let (alone, inside, outside) = (us(&alone), us(&inside), us(&outside));
    println!("instantiate, run, drop: bare {alone} µs, in the host {inside} µs, in a runner {outside} µs");
    Ok(Map::from_iter([
        ("bare_us".into(), json!(alone)),
        ("here_us".into(), json!(inside)),
        ("runner_us".into(), json!(outside)),
        ("over_bare".into(), json!(rounded(inside / alone))),
    ]))
}

/// Many at once: what one runner does in a second, and what two do.
async fn scaling(component: &[u8]) -> anyhow::Result<Map<String, Value>> {
    // Half a millisecond or so of computing.
    let busy = "(local $left i32) (local.set $left (i32.const 1000000))
        (loop $again (local.set $left (i32.sub (local.get $left) (i32.const 1))) (br_if $again (local.get $left)))
        (call $ok (local.get $input) (local.get $len))";
    let busy = Guest::running(busy).build();
    let mut found = Map::new();
    for (name, component) in [("empty", component), ("busy", &busy)] {
        let houses = [House::new(apart(1)?, AT_ONCE, true)?, House::new(apart(2)?, AT_ONCE, true)?];
        let mut rates = [Samples::default(), Samples::default()];
        for round in 0..=ROUNDS {
            for (house, samples) in houses.iter().zip(&mut rates) {
                let digest = house.ready(component).await?;
                let taken = house.run(digest, 2 * BATCH, AT_ONCE).await?;
                if round > 0 {
                    samples.add(taken);
                }
            }
        }
        let rate = |samples: &Samples| 2_000.0 * number(BATCH) / samples.quantile_ms(0.5);
        let [one, two] = rates.each_ref().map(rate);
        println!("{name} blocks: {one:.0} a second in one runner, {two:.0} in two");
        found.insert(format!("{name}_per_s_one"), json!(one.round()));
        found.insert(format!("{name}_per_s_two"), json!(two.round()));
        found.insert(format!("{name}_two_over_one"), json!(rounded(two / one)));
    }
    Ok(found)
}

async fn memory(component: &[u8]) -> anyhow::Result<Map<String, Value>> {
    let house = House::new(apart(2)?, AT_ONCE, true)?;
    let digest = house.ready(component).await?;
    house.run(digest, WARM_CYCLES, AT_ONCE).await?;
    let before = machine::resident_kib();
    house.run(digest, CYCLES, AT_ONCE).await?;
    let after = machine::resident_kib();
    println!(
        "memory of host and runners: {before} KiB after {WARM_CYCLES} steps, {after} KiB after {CYCLES} more"
    );
    Ok(Map::from_iter([
        ("warm_kib".into(), json!(before)),
        ("after_cycles_kib".into(), json!(after)),
        ("cycles".into(), json!(CYCLES)),
    ]))
}

async fn waiting(component: &[u8]) -> anyhow::Result<Map<String, Value>> {
    let house = House::new(apart(2)?, WAITING, false)?;
    let digest = house.ready(component).await?;
    let mut running = JoinSet::new();
    let run = |running: &mut JoinSet<StepEnd>| {
        let sandbox = Arc::clone(&house.sandbox);
        running.spawn(async move { sandbox.run(job(digest)).await.end });
    };
    for _ in 0..2 {
        run(&mut running);
    }
    until_asked(&house, &mut running, 2).await?;
    let before = machine::resident_kib();
    for _ in 2..WAITING {
        run(&mut running);
    }
    until_asked(&house, &mut running, WAITING).await?;
    let each = rounded((number(machine::resident_kib()) - number(before)) / number(WAITING - 2));
    println!("{WAITING} steps wait for their answers: {each} KiB each, host and runners");
    Ok(Map::from_iter([("waiting".into(), json!(WAITING)), ("waiting_kib_each".into(), json!(each))]))
}

async fn until_asked(house: &House, running: &mut JoinSet<StepEnd>, asked: usize) -> anyhow::Result<()> {
    while house.port.asked.load(Ordering::Relaxed) < asked {
        if let Some(ended) = running.try_join_next() {
            return Err(anyhow!("a step does not wait: {:?}", ended?));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// From a component's bytes to a block that can be run, with the processes that it takes.
async fn uploading(component: &[u8]) -> anyhow::Result<Map<String, Value>> {
    const UPLOADS: usize = 10;
    let this = std::process::id();
    let cpu = || machine::cpu_seconds(this, true).context("the system does not tell CPU times");
    let mut wall = Samples::default();
    let before = cpu()?;
    for _ in 0..UPLOADS {
        let house = House::new(apart(1)?, 1, true)?;
        let begun = Instant::now();
        house.sandbox.inspect(component.to_vec()).await?;
        wall.add(begun.elapsed());
    }
    let each = rounded((cpu()? - before) / number(UPLOADS));
    let ms = wall.quantile_ms(0.5);
    println!("upload to runnable: {each} s of CPU, {ms} ms");
    Ok(Map::from_iter([("upload_cpu_s".into(), json!(each)), ("upload_ms".into(), json!(ms))]))
}
