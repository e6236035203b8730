//! What a step costs with ever more behind it.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::load::{self, Shape};
use crate::measure::rounded;
use crate::world::World;

/// Runs of three steps, each time.
const RUNS: usize = 1_000;
/// The median of so many is what counts.
const ROUNDS: usize = 3;

/// Fills the tables up to each of `sizes` settled steps, and measures what steps cost then.
pub(crate) async fn measure(world: &World, sizes: &[i32]) -> anyhow::Result<Map<String, Value>> {
    // The workflow and its tenant are made by the first round, whose figure is not kept.
    load::steps_per_second(world, Shape::HttpNodes, RUNS).await?;
    let (mut filled, mut points) = (0, vec![]);
    for &size in sizes {
        let begun = Instant::now();
        fill(world, size - filled).await?;
        filled = size;
        println!("{size} settled steps are there, the last of them after {:.0?}", begun.elapsed());
        let mut costs = vec![];
        for _ in 0..ROUNDS {
            costs
                .push(1_000_000.0 / load::steps_per_second(world, Shape::HttpNodes, RUNS).await?.steps_per_s);
        }
        costs.sort_by(f64::total_cmp);
        let median = rounded(costs[ROUNDS / 2]);
        println!("a step costs {median} µs with {size} behind it");
        points.push(json!({ "settled_steps": size, "us_per_step": median }));
    }
    let mut found = Map::new();
    found.insert("cost_by_history".into(), Value::Array(points));
    Ok(found)
}

/// Finished runs of three steps with a receipt each, as the load leaves them.
async fn fill(world: &World, steps: i32) -> anyhow::Result<()> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "CREATE TEMP TABLE old AS
             SELECT w.tenant_id AS tenant, w.id AS workflow, w.active_version_id AS version, gen_random_uuid() AS id,
                 gen_random_uuid() AS event
             FROM workflows w, generate_series(1, {steps} / 3) WHERE w.name = 'bench-http-3';
         INSERT INTO events (tenant_id, id, type, data, pending, published_at)
             SELECT tenant, event, 'bench-http-3', '{{\"order\":\"o-1\",\"cents\":500}}', false, now() FROM old;
         INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, event_id, ordinal,
                 event, input, state, ended_at, output)
             SELECT tenant, id, id, workflow, version, 'workflow_event:' || event, 'event', event, 0,
                 '{{\"order\":\"o-1\",\"cents\":500}}', '{{\"order\":\"o-1\",\"cents\":500}}', 'succeeded', now(), 'null'
             FROM old;
         INSERT INTO deliveries (tenant_id, event_id, workflow_id, version_id, run_id)
             SELECT tenant, event, workflow, version, id FROM old;
         INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses, output,
                 queued_at, started_at)
             SELECT tenant, id, gen_random_uuid(), id, 'call' || n, '{{}}', 'succeeded', 1, 0, '{{\"id\":\"ch_1\"}}', now(), now()
             FROM old, generate_series(0, 2) n;
         INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_ordinal,
                 dispatch_number, position, attempt, kind, safety, connection, destination, request_hash, content_key,
                 idempotency_key, preview, state, lease_id, dispatched_at, absence_known_at, answered_at, answer_kind,
                 answer_status, answer_headers, answer_body, answer_truncated, reason)
             SELECT tenant, gen_random_uuid(), id, id, id, 0, 'call' || n, '{{}}', 0, 0, 0, 1, 'http', 'at-most-once',
                 'payments', sha256(''), sha256(''), uuid_send(id), id::text, '{{}}', 'committed', id, now(), now(), now(),
                 'http', 201, '[]', '{{\"id\":\"ch_1\"}}', false, 'status 201'
             FROM old, generate_series(0, 2) n;
         DROP TABLE old"
    )))
    .execute(world.pool())
    .await?;
    sqlx::query("VACUUM ANALYZE").execute(world.pool()).await?;
    Ok(())
}
