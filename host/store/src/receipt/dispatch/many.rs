//! Many receipts in one statement, and one commit.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use counterfoil_domain::receipt::identity::EPOCH;
use sqlx::PgPool;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::{Wanted, insert_dispatched, slot_columns};
use crate::StoreError;
use crate::value;

/// When a receipt became durable; none if it did not on the way, and must be asked for by itself.
pub(crate) type Flushed = Option<DateTime<Utc>>;

/// Makes receipts durable as they come.
pub(crate) fn flush_dispatches(
    pool: PgPool,
) -> impl Fn(Vec<Wanted>) -> std::pin::Pin<Box<dyn Future<Output = Vec<Flushed>> + Send>> + Clone + Send + 'static
{
    move |wanted| {
        let pool = pool.clone();
        Box::pin(async move {
            let flushed = flush(&pool, &wanted).await;
            flushed.unwrap_or_else(|error| {
                // Each is tried by itself, so that one bad row fails none but its own.
                tracing::debug!(error = &error as &dyn std::error::Error, "receipts did not go together");
                vec![None; wanted.len()]
            })
        })
    }
}

async fn flush(pool: &PgPool, wanted: &[Wanted]) -> Result<Vec<Flushed>, StoreError> {
    let mut connection = pool.acquire().await?;
    if let [alone] = wanted {
        return Ok(vec![insert_dispatched(&mut connection, alone).await?]);
    }
    let columns = Columns::new(wanted);
    let inserted = sqlx::query!(
        // As for one; the steps are locked in any order, since nobody else locks more than one that is held. Each is looked
        // for by its key, however few the planner believes that there are.
        r#"WITH want AS (
             SELECT * FROM UNNEST(
                 $1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::text[],
                 $9::text[], $10::bigint[], $11::bigint[], $12::int[], $13::int[], $14::text[], $15::text[],
                 $16::text[], $17::bytea[], $18::bytea[], $19::bytea[], $20::text[], $21::text[], $22::bool[],
                 $23::interval[], $25::timestamptz[]
             ) AS w (tenant_id, lease_id, id, lineage, step_id, run_id, node, iteration, slot_label, slot_ordinal,
                 dispatch_number, position, attempt, kind, safety, connection, destination, request_hash,
                 content_key, idempotency_key, preview, is_guarded, absence_known_after, connection_set_at)
         ), held AS MATERIALIZED (
             SELECT want.* FROM want CROSS JOIN LATERAL (
                 SELECT FROM open_steps s
                 WHERE s.tenant_id = want.tenant_id AND s.id = want.step_id AND s.lease_id = want.lease_id
                   AND s.vt > now()
                 FOR SHARE
             ) step
         )
         INSERT INTO receipts (
             tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_label, slot_ordinal,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash,
             content_key, idempotency_key, preview, state, lease_id, guarded, dispatched_at, absence_known_at)
         SELECT held.tenant_id, held.id, held.lineage, held.run_id, held.step_id, $24, held.node,
             held.iteration::int[], held.slot_label, held.slot_ordinal, held.dispatch_number, held.position,
             held.attempt, held.kind, held.safety, held.connection, held.destination, held.request_hash,
             held.content_key, held.idempotency_key, held.preview::json, 'dispatched', held.lease_id,
             held.is_guarded AND NOT EXISTS (
                 SELECT FROM receipts older
                 WHERE older.tenant_id = held.tenant_id AND older.content_key = held.content_key
                   AND older.guarded AND NOT older.released
                   AND older.lineage = held.lineage AND older.node = held.node
                   AND older.iteration = held.iteration::int[]
                   AND older.slot_label IS NOT DISTINCT FROM held.slot_label
                   AND older.slot_ordinal IS NOT DISTINCT FROM held.slot_ordinal),
             now(), now() + held.absence_known_after
         FROM held
         WHERE held.connection_set_at IS NULL OR EXISTS (
             SELECT FROM connections c
             WHERE c.tenant_id = held.tenant_id AND c.name = held.connection AND c.updated_at = held.connection_set_at)
         -- Two flushes that meet the same content meet it in the same order.
         ORDER BY held.content_key, held.id
         ON CONFLICT DO NOTHING
         RETURNING tenant_id, id, dispatched_at AS "dispatched_at!""#,
        &columns.tenants,
        &columns.leases,
        &columns.ids,
        &columns.lineages,
        &columns.steps,
        &columns.runs,
        &columns.nodes as &[&str],
        &columns.iterations,
        &columns.slot_labels as &[Option<&str>],
        &columns.slot_ordinals as &[Option<i64>],
        &columns.dispatch_numbers,
        &columns.positions,
        &columns.attempts,
        &columns.kinds as &[&str],
        &columns.safeties as &[&str],
        &columns.connections as &[Option<&str>],
        &columns.destinations as &[&[u8]],
        &columns.request_hashes as &[&[u8]],
        &columns.content_keys as &[&[u8]],
        &columns.idempotency_keys as &[&str],
        &columns.previews,
        &columns.are_guarded,
        &columns.absences,
        EPOCH.cast_signed(),
        &columns.connections_set_at as &[Option<DateTime<Utc>>],
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut at: HashMap<(Uuid, Uuid), DateTime<Utc>> =
        inserted.into_iter().map(|row| ((row.tenant_id, row.id), row.dispatched_at)).collect();
    // Of two that want the same receipt, one has it.
    Ok(wanted.iter().map(|wanted| at.remove(&(wanted.receipt.tenant.0, wanted.receipt.id.0))).collect())
}

