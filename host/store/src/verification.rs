//! Blocks that are to be asked what became of their effects: when, by whom, and what they said last.

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{Digest, EffectId, TenantId, WorkflowId};
use counterfoil_domain::receipt::verification::{Next, first_delay};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::Row;
use crate::value;
use crate::{Store, StoreError};

/// What a block was asked about one of its receipts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// How often.
    pub asked: u32,
    /// When it was asked last.
    pub asked_at: Option<DateTime<Utc>>,
    /// What it said last, where that settled nothing.
    pub said: Option<String>,
    /// A host asks it now.
    pub is_being_asked: bool,
    /// When it is asked next; none while it is being asked, and if it is left to a person.
    pub next_at: Option<DateTime<Utc>>,
}

/// What a host asks for.
#[derive(Debug, Clone)]
pub struct AskRequest {
    /// Time for one asking: when its host dies, others ask after that.
    pub hold: Duration,
    /// Receipts to ask about at most.
    pub room: u32,
    /// Those of one tenant at most.
    pub per_tenant_max: u32,
    /// Blocks that this host cannot run; it leaves them to the others.
    pub without: Vec<Digest>,
}

/// A receipt whose block one host is to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldVerification {
    /// Whose.
    pub tenant: TenantId,
    /// Which receipt.
    pub receipt: EffectId,
    /// The block that sent it.
    pub block: Digest,
    /// Proof of ownership; names this asking and no other.
    pub hold: Uuid,
    /// How often it has been asked, this time included.
    pub asked: u32,
    /// When this asking began: nothing that is found out during it was looked for before.
    pub asked_at: DateTime<Utc>,
    /// The workflow that it was sent for.
    pub workflow: WorkflowId,
    /// When the step that sent it first started, or, if the step has ended, when it was sent.
    pub started_at: DateTime<Utc>,
}

