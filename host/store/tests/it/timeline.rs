//! The timeline of a long run, a page at a time.

use counterfoil_domain::id::RunId;
use counterfoil_store::timeline::TimelineRows;
use counterfoil_store::{Page, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::plans::statements;
use crate::world::{World, one, settlement};

/// In the order of the plan, which is not that of names.
const NODES: [&str; 12] = [
    "start", "each", "each/z", "each/y", "each/x", "each/w", "each/v", "each/u", "each/t", "each/s",
    "each/r", "each/q",
];
/// Steps of each of the ten nodes inside `each`.
const ITEMS: u32 = 1_000;
const LIMIT: u32 = 100;

fn nodes() -> Vec<String> {
    NODES.map(ToOwned::to_owned).to_vec()
}

async fn page(world: &World, run: RunId, after: Option<String>) -> Result<TimelineRows, StoreError> {
    let head = world.store.timeline_head(world.tenant, run).await?.expect("exists");
    world.store.timeline(world.tenant, head, &nodes(), &Page { after, limit: LIMIT }).await
}

/// A run whose ten thousand steps have settled, but for `start`, with a receipt and a lost execution each.
async fn long(world: &World) -> RunId {
    let run = world.start(&["start"]).await;
    let values: Vec<String> = NODES[2..].iter().map(|node| format!("('{node}')")).collect();
    let fill = format!(
        "WITH step AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses, queued_at,
                 output)
             SELECT r.tenant_id, r.id, gen_random_uuid(), r.lineage, n.node, ARRAY[i], 'succeeded', 1, 1, now(), '{{}}'
             FROM runs r, (VALUES {}) n (node), generate_series(0, {}) i ORDER BY random()
             RETURNING *
         ), attempt AS (
             INSERT INTO step_attempts (tenant_id, run_id, step_id, lease_id, attempt, host_id, started_at, ended)
             SELECT tenant_id, run_id, id, id, 1, id, now(), 'lost' FROM step
         )
         INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_ordinal,
             dispatch_number, position, attempt, kind, safety, destination, request_hash, content_key,
             idempotency_key, preview, state, answer_kind, answer_status, dispatched_at)
         SELECT tenant_id, id, lineage, run_id, id, 0, node, iteration, 0, 0, 0, 1, 'http', 'at-most-once', sha256(''),
             sha256(''), uuid_send(id), id::text, '{{}}', 'rejected', 'not-sent', NULL, now()
         FROM step",
        values.join(", "),
        ITEMS - 1
    );
    world.execute(&fill).await.expect("fills");
    world.execute("VACUUM ANALYZE settled_steps").await.expect("analyzes");
    run
}

#[tokio::test]
async fn every_step_of_a_long_run_is_on_one_page() {
    let world = World::new().await;
    let run = long(&world).await;
    let step = one(world.claim(crate::world::LEASE).await);
    let mut seen = vec![];
    let mut after = None;
    let mut pages = 0;
    loop {
        let rows = page(&world, run, after).await.expect("reads");
        pages += 1;
        let count = rows.settled.len() + rows.open.len();
        assert!(count <= LIMIT as usize, "{count} steps on a page");
        if pages == 1 {
            assert_eq!((rows.open.len(), rows.open[0].node.as_str()), (1, "start"));
            seen.push(("start".to_owned(), vec![]));
            // It is not on another page for having settled meanwhile.
            world.store.settle(&settlement(&step)).await.expect("settles");
        }
        let shown: Vec<_> = rows.settled.iter().map(|step| step.step).collect();
        assert_eq!(rows.attempts.len(), shown.len(), "each with its execution");
        assert_eq!(rows.effects.len(), shown.len(), "and its effect");
        assert!(rows.effects.iter().all(|effect| shown.contains(&effect.receipt.step)));
        seen.extend(rows.settled.into_iter().map(|step| (step.node, step.iteration)));
        after = rows.next;
        if after.is_none() {
            break;
        }
    }
    let inside = NODES[2..].iter().flat_map(|node| (0..ITEMS).map(|item| ((*node).to_owned(), vec![item])));
    let expected: Vec<_> = [("start".to_owned(), vec![])].into_iter().chain(inside).collect();
    assert!(seen == expected, "{} steps on {pages} pages", seen.len());
    // The same with the first one settled.
    let first = page(&world, run, None).await.expect("reads");
    assert_eq!((first.settled.len(), first.settled[0].node.as_str()), (LIMIT as usize, "start"));
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let world = World::new().await;
    let run = world.start(&["start"]).await;
    for after in ["", "start", "gone:", "start:x", "start:-1", "start:99999999999", "start:1..2"] {
        let refused = page(&world, run, Some(after.into())).await;
        assert!(matches!(refused, Err(StoreError::InvalidCursor)), "{after:?}: {refused:?}");
    }
    assert!(page(&world, run, Some("start:".into())).await.expect("reads").open.is_empty());
}

/// The first page, one in the middle and the last read as many pages of the database.
#[tokio::test]
async fn each_page_of_a_long_run_costs_the_same() {
    /// A page of rows may lie on one more page of the table, and a leaf of an index end in the midst of it.
    const SPREAD: i64 = 8;
    let world = World::new().await;
    let run = long(&world).await;
    // In the order in which they settled, as those of a run do.
    world.execute("CLUSTER settled_steps USING settled_steps_pkey").await.expect("orders");
    let mut connection = world.database.connect().await;
    let lateral = "CROSS JOIN LATERAL (\n                 SELECT * FROM settled_steps s";
    let (query, _) = one(statements().into_iter().filter(|(query, _)| query.contains(lateral)).collect());
    let mut costs = vec![];
    for (node, from) in [("each/z", "{}"), ("each/v", "{499,0}"), ("each/q", "{899,0}")] {
        let explain = format!(
            "DEALLOCATE ALL; SET plan_cache_mode = force_generic_plan; PREPARE it AS {query};
             EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)
             EXECUTE it ('{0}', '{1}', ARRAY['{node}'], '{from}', {LIMIT});
             EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)
             EXECUTE it ('{0}', '{1}', ARRAY['{node}'], '{from}', {LIMIT})",
            world.tenant.0, run.0
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.expect("explains");
        // The first execution on a connection reads what describes the tables too.
        let plan: Value = rows[1].get::<sqlx::types::Json<Value>, _>(0).0;
        let of = |field: &str| plan[0]["Plan"][field].as_i64().unwrap_or(0);
        assert_eq!(of("Actual Rows"), i64::from(LIMIT), "{plan}");
        costs.push(of("Shared Hit Blocks") + of("Shared Read Blocks"));
    }
    let (least, most) = (costs.iter().min().expect("three"), costs.iter().max().expect("three"));
    assert!(most - least <= SPREAD, "{costs:?} pages");
    // Far below what a look at all of the run's steps takes.
    assert!(*most < 60, "{costs:?} pages");
    connection.close().await.expect("closes");
}
