//! The statement before the first byte: a receipt becomes durable as dispatched, or the effect is not sent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::EffectId;
use counterfoil_domain::receipt::identity::EPOCH;
use counterfoil_domain::receipt::{Receipt, ReceiptState, Transition};
use sqlx::{PgConnection, PgPool};

use super::row::slot_columns;
use super::{Dispatch, DispatchVerdict, apply};
use crate::error::Row;
use crate::settle::{OwnWrite, Swap, Written, write};
use crate::step::Fence;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError};

mod many;

pub(crate) use self::many::{Flushed, flush_dispatches};

/// A receipt that stood in the way may be released before it is asked which one it was.
const TRIES_MAX: usize = 3;

/// A receipt that shall be durable as dispatched.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    fence: Fence,
    receipt: Receipt,
    is_guarded: bool,
    absence_known_after: Duration,
    connection_set_at: Option<DateTime<Utc>>,
}

impl Wanted {
    fn new(dispatch: &Dispatch<'_>) -> Self {
        Self {
            fence: *dispatch.fence,
            receipt: dispatch.receipt.clone(),
            is_guarded: dispatch.guard.is_some(),
            absence_known_after: dispatch.absence_known_after,
            connection_set_at: dispatch.connection_set_at,
        }
    }
}

impl Store {
    /// Makes a receipt durable as dispatched, if the step is still this execution's, the slot is as it was expected, the
    /// connection as it was when the call was judged, and no other receipt guards the same content. Of two contenders for guarded content exactly one is told to send.
    pub async fn dispatch(&self, dispatch: &Dispatch<'_>) -> Result<DispatchVerdict, StoreError> {
        let is_first = dispatch.receipt.dispatch_number == 0
            && dispatch.expected.is_empty()
            && dispatch.lose.is_empty()
            && dispatch.writes.is_empty();
        let verdict = if is_first {
            // A second receipt of a slot's first number has the same id, so that there is nothing to look at before.
            if let Some(at) = self.lane().dispatches.submit(Wanted::new(dispatch)).await? {
                DispatchVerdict::Dispatched { at }
            } else {
                let mut connection = self.pool().acquire().await?;
                send_or_say_why(&mut connection, dispatch).await?
            }
        } else {
            self.dispatch_after_others(dispatch).await?
        };
        if let DispatchVerdict::Duplicate { held_by } = verdict {
            keep_duplicate(self.pool(), dispatch, held_by).await?;
        }
        Ok(verdict)
    }

    async fn dispatch_after_others(&self, dispatch: &Dispatch<'_>) -> Result<DispatchVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let verdict = dispatch_in(&mut tx, dispatch).await?;
        if !matches!(verdict, DispatchVerdict::Dispatched { .. }) {
            return undo(tx, verdict).await;
        }
        tx.commit().await?;
        Ok(verdict)
    }
}

/// Does so in a transaction, which must be rolled back unless the receipt is dispatched in it.
pub(crate) async fn dispatch_in(tx: &mut Tx, dispatch: &Dispatch<'_>) -> Result<DispatchVerdict, StoreError> {
    if !hold_for_dispatch(tx, dispatch.fence).await? {
        return Ok(DispatchVerdict::Stale);
    }
    for own in dispatch.writes {
        match write(tx, dispatch.fence, own).await? {
            Written::Done => {}
            Written::Moved => return Ok(DispatchVerdict::Moved),
            Written::Exists => return Ok(DispatchVerdict::Rerun),
        }
    }
    for transition in dispatch.lose {
        if let Swap::Lost { .. } = apply(tx, transition).await? {
            return Ok(DispatchVerdict::Moved);
        }
    }
    if slot(tx, dispatch.receipt).await? != expected(dispatch) {
        return Ok(DispatchVerdict::Moved);
    }
    send_or_say_why(tx, dispatch).await
}