impl Store {
    /// Takes receipts whose blocks are to be asked now, those that wait longest first, under a hold each.
    pub async fn hold_verifications(
        &self,
        request: &AskRequest,
    ) -> Result<Vec<HeldVerification>, StoreError> {
        let without: Vec<Vec<u8>> = request.without.iter().map(|digest| digest.0.to_vec()).collect();
        let rows = sqlx::query!(
            // From each tenant's rows to the next tenant's, so that one with many costs the others nothing.
            r#"WITH RECURSIVE tenant AS (
                 (SELECT tenant_id FROM verifications ORDER BY tenant_id LIMIT 1)
                 UNION ALL
                 SELECT next.tenant_id FROM tenant CROSS JOIN LATERAL (
                     SELECT tenant_id FROM verifications WHERE tenant_id > tenant.tenant_id
                     ORDER BY tenant_id LIMIT 1
                 ) next
             ), due AS (
                 SELECT v.tenant_id, v.receipt_id
                 FROM tenant CROSS JOIN LATERAL (
                     SELECT tenant_id, receipt_id, due_at FROM verifications
                     WHERE tenant_id = tenant.tenant_id AND due_at <= now() AND block <> ALL ($4::bytea[])
                     ORDER BY due_at
                     LIMIT $3
                     FOR UPDATE SKIP LOCKED
                 ) v
                 ORDER BY v.due_at
                 LIMIT $2
             )
             UPDATE verifications v
             SET hold_id = gen_random_uuid(), due_at = now() + $1, asked = v.asked + 1, asked_at = now()
             FROM due
             JOIN receipts r ON r.tenant_id = due.tenant_id AND r.id = due.receipt_id
             JOIN runs ON runs.tenant_id = r.tenant_id AND runs.id = r.run_id
             LEFT JOIN open_steps s ON s.tenant_id = r.tenant_id AND s.id = r.step_id
             WHERE v.tenant_id = due.tenant_id AND v.receipt_id = due.receipt_id
             RETURNING v.tenant_id, v.receipt_id, v.block, v.asked, v.hold_id AS "hold_id!", v.asked_at AS "asked_at!",
                 runs.workflow_id, COALESCE(s.first_started_at, r.dispatched_at) AS "started_at!""#,
            value::interval(request.hold),
            i64::from(request.room),
            i64::from(request.per_tenant_max),
            &without,
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|held| {
                let row = Row { table: "verifications", id: EffectId(held.receipt_id) };
                Ok(HeldVerification {
                    tenant: held.tenant_id.into(),
                    receipt: row.id,
                    block: value::digest(&row, "block", &held.block)?,
                    hold: held.hold_id,
                    asked: value::count(&row, "asked", held.asked)?,
                    asked_at: held.asked_at,
                    workflow: held.workflow_id.into(),
                    started_at: held.started_at,
                })
            })
            .collect()
    }

    /// Lets a receipt be asked about again as `next` says, and keeps what was said now. False if the hold has run out and
    /// another host asks, or the receipt is not unknown any more.
    pub async fn ask_again(
        &self,
        held: &HeldVerification,
        next: Next,
        said: &str,
    ) -> Result<bool, StoreError> {
        let (after, at, counts) = match next {
            Next::After(delay) => (Some(value::interval(delay)), None, true),
            Next::At(at) => (None, Some(at), false),
            Next::HandBack(delay) => (Some(value::interval(delay)), None, false),
            Next::Person => (None, None, true),
        };
        let put_off = sqlx::query!(
            "UPDATE verifications
             SET hold_id = NULL, due_at = COALESCE(now() + $4::interval, $5, 'infinity'),
                 asked = asked - (NOT $6::bool)::int, said = $7
             WHERE tenant_id = $1 AND receipt_id = $2 AND hold_id = $3",
            held.tenant.0,
            held.receipt.0,
            held.hold,
            after,
            at,
            counts,
            said,
        )
        .execute(self.pool())
        .await?;
        Ok(put_off.rows_affected() == 1)
    }

    pub(crate) async fn verification(
        &self,
        tenant: TenantId,
        receipt: EffectId,
    ) -> Result<Option<Verification>, StoreError> {
        let found = sqlx::query!(
            r#"SELECT asked, asked_at, said, hold_id IS NOT NULL AS "is_being_asked!",
                 CASE WHEN hold_id IS NULL THEN NULLIF(due_at, 'infinity') END AS next_at
             FROM verifications WHERE tenant_id = $1 AND receipt_id = $2"#,
            tenant.0,
            receipt.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let row = Row { table: "verifications", id: receipt };
        found
            .map(|found| {
                Ok(Verification {
                    asked: value::count(&row, "asked", found.asked)?,
                    asked_at: found.asked_at,
                    said: found.said,
                    is_being_asked: found.is_being_asked,
                    next_at: found.next_at,
                })
            })
            .transpose()
    }
}

/// Has the block of a receipt that has become unknown asked about it, if it can be asked. The receipt's step is open:
/// none ends while a receipt of it is dispatched.
pub(crate) async fn begin(
    connection: &mut PgConnection,
    tenant: TenantId,
    receipt: EffectId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO verifications (tenant_id, receipt_id, block, due_at)
         SELECT r.tenant_id, r.id, c.digest, now() + $3
         FROM receipts r
         JOIN open_steps s ON s.tenant_id = r.tenant_id AND s.id = r.step_id
         JOIN components c ON c.tenant_id = s.tenant_id AND c.digest = s.block
         WHERE r.tenant_id = $1 AND r.id = $2 AND c.verifies",
        tenant.0,
        receipt.0,
        value::interval(first_delay()),
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Has nobody asked any more: the receipt is not unknown any longer.
pub(crate) async fn end(
    connection: &mut PgConnection,
    tenant: TenantId,
    receipt: EffectId,
) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM verifications WHERE tenant_id = $1 AND receipt_id = $2", tenant.0, receipt.0,)
        .execute(&mut *connection)
        .await?;
    Ok(())
}
