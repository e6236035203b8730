//! How the database carries out our statements when there is a lot in it.
//!
//! The statements are read from `.sqlx`, where each is as the program sends it.

use std::path::Path;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::world::World;

/// Tables that grow with the work, or that everybody waits for.
const HOT: &[&str] = &[
    "audit",
    "connection_rates",
    "deliveries",
    "events",
    "idempotent_requests",
    "open_runs",
    "open_steps",
    "receipt_history",
    "receipts",
    "runs",
    "settled_steps",
    "step_attempts",
    "verifications",
    "worker_tasks",
];

/// What may read a whole table, and why.
const EXCEPTIONS: [(&str, &str); 1] =
    [("FROM open_steps GROUP BY wait", "a gauge counts every open step, once for each scrape")];

/// The statements that we cannot afford to get wrong, each by what only it has.
const GOLDEN: &[(&str, &str)] = &[
    ("claim", "UPDATE open_steps s\n             SET lease_id = gen_random_uuid()"),
    ("dispatch", "WITH step AS (\n             SELECT lease_id FROM open_steps"),
    ("dispatch_together", "held.is_guarded AND NOT EXISTS"),
    ("settle_together_hold", "NOT want.is_end OR run.open_steps = 1"),
    ("settle_together", "SELECT tenant_id, run_id, sum(opened - 1)::int AS steps FROM gone"),
    ("settle", "SELECT kept.lease_id"),
    ("settle_and_end", "UPDATE runs r SET state = $9"),
    ("outbox_hold", "UPDATE events e SET hold_id = hold.id"),
    ("take_room", "WITH rate AS MATERIALIZED"),
    ("poll_tasks", "FROM UNNEST($2::text[]) AS served (queue)"),
    ("admission", "WITH run AS (\n             INSERT INTO runs"),
];

/// Twenty tenants with a thousand of everything.
const MANY: &str = "
    CREATE TEMP TABLE many AS
        SELECT t.id AS tenant, gen_random_uuid() AS id, n
        FROM (SELECT gen_random_uuid() AS id, 't' || t AS name FROM generate_series(1, 20) t) t,
            generate_series(1, 1000) n;
    INSERT INTO tenants (id, name) SELECT tenant, 't' || row_number() OVER () FROM many GROUP BY tenant;
    INSERT INTO workflows (tenant_id, id, name) SELECT tenant, tenant, 'flow' FROM many GROUP BY tenant;
    INSERT INTO workflow_versions (tenant_id, id, workflow_id, number, definition_hash, definition, source, plan)
        SELECT tenant, tenant, tenant, 1, sha256(''), '{}', '', '{}' FROM many GROUP BY tenant;
    INSERT INTO events (tenant_id, id, type, record_id, data, pending, published_at)
        SELECT tenant, id, 'x', 'r' || n, '{}', n < 3, CASE WHEN n >= 3 THEN now() END FROM many;
    INSERT INTO deliveries (tenant_id, event_id, workflow_id, run_id) SELECT tenant, id, tenant, id FROM many;
    INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, record_id, event, input)
        SELECT tenant, id, id, tenant, tenant, id::text, 'api', 'r' || n, '{}', '{}' FROM many;
    INSERT INTO open_runs (tenant_id, run_id, lineage, workflow_id, exclusive, open_steps)
        SELECT tenant, id, id, tenant, false, 1 FROM many;
    INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt)
        SELECT tenant, id, id, tenant, id, 'a', 'delay', now() + n * interval '1 hour' FROM many;
    INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses, queued_at)
        SELECT tenant, id, id, id, 'a', '{}', 'skipped', 1, 0, now() FROM many;
    INSERT INTO step_attempts (tenant_id, run_id, step_id, lease_id, attempt, host_id, started_at, ended)
        SELECT tenant, id, id, id, 1, id, now(), 'lost' FROM many;
    INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_ordinal,
            dispatch_number, position, attempt, kind, safety, destination, request_hash, content_key,
            idempotency_key, preview, state, answer_kind, dispatched_at)
        SELECT tenant, id, id, id, id, 0, 'a', '{}', 0, 0, 0, 1, 'http', 'at-most-once', sha256(''), sha256(''),
            uuid_send(id), id::text, '{}', 'committed', 'http', now()
        FROM many;
    INSERT INTO receipt_history (tenant_id, receipt_id, id, from_state, to_state, actor, evidence)
        SELECT tenant, id, id, 'unknown', 'committed', 'host', '' FROM many;
    INSERT INTO verifications (tenant_id, receipt_id, block, due_at)
        SELECT tenant, id, sha256(''), now() + n * interval '1 hour' FROM many;
    INSERT INTO worker_tasks (tenant_id, id, step_id, queue, input, claim_until, timeout, waiting)
        SELECT tenant, id, id, 'q' || n % 10, '{}', now() + interval '1 hour', '1 hour', n < 300 FROM many;
    INSERT INTO audit (tenant_id, id, actor, action, run_id) SELECT tenant, id, 'host', 'run.cancel', id FROM many;
    INSERT INTO idempotent_requests (tenant_id, key, request_hash) SELECT tenant, id::text, sha256('') FROM many;
    INSERT INTO connections (tenant_id, name, base_url, allowed_hosts) SELECT tenant, 'c' || n, '', '{}' FROM many;
    INSERT INTO connection_rates (tenant_id, connection, calls, per_ms, every, ahead)
        SELECT tenant, 'c' || n, 1, 1, '1 ms', '1 ms' FROM many;
    ANALYZE;
    SET plan_cache_mode = force_generic_plan";