/// One array a column.
#[derive(Default)]
struct Columns<'a> {
    tenants: Vec<Uuid>,
    leases: Vec<Uuid>,
    ids: Vec<Uuid>,
    lineages: Vec<Uuid>,
    steps: Vec<Uuid>,
    runs: Vec<Uuid>,
    nodes: Vec<&'a str>,
    iterations: Vec<String>,
    slot_labels: Vec<Option<&'a str>>,
    slot_ordinals: Vec<Option<i64>>,
    dispatch_numbers: Vec<i64>,
    positions: Vec<i32>,
    attempts: Vec<i32>,
    kinds: Vec<&'a str>,
    safeties: Vec<&'a str>,
    connections: Vec<Option<&'a str>>,
    destinations: Vec<&'a [u8]>,
    request_hashes: Vec<&'a [u8]>,
    content_keys: Vec<&'a [u8]>,
    idempotency_keys: Vec<&'a str>,
    previews: Vec<String>,
    are_guarded: Vec<bool>,
    absences: Vec<PgInterval>,
    connections_set_at: Vec<Option<DateTime<Utc>>>,
}

impl<'a> Columns<'a> {
    fn new(wanted: &'a [Wanted]) -> Self {
        let mut columns = Self::default();
        for Wanted { fence, receipt, is_guarded, absence_known_after, connection_set_at } in wanted {
            let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
            let request = &receipt.request;
            columns.tenants.push(receipt.tenant.0);
            columns.leases.push(fence.lease.0);
            columns.ids.push(receipt.id.0);
            columns.lineages.push(receipt.place.lineage.0);
            columns.steps.push(receipt.step.0);
            columns.runs.push(receipt.run.0);
            columns.nodes.push(&receipt.place.node);
            columns.iterations.push(value::path_text(&receipt.place.iteration));
            columns.slot_labels.push(slot_label);
            columns.slot_ordinals.push(slot_ordinal);
            columns.dispatch_numbers.push(receipt.dispatch_number.cast_signed());
            columns.positions.push(receipt.position.cast_signed());
            columns.attempts.push(receipt.attempt.cast_signed());
            columns.kinds.push(&request.kind);
            columns.safeties.push(request.safety.name());
            columns.connections.push(request.connection.as_deref());
            columns.destinations.push(&request.destination);
            columns.request_hashes.push(&request.request_hash);
            columns.content_keys.push(&request.content_key);
            columns.idempotency_keys.push(&request.idempotency_key);
            columns.previews.push(request.preview.to_string());
            columns.are_guarded.push(*is_guarded);
            columns.absences.push(value::interval(*absence_known_after));
            columns.connections_set_at.push(*connection_set_at);
        }
        columns
    }
}
