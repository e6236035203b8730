//! Moves of receipts. A move is a value of the domain, and a swap here: from the state it was planned on, or not at all.

use counterfoil_domain::id::{EffectId, LeaseId, LineageId, StepId, TenantId};
use counterfoil_domain::receipt::identity::EPOCH;
use counterfoil_domain::receipt::{Actor, Move, Receipt, ReceiptState, Recorded, Standing, Transition};
use sqlx::PgConnection;
use uuid::Uuid;

use super::row::{AnswerColumns, slot_columns};
use crate::StoreError;
use crate::settle::Swap;
use crate::value::{self, Exact};
use crate::verification;

/// Moves a receipt, and keeps the move where people will ask about it.
///
/// The caller holds the lock of the receipt's open step, if there is one, unless the move is from dispatched to committed.
pub(crate) async fn apply(
    connection: &mut PgConnection,
    transition: &Transition,
) -> Result<Swap, StoreError> {
    let answer = transition.recorded().map(AnswerColumns::new).unwrap_or_default();
    let (reason, provider_receipt_id) = texts(transition.what());
    let evidence = evidence(transition);
    // What somebody else says takes the place of why nothing was known, and is no answer.
    let by_others = matches!(transition.what(), Move::Resolve(_) | Move::VerifyBySibling { .. });
    let reason = if by_others { evidence.as_deref() } else { reason };
    let moved = sqlx::query!(
        // Neither an indexed column nor a predicate's changes when a dispatched receipt is answered.
        "UPDATE receipts SET
             state = $4, unresolved = $4 = 'unknown',
             answered_at = CASE WHEN $5::text IS NULL OR $12 THEN answered_at ELSE now() END,
             answer_kind = COALESCE($5, answer_kind), answer_status = COALESCE($6, answer_status),
             answer_headers = COALESCE($7, answer_headers), answer_body = COALESCE($8, answer_body),
             answer_truncated = COALESCE($9, answer_truncated),
             reason = COALESCE($10, reason),
             provider_receipt_id = COALESCE($11, provider_receipt_id)
         WHERE tenant_id = $1 AND id = $2 AND state = $3
         RETURNING guarded, dispatch_number",
        transition.tenant().0,
        transition.receipt().0,
        transition.from().name(),
        transition.to().name(),
        answer.kind,
        answer.status,
        answer.headers.as_ref().map(Exact) as Option<Exact<'_>>,
        answer.body,
        answer.truncated,
        reason,
        provider_receipt_id,
        by_others,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(moved) = moved else {
        let found = state(connection, transition.tenant(), transition.receipt()).await?;
        return Ok(Swap::Lost { found });
    };
    if let Some(evidence) = evidence {
        keep(connection, transition, evidence).await?;
    }
    match (transition.from(), transition.to()) {
        (_, ReceiptState::Unknown) => {
            verification::begin(connection, transition.tenant(), transition.receipt()).await?;
        }
        (ReceiptState::Unknown, _) => {
            verification::end(connection, transition.tenant(), transition.receipt()).await?;
        }
        _ => {}
    }
    // Only the slot's first dispatch can be the one that guards without a look at the others.
    if !transition.to().may_have_happened() && (moved.guarded || moved.dispatch_number > 0) {
        release(connection, transition.tenant(), transition.receipt()).await?;
    }
    Ok(Swap::Moved)
}

/// Reason and provider's receipt id, where the move gives them.
fn texts(what: &Move) -> (Option<&str>, Option<&str>) {
    match what {
        Move::Commit { reason, provider_receipt_id, .. } => (Some(reason), provider_receipt_id.as_deref()),
        Move::Reject { reason, .. } | Move::Lose { reason } => (Some(reason), None),
        Move::Resolve(resolution) => (None, resolution.provider_receipt_id.as_deref()),
        Move::VerifyBySibling { .. } | Move::Undo => (None, None),
    }
}

/// What the history says of a move; none for the ordinary path, whose times are on the receipt.
fn evidence(transition: &Transition) -> Option<String> {
    match transition.what() {
        Move::Resolve(resolution) => Some(resolution.evidence.clone()),
        Move::VerifyBySibling { sibling, .. } => Some(format!("answered by {sibling}, of the same slot")),
        Move::Undo => Some("undone by a compensation".into()),
        Move::Lose { reason } => Some(reason.clone()),
        Move::Commit { reason, .. } | Move::Reject { reason, .. } => {
            (transition.from() == ReceiptState::Unknown).then(|| format!("a late answer: {reason}"))
        }
    }
}

async fn keep(
    connection: &mut PgConnection,
    transition: &Transition,
    evidence: String,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO receipt_history (tenant_id, receipt_id, id, from_state, to_state, actor, evidence)
         VALUES ($1, $2, gen_random_uuid(), $3, $4, $5, $6)",
        transition.tenant().0,
        transition.receipt().0,
        transition.from().name(),
        transition.to().name(),
        transition.by().to_string(),
        evidence,
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Lets the slot's content be sent again, once nothing of the slot may have happened.
async fn release(
    connection: &mut PgConnection,
    tenant: TenantId,
    receipt: EffectId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH slot AS (
             SELECT r.tenant_id, r.id, r.state FROM receipts m
             JOIN receipts r ON r.tenant_id = m.tenant_id AND r.lineage = m.lineage AND r.node = m.node
                 AND r.iteration = m.iteration
                 AND r.slot_label IS NOT DISTINCT FROM m.slot_label
                 AND r.slot_ordinal IS NOT DISTINCT FROM m.slot_ordinal
             WHERE m.tenant_id = $1 AND m.id = $2
         )
         UPDATE receipts r SET released = true FROM slot
         WHERE r.tenant_id = slot.tenant_id AND r.id = slot.id AND r.guarded AND NOT r.released
           AND NOT EXISTS (
             SELECT FROM slot WHERE state IN ('dispatched', 'unknown', 'committed', 'verified'))",
        tenant.0,
        receipt.0,
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

async fn state(
    connection: &mut PgConnection,
    tenant: TenantId,
    receipt: EffectId,
) -> Result<Option<ReceiptState>, StoreError> {
    let state = sqlx::query_scalar!(
        "SELECT state FROM receipts WHERE tenant_id = $1 AND id = $2",
        tenant.0,
        receipt.0,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let row = crate::error::Row { table: "receipts", id: receipt };
    state.map(|state| row.need("state", ReceiptState::from_name(&state))).transpose()
}

/// Moves the receipts of these steps that are dispatched to unknown: nobody is left who could record their answers, but
/// whoever sent them. The caller holds the steps' locks.
pub(crate) async fn lose_dispatched(
    connection: &mut PgConnection,
    tenant: TenantId,
    lineage: LineageId,
    steps: &[StepId],
    reason: &str,
) -> Result<(), StoreError> {
    let steps: Vec<Uuid> = steps.iter().map(|step| step.0).collect();
    let dispatched = sqlx::query_scalar!(
        "SELECT id FROM receipts
         WHERE tenant_id = $1 AND lineage = $2 AND step_id = ANY ($3) AND state = 'dispatched'",
        tenant.0,
        lineage.0,
        &steps,
    )
    .fetch_all(&mut *connection)
    .await?;
    lose_all(connection, tenant, dispatched, reason).await
}

/// Moves these dispatched receipts to unknown.
pub(crate) async fn lose_all(
    connection: &mut PgConnection,
    tenant: TenantId,
    dispatched: Vec<Uuid>,
    reason: &str,
) -> Result<(), StoreError> {
    for receipt in dispatched {
        let lose = Move::Lose { reason: reason.into() };
        let transition = Transition::new(tenant, receipt.into(), ReceiptState::Dispatched, Actor::Host, lose)
            .map_err(|_| StoreError::Unstorable("a dispatched receipt cannot be lost"))?;
        // Lost only to its own answer, which is better still.
        apply(connection, &transition).await?;
    }
    Ok(())
}

/// Inserts a receipt that is answered when it is first written. False if it exists already.
pub(crate) async fn insert_answered(
    connection: &mut PgConnection,
    receipt: &Receipt,
    lease: LeaseId,
) -> Result<bool, StoreError> {
    let (state, recorded) = answered(receipt)?;
    let answer = AnswerColumns::new(recorded);
    let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
    let request = &receipt.request;
    let inserted = sqlx::query!(
        "INSERT INTO receipts (
             tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_label, slot_ordinal,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash,
             content_key, idempotency_key, preview, state, lease_id, dispatched_at, answered_at,
             answer_kind, answer_status, answer_headers, answer_body, answer_truncated)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
             $22, $23,
             -- What changes something takes place here and now.
             CASE WHEN $22 = 'committed' AND $15 <> 'read-only' THEN now() END,
             now(), $24, $25, $26, $27, $28)
         ON CONFLICT (tenant_id, id) DO NOTHING",
        receipt.tenant.0,
        receipt.id.0,
        receipt.place.lineage.0,
        receipt.run.0,
        receipt.step.0,
        EPOCH.cast_signed(),
        receipt.place.node,
        &value::path_out(&receipt.place.iteration),
        slot_label,
        slot_ordinal,
        receipt.dispatch_number.cast_signed(),
        receipt.position.cast_signed(),
        receipt.attempt.cast_signed(),
        request.kind,
        request.safety.name(),
        request.connection,
        &request.destination,
        &request.request_hash,
        &request.content_key,
        request.idempotency_key,
        Exact(&request.preview) as Exact<'_>,
        state.name(),
        lease.0,
        answer.kind,
        answer.status,
        answer.headers.as_ref().map(Exact) as Option<Exact<'_>>,
        answer.body,
        answer.truncated,
    )
    .execute(&mut *connection)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

fn answered(receipt: &Receipt) -> Result<(ReceiptState, &Recorded), StoreError> {
    match &receipt.standing {
        Standing::Committed(recorded) | Standing::Rejected(recorded) => {
            Ok((receipt.standing.state(), recorded))
        }
        _ => Err(StoreError::Unstorable("a receipt without an answer was given as an answered one")),
    }
}

/// Locks every receipt of the slot that this one is in, in order of dispatch, so that of two that end neither overlooks
/// the other.
pub(crate) async fn hold_slot(
    connection: &mut PgConnection,
    tenant: TenantId,
    receipt: EffectId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT r.id FROM receipts m
         JOIN receipts r ON r.tenant_id = m.tenant_id AND r.lineage = m.lineage AND r.node = m.node
             AND r.iteration = m.iteration
             AND r.slot_label IS NOT DISTINCT FROM m.slot_label
             AND r.slot_ordinal IS NOT DISTINCT FROM m.slot_ordinal
         WHERE m.tenant_id = $1 AND m.id = $2
         ORDER BY r.dispatch_number
         FOR UPDATE OF r",
        tenant.0,
        receipt.0,
    )
    .fetch_all(&mut *connection)
    .await?;
    Ok(())
}
