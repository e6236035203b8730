//! A tenant's single runs beside another tenant's burst.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use chrono::{DateTime, Utc};
use counterfoil_domain::id::RunId;
use counterfoil_testkit::host::{Caller, Host};
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::load::{self, Shape};
use crate::measure::Samples;
use crate::world::World;

/// Single runs of the quiet tenant, one after the other.
const RUNS: usize = 30;
const IN_FLIGHT: u32 = 256;

/// Lets a quiet tenant run alone and then beside a burst of so many runs.
pub(crate) async fn measure(world: &World, burst: usize) -> anyhow::Result<Map<String, Value>> {
    let provider = Provider::start(ProviderConfig::default()).await?;
    let host = world.host(&provider, IN_FLIGHT).await?;
    let workflow = load::furnish(world, &host, Shape::HttpNodes, 1).await?;
    let key = world.tenant("quiet").await?;
    let quiet = host.as_holder_of(&key);
    quiet.call("PUT", "/v1/connections/payments", &json!({ "base_url": provider.url() })).await?;
    let call =
        json!({ "http": { "connection": "payments", "method": "POST", "url": "/quiet", "body": "=input" } });
    quiet.activate(&json!({ "name": "quiet", "triggers": [], "steps": [{ "call": call }] })).await?;
    load::submit(world, &host, &workflow, IN_FLIGHT as usize).await.context("warming up")?;
    sqlx::query("VACUUM ANALYZE").execute(world.pool()).await?;
    single_runs(world, quiet).await?;
    let (alone, _) = single_runs(world, quiet).await?;

    let event = json!({ "type": workflow, "data": { "order": "o-1", "cents": 500 } });
    load::record(&host, vec![event; burst]).await?;
    let (beside, submitted) = single_runs(world, quiet).await?;
    let left = still_due(world).await?;
    ensure!(left > 0, "the burst was over before the quiet tenant's runs were: make it larger");
    load::wait_until_done(world, &host).await?;
    let batches = batches(world, &submitted).await?;
    end(host, &alone, &beside, batches, burst).await
}

async fn end(
    host: Host,
    alone: &Samples,
    beside: &Samples,
    batches: i64,
    burst: usize,
) -> anyhow::Result<Map<String, Value>> {
    host.kill().await?;
    let told =
        |samples: &Samples| json!({ "p50": samples.quantile_ms(0.5), "p99": samples.quantile_ms(0.99) });
    println!(
        "a quiet tenant's run: {} ms alone, {} ms beside a burst of {burst}; served after {batches} claims at most",
        told(alone),
        told(beside)
    );
    let mut found = Map::new();
    found.insert("quiet_tenant_batches".into(), json!(batches));
    found.insert(
        "quiet_run_ms".into(),
        json!({ "alone": told(alone), "beside": told(beside), "burst": burst }),
    );
    Ok(found)
}

/// A run, and when its submission was answered, by the database's clock.
type Submitted = (Uuid, DateTime<Utc>);

/// From the start of a run to its end.
async fn single_runs(world: &World, quiet: Caller<'_>) -> anyhow::Result<(Samples, Vec<Submitted>)> {
    let (mut samples, mut submitted) = (Samples::default(), vec![]);
    for n in 0..RUNS {
        let begun = Instant::now();
        let run = quiet.call("POST", "/v1/workflows/quiet/runs", &json!({ "input": { "n": n } })).await?;
        let id = run["id"].as_str().context("a run has an id")?;
        let at = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(world.pool()).await?;
        submitted.push((id.parse::<RunId>()?.0, at));
        load::wait_for_end(world, id).await?;
        samples.add(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((samples, submitted))
}

async fn still_due(world: &World) -> anyhow::Result<i64> {
    let due = "SELECT (SELECT count(*) FROM open_runs) + (SELECT count(*) FROM events WHERE pending)";
    Ok(sqlx::query_scalar(due).fetch_one(world.pool()).await?)
}

/// The most claims, its own included, that began after a quiet run's submission was answered and until its step was taken.
/// The steps of one claim have one time.
async fn batches(world: &World, submitted: &[Submitted]) -> anyhow::Result<i64> {
    let (runs, at): (Vec<Uuid>, Vec<DateTime<Utc>>) = submitted.iter().copied().unzip();
    let batches = sqlx::query_scalar(
        "SELECT max(batches) FROM (
             SELECT GREATEST(1, (SELECT count(DISTINCT b.started_at) FROM settled_steps b
                     WHERE b.started_at > w.at AND b.started_at <= q.started_at)) AS batches
             FROM UNNEST($1::uuid[], $2::timestamptz[]) AS w (run_id, at)
             JOIN settled_steps q ON q.run_id = w.run_id
         ) served",
    )
    .bind(runs)
    .bind(at)
    .fetch_one(world.pool())
    .await?;
    Ok(batches)
}
