//! What a step costs the database with ever more behind it.

use std::collections::BTreeMap;

use counterfoil_domain::effect::Safety;
use counterfoil_store::settle::{RunEndState, SettleVerdict, Settlement};
use sqlx::AssertSqlSafe;

use crate::world::{World, answer, receipt, run_end, settlement};

/// Settled steps behind the first round, and behind the second if `COUNTERFOIL_TEST_HISTORY_STEPS` names no other number.
const FEW: i64 = 10_000;
const MANY: i64 = 200_000;
/// What grows with it.
const HISTORY: [&str; 5] = ["events", "runs", "deliveries", "settled_steps", "receipts"];
/// Steps of a round, so that what a connection does once does not count.
const STEPS: i64 = 200;

/// Finished runs of three steps, up to so many steps, with what such runs leave.
async fn fill(world: &World, steps: i64) {
    let there = world.number("SELECT count(*) FROM settled_steps").await;
    let fill = format!(
        "CREATE TEMP TABLE old AS
             SELECT tenant_id AS tenant, id AS workflow, active_version_id AS version, gen_random_uuid() AS id,
                 gen_random_uuid() AS event
             FROM workflows, generate_series(1, {} / 3);
         INSERT INTO events (tenant_id, id, type, data, pending, published_at)
             SELECT tenant, event, 'lead.created', '{{}}', false, now() FROM old;
         INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, event_id, ordinal, event,
                 input, state, ended_at)
             SELECT tenant, id, id, workflow, version, 'workflow_event:' || event, 'event', event, 0, '{{}}', '{{}}',
                 'succeeded', now()
             FROM old;
         INSERT INTO deliveries (tenant_id, event_id, workflow_id, version_id, run_id)
             SELECT tenant, event, workflow, version, id FROM old;
         INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses, output,
                 queued_at, started_at)
             SELECT tenant, id, gen_random_uuid(), id, 'call' || n, '{{}}', 'succeeded', 1, 0, '{{}}', now(), now()
             FROM old, generate_series(0, 2) n;
         INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_ordinal,
                 dispatch_number, position, attempt, kind, safety, destination, request_hash, content_key,
                 idempotency_key, preview, state, lease_id, guarded, dispatched_at, absence_known_at, answered_at,
                 answer_kind, answer_status, answer_headers, answer_body, answer_truncated)
             SELECT tenant, gen_random_uuid(), id, id, id, 0, 'call' || n, '{{}}', 0, 0, 0, 1, 'http', 'at-most-once',
                 sha256(''), sha256(''), uuid_send(gen_random_uuid()), id::text, '{{}}', 'committed', id, true, now(), now(),
                 now(), 'http', 201, '[]', '{{}}', false
             FROM old, generate_series(0, 2) n;
         DROP TABLE old",
        steps - there
    );
    // The flush lets what all this has read be counted before the round that follows, not in it.
    let mut connection = world.pool.acquire().await.expect("connects");
    let vacuum = format!("VACUUM ANALYZE {}", HISTORY.join(", "));
    for statement in [fill.as_str(), &vacuum, "SELECT pg_stat_force_next_flush()"] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await.expect("fills");
    }
}

/// Pages of each table and its indexes that were ever looked at, once everybody's count has arrived.
async fn pages(world: &World) -> BTreeMap<String, i64> {
    world.store.close().await;
    let gone = "SELECT count(*) = 0 FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'counterfoil'";
    world.until(gone).await;
    let pages = "SELECT relname::text, (heap_blks_read + heap_blks_hit
                     + COALESCE(idx_blks_read, 0) + COALESCE(idx_blks_hit, 0))::bigint
                 FROM pg_statio_user_tables";
    let pages: Vec<(String, i64)> = sqlx::query_as(pages).fetch_all(&world.pool).await.expect("counts");
    pages.into_iter().collect()
}

/// Pages of each table for each step of a round: to admit its run, claim it, send and settle.
async fn pages_per_step(world: &mut World) -> BTreeMap<String, i64> {
    let before = pages(world).await;
    world.store = world.other_store().await;
    for _ in 0..STEPS {
        let step = world.step().await;
        let sent = world.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
        let end = Some(run_end(RunEndState::Succeeded));
        let settlement = Settlement { end, writes: answer(&sent), ..settlement(&step) };
        let verdict = world.store.settle(&settlement).await.expect("settles");
        assert!(matches!(verdict, SettleVerdict::Settled { .. }), "{verdict:?}");
    }
    let mut pages = pages(world).await;
    for (table, pages) in &mut pages {
        *pages = (*pages - before[table]) / STEPS;
    }
    // What is open is not history: it costs by what was open a moment ago.
    pages.retain(|table, _| HISTORY.contains(&table.as_str()));
    pages
}

#[tokio::test]
async fn a_step_reads_as_many_pages_however_many_have_settled_before_it() {
    /// Each look at an index may go one level deeper, and an insertion may split a page.
    const DEEPER: i64 = 30;
    let many = std::env::var("COUNTERFOIL_TEST_HISTORY_STEPS").ok().and_then(|many| many.parse().ok());
    let mut world = World::new().await;
    // What it reads would be counted too.
    for table in HISTORY {
        let off = format!("ALTER TABLE {table} SET (autovacuum_enabled = false)");
        world.execute(&off).await.expect("is left alone");
    }
    let mut cost = vec![];
    for steps in [FEW, many.unwrap_or(MANY)] {
        fill(&world, steps).await;
        cost.push(pages_per_step(&mut world).await);
    }
    let [few, many] = [0, 1].map(|n: usize| cost[n].values().sum::<i64>());
    println!("{few} pages a step, then {many}");
    assert!(few > 10 && many <= few + DEEPER, "pages a step: {cost:#?}");
}