/// A statement, and how many parameters it has.
pub(crate) fn statements() -> Vec<(String, usize)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let files = std::fs::read_dir(&dir).expect("the prepared statements are there");
    let mut statements: Vec<_> = files
        .map(|file| {
            let text = std::fs::read(file.expect("a file").path()).expect("readable");
            let data: Value = serde_json::from_slice(&text).expect("JSON");
            let query = data["query"].as_str().expect("a query").to_owned();
            let parameters = data["describe"]["parameters"]["Left"].as_array().map_or(0, Vec::len);
            (query, parameters)
        })
        .collect();
    statements.sort();
    assert!(statements.len() > 50, "only {} statements in {}", statements.len(), dir.display());
    statements
}

/// The plan of a statement, whatever its parameters are.
async fn plan(connection: &mut PgConnection, query: &str, parameters: usize) -> String {
    let nulls = vec!["NULL"; parameters].join(", ");
    let arguments = if parameters == 0 { String::new() } else { format!("({nulls})") };
    for statement in ["DEALLOCATE ALL".to_owned(), format!("PREPARE it AS {query}")] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await.expect(query);
    }
    let explain = format!("EXPLAIN (COSTS OFF) EXECUTE it {arguments}");
    let lines = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.expect(query);
    lines.iter().map(|line| line.get::<String, _>(0) + "\n").collect()
}

