//! What the database could do at best: the rows of an effect step, written by many steps to a statement.
//!
//! Two commits a batch, as many as a host makes for a step: receipts in, then receipts answered, steps settled and their
//! successors opened. No run is read, no guest is run and nothing is called, so that no host can reach it.

use std::time::Instant;

use anyhow::Context as _;
use counterfoil_testkit::postgres::TestDatabase;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::measure::number;
use crate::world::World;

const BATCH_LEN: usize = 256;
const WRITERS: usize = 3;
const BATCHES_PER_WRITER: usize = 40;
/// Before the first that counts, so that statements are planned for tables with rows.
const WARM_BATCHES: usize = 10;

/// Steps a second that the database takes.
pub(crate) async fn steps_per_second(world: &World) -> anyhow::Result<f64> {
    let database = TestDatabase::on(&world.server()).await?;
    let mut writers = vec![];
    for _ in 0..WRITERS {
        let mut connection = database.connect().await;
        sqlx::query("SET plan_cache_mode = force_generic_plan").execute(&mut connection).await?;
        let (tenant, mut open) = (Uuid::new_v4(), vec![]);
        for _ in 0..WARM_BATCHES {
            open = batch(&mut connection, tenant, open).await?;
        }
        writers.push((connection, tenant, open));
    }
    sqlx::raw_sql("VACUUM ANALYZE receipts, open_steps, settled_steps")
        .execute(&mut database.connect().await)
        .await?;
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for (mut connection, tenant, mut open) in writers {
        tasks.spawn(async move {
            for _ in 0..BATCHES_PER_WRITER {
                open = batch(&mut connection, tenant, open).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a writer broke off")??;
    }
    Ok(number(WRITERS * BATCHES_PER_WRITER * BATCH_LEN) / begun.elapsed().as_secs_f64())
}

/// Writes one batch of steps, and returns the steps that it opened.
async fn batch(connection: &mut PgConnection, tenant: Uuid, open: Vec<Uuid>) -> anyhow::Result<Vec<Uuid>> {
    let ids: Vec<Uuid> = (0..BATCH_LEN).map(|_| Uuid::new_v4()).collect();
    let hash = [7_u8; 32];
    let preview = r#"{"method":"POST","url":"http://127.0.0.1:8080/charges","headers":[],"body":"{\"cents\":500}","body_bytes_len":13}"#;
    sqlx::query(
        "INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_label,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash, content_key,
             idempotency_key, preview, state, lease_id, dispatched_at, absence_known_at)
         SELECT $1, id, id, id, id, 0, 'call', '{}', 'charge', 0, 0, 1, 'http', 'at-most-once', 'payments',
             $3, $3, $4, id::text, $5::json, 'dispatched', id, now(), now()
         FROM UNNEST($2::uuid[]) AS w (id)",
    )
    .bind(tenant)
    .bind(&ids)
    .bind(&hash[..])
    .bind(&hash[..16])
    .bind(preview)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        r#"WITH answered AS (
             UPDATE receipts r SET state = 'committed', answered_at = now(), answer_kind = 'http', answer_status = 201,
                 answer_headers = '[["content-type","application/json"]]', answer_body = '{"id":"ch_1"}',
                 answer_truncated = false, reason = 'status 201'
             WHERE r.tenant_id = $1 AND r.id = ANY ($2) AND r.state = 'dispatched'
             RETURNING r.id
         ), gone AS (
             DELETE FROM open_steps s WHERE s.tenant_id = $1 AND s.id = ANY ($3)
         ), settled AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output, queued_at, started_at)
             SELECT $1, id, id, id, 'call', '{}', 'succeeded', 1, 0, '{"id":"ch_1"}', now(), now() FROM answered
         )
         INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, wait, vt, lease_id, host_id, first_started_at)
         SELECT $1, id, id, $1, id, 'call', 'ready', now(), id, id, now() FROM UNNEST($2::uuid[]) AS w (id)"#,
    )
    .bind(tenant)
    .bind(&ids)
    .bind(open)
    .execute(&mut *connection)
    .await?;
    Ok(ids)
}