/// Keeps which receipt stood in the way.
pub(crate) async fn keep_duplicate(
    pool: &PgPool,
    dispatch: &Dispatch<'_>,
    held_by: EffectId,
) -> Result<(), StoreError> {
    let receipt = dispatch.receipt;
    sqlx::query!(
        "INSERT INTO invariant_results
             (tenant_id, id, invariant_id, run_id, step_id, content_key, held_by)
         VALUES ($1, gen_random_uuid(), $2, $3, $4, $5, $6)",
        receipt.tenant.0,
        dispatch.guard.unwrap_or_default(),
        receipt.run.0,
        receipt.step.0,
        &receipt.request.content_key,
        held_by.0,
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Locks the step against whoever would settle, block or resume it, and not against its owner's other dispatches.
async fn hold_for_dispatch(connection: &mut PgConnection, fence: &Fence) -> Result<bool, StoreError> {
    let held = sqlx::query!(
        "SELECT id FROM open_steps
         WHERE tenant_id = $1 AND id = $2 AND lease_id = $3 AND vt > now()
         FOR SHARE",
        fence.tenant.0,
        fence.step.0,
        fence.lease.0,
    )
    .fetch_optional(&mut *connection)
    .await?;
    Ok(held.is_some())
}

/// The slot as the decision found it, with what this transaction has moved since.
fn expected(dispatch: &Dispatch<'_>) -> Vec<(EffectId, ReceiptState)> {
    let answers = dispatch.writes.iter().filter_map(|own| match own {
        OwnWrite::Answer(transition) => Some(transition),
        OwnWrite::ReadOnly(_) => None,
    });
    let moves: Vec<&Transition> = answers.chain(dispatch.lose).collect();
    let now = |(id, seen): &(EffectId, ReceiptState)| {
        let since = moves.iter().find(|since| since.receipt() == *id && since.from() == *seen);
        (*id, since.map_or(*seen, |since| since.to()))
    };
    dispatch.expected.iter().map(now).collect()
}

/// Every receipt of the slot, in order of dispatch.
async fn slot(
    connection: &mut PgConnection,
    receipt: &Receipt,
) -> Result<Vec<(EffectId, ReceiptState)>, StoreError> {
    let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
    let receipts = sqlx::query!(
        "SELECT id, state FROM receipts
         WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4
           AND slot_label IS NOT DISTINCT FROM $5 AND slot_ordinal IS NOT DISTINCT FROM $6
         ORDER BY dispatch_number",
        receipt.tenant.0,
        receipt.place.lineage.0,
        receipt.place.node,
        &value::path_out(&receipt.place.iteration),
        slot_label,
        slot_ordinal,
    )
    .fetch_all(&mut *connection)
    .await?;
    receipts
        .into_iter()
        .map(|found| {
            let row = Row { table: "receipts", id: EffectId(found.id) };
            Ok((row.id, row.need("state", ReceiptState::from_name(&found.state))?))
        })
        .collect()
}

async fn send_or_say_why(
    connection: &mut PgConnection,
    dispatch: &Dispatch<'_>,
) -> Result<DispatchVerdict, StoreError> {
    let wanted = Wanted::new(dispatch);
    for _ in 0..TRIES_MAX {
        if let Some(at) = insert_dispatched(connection, &wanted).await? {
            return Ok(DispatchVerdict::Dispatched { at });
        }
        if let Some(verdict) = why_not(connection, dispatch).await? {
            return Ok(verdict);
        }
    }
    Ok(DispatchVerdict::Moved)
}

/// Inserts the receipt, fenced on the lease. None if the step is not held, the connection has changed, the receipt exists, or
/// its content is guarded.
async fn insert_dispatched(
    connection: &mut PgConnection,
    wanted: &Wanted,
) -> Result<Option<DateTime<Utc>>, StoreError> {
    let receipt = &wanted.receipt;
    let request = &receipt.request;
    let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
    let dispatched_at = sqlx::query_scalar!(
        // The step is locked so that a settle, which looks for open receipts after it has locked the step, either sees
        // this one or has taken the lease away before.
        r#"WITH step AS (
             SELECT lease_id FROM open_steps
             WHERE tenant_id = $1 AND id = $5 AND lease_id = $2 AND vt > now()
             FOR SHARE
         )
         INSERT INTO receipts (
             tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_label, slot_ordinal,
             dispatch_number, position, attempt, kind, safety, connection, destination, request_hash,
             content_key, idempotency_key, preview, state, lease_id, guarded, dispatched_at, absence_known_at)
         SELECT $1, $3, $4, $6, $5, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
             'dispatched', step.lease_id,
             -- A re-send does not guard while an older receipt of its slot guards the same: it would stand in its own way.
             $23 AND NOT EXISTS (
                 SELECT FROM receipts older
                 WHERE older.tenant_id = $1 AND older.content_key = $20 AND older.guarded AND NOT older.released
                   AND older.lineage = $4 AND older.node = $8 AND older.iteration = $9
                   AND older.slot_label IS NOT DISTINCT FROM $10
                   AND older.slot_ordinal IS NOT DISTINCT FROM $11),
             now(), now() + $24
         FROM step
         WHERE $25::timestamptz IS NULL OR EXISTS (
             SELECT FROM connections c WHERE c.tenant_id = $1 AND c.name = $17 AND c.updated_at = $25)
         ON CONFLICT DO NOTHING
         RETURNING dispatched_at AS "dispatched_at!""#,
        receipt.tenant.0,
        wanted.fence.lease.0,
        receipt.id.0,
        receipt.place.lineage.0,
        receipt.step.0,
        receipt.run.0,
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
        wanted.is_guarded,
        value::interval(wanted.absence_known_after),
        wanted.connection_set_at,
    )
    .fetch_optional(&mut *connection)
    .await?;
    Ok(dispatched_at)
}

/// Why nothing was inserted. A statement of its own: the row that stood in the way may have been committed after the first
/// one began, which then cannot see it. None if nothing stands in the way any more.
async fn why_not(
    connection: &mut PgConnection,
    dispatch: &Dispatch<'_>,
) -> Result<Option<DispatchVerdict>, StoreError> {
    let receipt = dispatch.receipt;
    let found = sqlx::query!(
        r#"SELECT
             EXISTS (
                 SELECT FROM open_steps
                 WHERE tenant_id = $1 AND id = $2 AND lease_id = $3 AND vt > now()) AS "is_held!",
             same.id AS "same?",
             same.lineage AS "same_lineage?",
             same.node AS "same_node?",
             same.iteration AS "same_iteration?",
             same.slot_label, same.slot_ordinal,
             same.dispatch_number AS "same_number?",
             $6::timestamptz IS NULL OR EXISTS (
                 SELECT FROM connections c
                 WHERE c.tenant_id = $1 AND c.name = $7 AND c.updated_at = $6) AS "is_as_judged!",
             (SELECT id FROM receipts
              WHERE tenant_id = $1 AND content_key = $5 AND guarded AND NOT released) AS guard
         FROM (SELECT) AS one
         LEFT JOIN receipts same ON same.tenant_id = $1 AND same.id = $4"#,
        receipt.tenant.0,
        dispatch.fence.step.0,
        dispatch.fence.lease.0,
        receipt.id.0,
        &receipt.request.content_key,
        dispatch.connection_set_at,
        receipt.request.connection,
    )
    .fetch_one(&mut *connection)
    .await?;
    if !found.is_held {
        return Ok(Some(DispatchVerdict::Stale));
    }
    if found.same.is_some() {
        let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
        let iteration = value::path_out(&receipt.place.iteration);
        let differs = [
            ("lineage", found.same_lineage != Some(receipt.place.lineage.0)),
            ("node", found.same_node.as_ref() != Some(&receipt.place.node)),
            ("iteration", found.same_iteration != Some(iteration)),
            ("slot", (found.slot_label.as_deref(), found.slot_ordinal) != (slot_label, slot_ordinal)),
            ("dispatch number", found.same_number != Some(receipt.dispatch_number.cast_signed())),
        ];
        return match differs.into_iter().find(|(_, differs)| *differs) {
            Some((what, _)) => Err(StoreError::IdentityMismatch { receipt: receipt.id, what }),
            None => Ok(Some(DispatchVerdict::Moved)),
        };
    }
    if !found.is_as_judged {
        return Ok(Some(DispatchVerdict::ConnectionChanged));
    }
    Ok(found.guard.map(|held_by| DispatchVerdict::Duplicate { held_by: held_by.into() }))
}