#[tokio::test]
async fn no_statement_reads_the_whole_of_a_table_that_grows() {
    let world = World::new().await;
    let mut connection = world.database.connect().await;
    sqlx::raw_sql(MANY).execute(&mut connection).await.expect("fills the tables");
    let mut found = vec![];
    for (query, parameters) in statements() {
        let plan = plan(&mut connection, &query, parameters).await;
        let reads_all = HOT.iter().any(|table| plan.contains(&format!("Seq Scan on {table}")));
        let is_exception = EXCEPTIONS.iter().any(|(part, _)| query.contains(part));
        if reads_all != is_exception {
            found.push(format!("{query}\n\n{plan}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n----\n"));

    // Another major version may say the same in other words.
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int / 10000")
        .fetch_one(&mut connection)
        .await
        .expect("a version");
    if version == 15 {
        for &(name, part) in GOLDEN {
            let (query, parameters) = crate::world::one(
                statements().into_iter().filter(|(query, _)| query.contains(part)).collect(),
            );
            let plan = plan(&mut connection, &query, parameters).await;
            insta::assert_snapshot!(name, format!("{query}\n\n{plan}"));
        }
    }
    connection.close().await.expect("closes");
}

/// What is open is nothing again and again, and a plan that is made then is kept.
#[tokio::test]
async fn a_step_is_found_by_its_key_by_plans_that_were_made_while_nothing_was_open() {
    let world = World::new().await;
    let mut connection = world.database.connect().await;
    for statement in [
        "VACUUM ANALYZE open_steps, open_runs",
        "SET plan_cache_mode = force_generic_plan",
        "SET enable_seqscan = off",
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.expect(statement);
    }
    let by_key = ["dispatch", "dispatch_together", "settle_together_hold"];
    for (name, part) in GOLDEN.iter().filter(|(name, _)| by_key.contains(name)) {
        let of_it = statements().into_iter().filter(|(query, _)| query.contains(part)).collect();
        let (query, parameters) = crate::world::one(of_it);
        let plan = plan(&mut connection, &query, parameters).await;
        let lines: Vec<&str> = plan.lines().map(str::trim).collect();
        let mut scans = 0;
        for scan in lines.windows(2).filter(|pair| pair[0].contains("Scan using open_")) {
            let key = if scan[0].contains("open_runs") { " AND (run_id = " } else { " AND (id = " };
            assert!(scan[1].starts_with("Index Cond: ((tenant_id = ") && scan[1].contains(key), "{plan}");
            scans += 1;
        }
        assert!(scans > 0, "{name}: {plan}");
    }
    connection.close().await.expect("closes");
}

/// Pages that a claim reads, and the looks that tell a host when to claim, with this much asleep.
async fn pages(connection: &mut PgConnection, world: &World) -> Vec<(&'static str, i64)> {
    let queue = format!("ARRAY['{}']::uuid[]", world.tenant.0);
    let workflow = format!("ARRAY['{}']::uuid[]", world.workflow.0);
    let mut pages = vec![];
    for (name, part, arguments) in [
        (
            "claim",
            "SET lease_id = gen_random_uuid()",
            format!(
                "gen_random_uuid(), {queue}, ARRAY[10], '15 s', ARRAY[]::bytea[], {workflow}, ARRAY[NULL]::timestamptz[]"
            ),
        ),
        ("next", "AND s.vt < 'infinity'", format!("{queue}, {workflow}, '1 s'")),
        ("due of a tenant", "FROM UNNEST($1::uuid[]) AS t (id)", queue.clone()),
        ("due", "(tenant_id, workflow_id) > (line.tenant_id", String::new()),
    ] {
        let (query, _) =
            crate::world::one(statements().into_iter().filter(|(query, _)| query.contains(part)).collect());
        let arguments = if arguments.is_empty() { arguments } else { format!("({arguments})") };
        let explain = format!(
            "DEALLOCATE ALL; PREPARE it AS {query}; BEGIN;
             EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE it {arguments}; ROLLBACK"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *connection).await.expect(name);
        let plan: Value = rows[0].get::<sqlx::types::Json<Value>, _>(0).0;
        let blocks = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap_or(0);
        pages.push((name, blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")));
    }
    pages
}

/// What sleeps costs nothing, in the same line as what is due, and in the lines of others.
#[tokio::test]
async fn a_claim_reads_no_more_pages_beside_sleepers() {
    /// Indexes over so many more are deeper, and every row that is claimed, and every look-up, goes through each of them.
    const DEEPER: i64 = 20;
    let world = World::new().await;
    world.start(&["a", "b", "c"]).await;
    let mut connection = world.database.connect().await;
    let ready = "SET plan_cache_mode = force_generic_plan; VACUUM ANALYZE open_steps";
    for statement in ready.split(';') {
        sqlx::raw_sql(statement).execute(&mut connection).await.expect(statement);
    }
    let awake = pages(&mut connection, &world).await;
    let sleepers = format!(
        "INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt)
         SELECT '{}', gen_random_uuid(), gen_random_uuid(), '{}', gen_random_uuid(), 'nap', 'delay',
             now() + interval '1 day' + n * interval '1 second'
         FROM generate_series(1, 50000) n",
        world.tenant.0, world.workflow.0
    );
    sqlx::raw_sql(AssertSqlSafe(sleepers)).execute(&mut connection).await.expect("sleep");
    sqlx::raw_sql("VACUUM ANALYZE open_steps").execute(&mut connection).await.expect("analyzes");
    let beside = pages(&mut connection, &world).await;
    for ((name, awake), (_, beside)) in awake.iter().zip(&beside) {
        assert!(*beside <= awake + DEEPER, "{name}: {awake} pages alone, {beside} beside sleepers");
    }
    connection.close().await.expect("closes");
}

/// Pages that a claim reads that takes what has been due for no longer than this.
async fn claim_pages(connection: &mut PgConnection, world: &World, since: &str) -> i64 {
    let claim = "SET lease_id = gen_random_uuid()";
    let (query, _) =
        crate::world::one(statements().into_iter().filter(|(query, _)| query.contains(claim)).collect());
    let (tenant, workflow) = (world.tenant.0, world.workflow.0);
    let explain = format!(
        "DEALLOCATE ALL; PREPARE it AS {query}; BEGIN;
         EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE it (gen_random_uuid(), ARRAY['{tenant}']::uuid[],
             ARRAY[10], '15 s', ARRAY[]::bytea[], ARRAY['{workflow}']::uuid[], ARRAY[{since}]::timestamptz[]);
         ROLLBACK"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.expect("explains");
    let plan: Value = rows[0].get::<sqlx::types::Json<Value>, _>(0).0;
    let blocks = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap_or(0);
    blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
}

/// Steps that were due for an hour, and have been settled.
const SETTLED: &str = "
    INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt)
    SELECT w.tenant_id, gen_random_uuid(), gen_random_uuid(), w.id, gen_random_uuid(), 'done', 'ready',
        now() - interval '1 hour' + n * interval '1 ms'
    FROM workflows w, generate_series(1, 20000) n;
    INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses, queued_at)
    SELECT tenant_id, run_id, id, lineage, node, '{}', 'skipped', 1, 0, vt FROM open_steps WHERE node = 'done';
    DELETE FROM open_steps WHERE node = 'done'";

/// 26 (`host/testkit/cases/field-faults.md`): a claim begins where something is due as far as its host knows, so that it
/// reads no more for all that has been settled before, even where an old transaction keeps that from being cleared away.
#[tokio::test]
async fn a_claim_reads_no_more_pages_beside_settled_steps_that_an_old_transaction_keeps() {
    /// Indexes over so many more are deeper.
    const DEEPER: i64 = 20;
    const KNOWN: &str = "now() - interval '1 minute'";
    let world = World::new().await;
    world.start(&["a", "b", "c"]).await;
    let (mut connection, mut old) = (world.database.connect().await, world.database.connect().await);
    for statement in ["SET plan_cache_mode = force_generic_plan", "VACUUM ANALYZE open_steps"] {
        sqlx::raw_sql(statement).execute(&mut connection).await.expect(statement);
    }
    let alone = claim_pages(&mut connection, &world, KNOWN).await;
    let pin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM open_steps";
    sqlx::raw_sql(pin).execute(&mut old).await.expect(pin);
    sqlx::raw_sql(SETTLED).execute(&mut connection).await.expect("settles");
    sqlx::raw_sql("VACUUM ANALYZE open_steps").execute(&mut connection).await.expect("clears nothing away");
    let beside = claim_pages(&mut connection, &world, KNOWN).await;
    assert!(beside <= alone + DEEPER, "{alone} pages alone, {beside} beside what is kept");
    // What it would read otherwise: else this shows nothing.
    let from_the_first = claim_pages(&mut connection, &world, "NULL").await;
    assert!(
        from_the_first > 10 * beside,
        "{from_the_first} pages from the first on, {beside} from what is known"
    );
    for connection in [connection, old] {
        connection.close().await.expect("closes");
    }
}
