//! How late timers fire while others sleep.

use std::time::{Duration, Instant};

use anyhow::ensure;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::{Map, Value, json};

use crate::load;
use crate::measure::rounded;
use crate::world::World;

/// Timers that fire, at random moments of the window.
const TIMERS: usize = 1_000;
/// Until the first may fire: all are recorded and admitted by then.
const AHEAD_MS: u64 = 4_000;
const WINDOW_MS: u64 = 5_000;
const WORKFLOW: &str = "bench-timer";

/// Lets timers fire while `sleepers` others of the same workflow wait for another day.
pub(crate) async fn measure(world: &World, sleepers: &[i32]) -> anyhow::Result<Map<String, Value>> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    let host = world.host(&provider, 512).await?;
    let steps = json!([
        { "nap": { "delay": { "until": "=input.at" } } },
        { "call": { "http": { "connection": "payments", "method": "POST", "url": "/charges", "body": "=input" } } },
    ]);
    let trigger = json!({ "event": WORKFLOW, "dedup": "every_time" });
    host.activate(&json!({ "name": WORKFLOW, "triggers": [trigger], "steps": steps })).await?;
    let (mut asleep, mut found) = (0, vec![]);
    for &count in sleepers {
        let begun = Instant::now();
        put_to_sleep(world, count - asleep).await?;
        asleep = count;
        println!("{count} sleepers are in place, the last of them after {:.0?}", begun.elapsed());
        let late = fire(world, &host, &provider).await?;
        println!("timers beside {count} sleepers fire {late} ms late");
        found.push(json!({ "sleepers": count, "late_ms": late }));
    }
    host.kill().await?;
    let mut map = Map::new();
    let last = found.last().map(|last| last["late_ms"].clone()).unwrap_or_default();
    map.insert("timer_late_ms".into(), last);
    map.insert("timers".into(), Value::Array(found));
    Ok(map)
}

async fn put_to_sleep(world: &World, count: i32) -> anyhow::Result<()> {
    sqlx::query(
        "INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt)
         SELECT w.tenant_id, gen_random_uuid(), gen_random_uuid(), w.id, gen_random_uuid(), 'nap', 'delay',
             now() + interval '1 day' + n * interval '1 millisecond'
         FROM workflows w, generate_series(1, $2) n WHERE w.name = $1",
    )
    .bind(WORKFLOW)
    .bind(count)
    .execute(world.pool())
    .await?;
    sqlx::query("VACUUM ANALYZE open_steps").execute(world.pool()).await?;
    Ok(())
}

/// By how much timers are late, by the database's clock: when their steps were taken, against when they were due.
async fn fire(
    world: &World,
    host: &counterfoil_testkit::host::Host,
    provider: &Provider,
) -> anyhow::Result<Value> {
    let calls = provider.calls_count();
    let since: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(world.pool()).await?;
    // Spread over the window, no two at the same moment.
    let at = |n: usize| {
        let into_window = (n as u64 * 7_919) % WINDOW_MS;
        since + Duration::from_millis(AHEAD_MS + into_window)
    };
    let events = (0..TIMERS).map(|n| json!({ "type": WORKFLOW, "data": { "at": at(n).to_rfc3339() } }));
    load::record(host, events.collect()).await?;
    load::wait_until_done(world, host).await?;
    let called = provider.calls_count() - calls;
    ensure!(called == TIMERS, "{called} calls of {TIMERS}");
    let late: (f64, f64, f64, f64) = sqlx::query_as(
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), percentile_cont(0.99) WITHIN GROUP (ORDER BY late),
             max(late)::float8, min(late)::float8
         FROM (
             SELECT EXTRACT(EPOCH FROM s.started_at - (r.input->>'at')::timestamptz)::float8 * 1000 AS late
             FROM settled_steps s JOIN runs r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
             WHERE s.node = 'nap' AND s.settled_at > $1
         ) fired",
    )
    .bind(since)
    .fetch_one(world.pool())
    .await?;
    let (p50, p99, most, least) = late;
    ensure!(least >= 0.0, "a timer fired {least} ms before it was due");
    Ok(json!({ "p50": rounded(p50), "p99": rounded(p99), "max": rounded(most) }))
}
