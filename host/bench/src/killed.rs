//! The common workload with the host killed in the middle, and what the provider saw of it.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::ensure;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::{Map, Value, json};

use crate::load::{self, Shape};
use crate::world::World;

const RUNS: usize = 1_000;
const STEPS_PER_RUN: usize = 3;
const IN_FLIGHT: u32 = 256;
/// Short, so that the dead host's work is taken over soon.
const LEASE_MS: u64 = 2_000;

pub(crate) async fn measure(world: &World) -> anyhow::Result<Map<String, Value>> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    let host = world.host_with(&provider, IN_FLIGHT, LEASE_MS, &[]).await?;
    let workflow = load::furnish(world, &host, Shape::Blocks, STEPS_PER_RUN).await?;
    load::submit(world, &host, &workflow, 10).await?;
    let warm_up = provider.calls_count();
    let event = json!({ "type": workflow, "data": { "order": "o-1", "cents": 500 } });
    load::record(&host, vec![event; RUNS]).await?;
    provider.wait_for_calls(warm_up + RUNS * STEPS_PER_RUN / 2).await?;
    host.kill().await?;
    let at_kill = provider.calls_count();
    let next = world.host_with(&provider, IN_FLIGHT, LEASE_MS, &[]).await?;
    // What was sent and not answered is a person's turn; everything else goes on.
    let blocked = loop {
        let (open, blocked): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM open_runs) + (SELECT count(*) FROM events WHERE pending),
                 (SELECT count(*) FROM open_steps WHERE wait = 'blocked')",
        )
        .fetch_one(world.pool())
        .await?;
        if open == blocked {
            break blocked;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let calls = provider.calls().split_off(warm_up);
    let mut by_key: HashMap<&str, usize> = HashMap::new();
    for call in &calls {
        *by_key.entry(call.idempotency_key().unwrap_or_default()).or_default() += 1;
    }
    let twice = calls.len() - by_key.len();
    let unknown: i64 =
        sqlx::query_scalar("SELECT count(*) FROM receipts WHERE unresolved").fetch_one(world.pool()).await?;
    ensure!(unknown == blocked, "{unknown} unknown receipts and {blocked} blocked steps");
    println!(
        "killed after {} calls: {} calls in the end, {twice} of them sent twice; {unknown} unknown, which a person decides",
        at_kill - warm_up,
        calls.len()
    );
    // Nothing of it is left to whoever measures next.
    let runs: Vec<sqlx::types::Uuid> =
        sqlx::query_scalar("SELECT run_id FROM open_runs").fetch_all(world.pool()).await?;
    for run in runs {
        next.call("POST", &format!("/v1/runs/{run}/cancel"), &Value::Null).await?;
    }
    next.kill().await?;
    let mut found = Map::new();
    found.insert(
        "killed".into(),
        json!({ "calls": calls.len(), "sent_twice": twice, "unknown": unknown, "in_flight": IN_FLIGHT }),
    );
    Ok(found)
}
