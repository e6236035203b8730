//! Steps a second at saturation: runs of three steps, each one POST to the provider.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use counterfoil_domain::id::RunId;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::{Value, json};

use crate::latency::LOOK_EVERY;
use crate::machine;
use crate::measure::{number, rounded};
use crate::world::{LEASE_MS, World};

/// Steps under way at once: enough that a commit never has to wait for company.
const IN_FLIGHT: u32 = 512;
const STEPS_PER_RUN: usize = 3;
/// As many events as one request may carry.
const EVENTS_PER_REQUEST: usize = 100;
/// Between two looks at whether all is done: well below what is measured.
const DONE_EVERY: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_mins(5);

/// What makes the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A block in its sandbox.
    Blocks,
    /// The workflow's own `http` node.
    HttpNodes,
}

/// What the load came to.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) steps_per_s: f64,
    pub(crate) flushes_per_step: f64,
    pub(crate) hot_ratio: f64,
    /// CPU seconds of each part, by name.
    pub(crate) cpu: Value,
}

/// Admits `runs` runs at once, and times until the last of them has ended.
pub(crate) async fn steps_per_second(world: &World, shape: Shape, runs: usize) -> anyhow::Result<Load> {
    steps_per_second_with(world, shape, runs, &[]).await
}

/// The same, of a host with these settings.
pub(crate) async fn steps_per_second_with(
    world: &World,
    shape: Shape,
    runs: usize,
    settings: &[(&str, &str)],
) -> anyhow::Result<Load> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    let host = world.host_with(&provider, IN_FLIGHT, LEASE_MS, settings).await?;
    let workflow = furnish(world, &host, shape, STEPS_PER_RUN).await?;
    submit(world, &host, &workflow, IN_FLIGHT as usize).await.context("warming up")?;
    // As autovacuum does within a minute: what was planned for empty tables is planned again.
    sqlx::query("VACUUM ANALYZE").execute(world.pool()).await?;
    let (warm_up, flushes, updates) =
        (provider.calls().len(), flushes_so_far(world).await?, hot_updates(world).await?);
    let pids = (host.pid()?, world.postgres()?);
    let used = || {
        let (host, postgres) = (machine::cpu_seconds(pids.0, true), machine::cpu_seconds(pids.1, true));
        [host, postgres, machine::cpu_seconds(std::process::id(), false)]
    };
    let before = used();
    let begun = Instant::now();
    submit(world, &host, &workflow, runs).await?;
    let took = begun.elapsed().as_secs_f64();
    let after = used();
    let steps = number(runs * STEPS_PER_RUN);
    let calls = provider.calls().len() - warm_up;
    ensure!(calls == runs * STEPS_PER_RUN, "{calls} calls for {steps} steps");
    let flushes = number(usize::try_from(flushes_so_far(world).await? - flushes)?);
    let since = hot_updates(world).await?;
    let [host_s, postgres_s, provider_s] = std::array::from_fn(|n| Some(rounded(after[n]? - before[n]?)));
    let cpu = json!({
        "host_and_runners": host_s, "postgres": postgres_s, "provider_and_bench": provider_s, "wall": rounded(took),
    });
    host.kill().await?;
    let load = Load {
        steps_per_s: steps / took,
        flushes_per_step: flushes / steps,
        hot_ratio: number(usize::try_from(since.1 - updates.1)?)
            / number(usize::try_from(since.0 - updates.0)?.max(1)),
        cpu,
    };
    println!(
        "{shape:?}: {:.0} steps/s, {:.3} flushes a step, {:.3} of the updates HOT, CPU {}",
        load.steps_per_s, load.flushes_per_step, load.hot_ratio, load.cpu
    );
    Ok(load)
}

/// Sets up a workflow of this many calls in a row, and returns its name.
pub(crate) async fn furnish(
    world: &World,
    host: &Host,
    shape: Shape,
    steps: usize,
) -> anyhow::Result<String> {
    let name = format!("bench-{}-{steps}", if shape == Shape::Blocks { "block" } else { "http" });
    if shape == Shape::Blocks {
        host.push_block("charge-card", &world.guest("charge-card")?).await?;
    }
    let steps: Vec<Value> = (0..steps)
        .map(|n| {
            let node = match shape {
                Shape::Blocks => json!({ "block": "charge-card", "input": "=input" }),
                Shape::HttpNodes => json!({
                    "http": { "connection": "payments", "method": "POST", "url": "/charges", "body": "=input" },
                }),
            };
            json!({ format!("call{n}"): node })
        })
        .collect();
    let trigger = json!({ "event": name, "dedup": "every_time" });
    host.activate(&json!({ "name": name, "triggers": [trigger], "steps": steps })).await?;
    Ok(name)
}

/// Starts runs by the event that is called like their workflow, and waits until all of them have ended.
pub(crate) async fn submit(world: &World, host: &Host, workflow: &str, runs: usize) -> anyhow::Result<()> {
    let data = json!({ "order": "o-1", "cents": 500 });
    let events = (0..runs).map(|_| json!({ "type": workflow, "data": data })).collect();
    record(host, events).await?;
    wait_until_done(world, host).await
}

/// Records events, as many to a request as it may carry.
pub(crate) async fn record(host: &Host, events: Vec<Value>) -> anyhow::Result<()> {
    for events in events.chunks(EVENTS_PER_REQUEST) {
        host.call("POST", "/v1/events", &Value::Array(events.to_vec())).await?;
    }
    Ok(())
}

/// Waits until every event has been admitted, and every run has ended.
pub(crate) async fn wait_until_done(world: &World, host: &Host) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        // One row of each is enough to know: to count them would be a load of its own.
        let is_done: bool = sqlx::query_scalar(
            "SELECT NOT EXISTS (SELECT FROM events WHERE pending) AND NOT EXISTS (SELECT FROM open_runs)",
        )
        .fetch_one(world.pool())
        .await?;
        if is_done {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "runs have not ended:\n{}", host.log());
        tokio::time::sleep(DONE_EVERY).await;
    }
}

/// Waits until a run has ended, and ended well.
pub(crate) async fn wait_for_end(world: &World, run: &str) -> anyhow::Result<()> {
    let id: RunId = run.parse().map_err(|error| anyhow::anyhow!("{run}: {error}"))?;
    let begun = Instant::now();
    loop {
        let state: String = sqlx::query_scalar("SELECT state FROM runs WHERE id = $1")
            .bind(id.0)
            .fetch_one(world.pool())
            .await?;
        match state.as_str() {
            "succeeded" => return Ok(()),
            "open" => ensure!(begun.elapsed() < PATIENCE, "{run} does not end"),
            state => anyhow::bail!("{run} {state}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Times that the server waited for the disk with its log, since it started.
pub(crate) async fn flushes_so_far(world: &World) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar("SELECT wal_sync FROM pg_stat_wal").fetch_one(world.pool()).await?)
}

/// Updates of receipts, and those of them that touched no index.
async fn hot_updates(world: &World) -> anyhow::Result<(i64, i64)> {
    let row =
        sqlx::query_as("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'receipts'");
    Ok(row.fetch_one(world.pool()).await?)
}
