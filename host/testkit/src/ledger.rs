//! The invariants, checked by joins over what the provider saw and what the database says.

mod calls;
mod rows;

use std::collections::BTreeMap;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, TenantId};
use serde::Serialize;
use serde_json::Value;
use sqlx::{FromRow, PgPool};
use uuid::Uuid;

pub use self::rows::{Expected, Timer};

use crate::provider::Call;

/// What the joins found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    /// Calls that the provider received and that may have changed something.
    pub calls: usize,
    /// Calls beyond those that receipts stand for: more than dispatches, or done twice at most once, or with content that
    /// an invariant allows once.
    pub duplicates: usize,
    /// Calls that took place and that no step has as a committed effect, and receipts so marked without a call.
    pub lost: usize,
    /// Receipts whose outcome is unknown now.
    pub unknown: usize,
    /// Those of them that carry a reason and that the provider's log decides.
    pub explained: usize,
    /// Receipts whose outcome was ever unknown.
    pub were_unknown: usize,
    /// Those of them that carry a reason, and of which the provider's log says what became of them.
    pub decided: usize,
    /// Receipts by state, read-only ones included.
    pub receipts: BTreeMap<String, usize>,
    /// Every broken invariant, in words.
    pub violations: Vec<Violation>,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// In words.
    pub what: String,
    /// The step that it is about, if it is about one: who held it may say how it came about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Uuid>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl Reconciled {
    fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(Violation { what: what.into(), step: None });
    }

    fn violation_of(&mut self, step: Uuid, what: impl Into<String>) {
        self.violations.push(Violation { what: what.into(), step: Some(step) });
    }

    /// Adds what was found elsewhere.
    pub fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.unknown += other.unknown;
        self.explained += other.explained;
        self.were_unknown += other.were_unknown;
        self.decided += other.decided;
        for (state, count) in other.receipts {
            *self.receipts.entry(state).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}

#[derive(Debug, FromRow)]
pub(crate) struct ReceiptRow {
    id: Uuid,
    step_id: Uuid,
    kind: String,
    state: String,
    safety: String,
    connection: Option<String>,
    idempotency_key: String,
    dispatched_at: Option<DateTime<Utc>>,
    answer_kind: Option<String>,
    reason: Option<String>,
    request_hash: Vec<u8>,
    preview: Value,
    was_unknown: bool,
    step_open: bool,
    step_settled: bool,
}

impl ReceiptRow {
    fn took_place(&self) -> bool {
        matches!(self.state.as_str(), "committed" | "verified")
    }

    fn is_open(&self) -> bool {
        matches!(self.state.as_str(), "planned" | "prepared" | "dispatched" | "unknown")
    }

    /// Whether a call may stand for it: it was dispatched, and it is not known that nothing was sent.
    fn may_be_called(&self) -> bool {
        let never_sent = matches!(self.answer_kind.as_deref(), Some("not-sent" | "denied"));
        self.dispatched_at.is_some() && !(self.state == "rejected" && never_sent)
    }
}

/// Joins the log of the one provider with the whole database.
///
/// # Errors
/// The database cannot be read.
pub async fn reconcile(pool: &PgPool, calls: &[Call]) -> anyhow::Result<Reconciled> {
    let mut found = reconcile_calls(pool, None, calls).await?;
    rows::judge(&mut found, pool, &Expected::default()).await?;
    Ok(found)
}

/// Joins the logs of several tenants' providers with the whole database, of which more is expected.
///
/// # Errors
/// The database cannot be read.
pub async fn reconcile_tenants(
    pool: &PgPool,
    tenants: &[(TenantId, Vec<Call>)],
    expected: &Expected<'_>,
) -> anyhow::Result<Reconciled> {
    let mut found = Reconciled::default();
    for (tenant, calls) in tenants {
        found.merge(reconcile_calls(pool, Some(*tenant), calls).await?);
    }
    rows::judge(&mut found, pool, expected).await?;
    Ok(found)
}

async fn reconcile_calls(
    pool: &PgPool,
    tenant: Option<TenantId>,
    calls: &[Call],
) -> anyhow::Result<Reconciled> {
    let receipts: Vec<ReceiptRow> = sqlx::query_as(
        "SELECT id, step_id, kind, state, safety, connection, idempotency_key, dispatched_at, answer_kind, reason, request_hash,
                preview,
                state = 'unknown' OR EXISTS (
                    SELECT FROM receipt_history h
                    WHERE h.tenant_id = r.tenant_id AND h.receipt_id = r.id AND h.to_state = 'unknown') AS was_unknown,
                EXISTS (SELECT FROM open_steps s WHERE s.tenant_id = r.tenant_id AND s.id = r.step_id) AS step_open,
                EXISTS (SELECT FROM settled_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.run_id
                                                     AND s.id = r.step_id) AS step_settled
         FROM receipts r WHERE $1::uuid IS NULL OR tenant_id = $1
         ORDER BY dispatch_number",
    )
    .bind(tenant.map(|tenant| tenant.0))
    .fetch_all(pool)
    .await
    .context("reading receipts")?;
    let mut found = Reconciled::default();
    for receipt in &receipts {
        *found.receipts.entry(receipt.state.clone()).or_default() += 1;
        judge_receipt(&mut found, receipt);
    }
    calls::judge(&mut found, &receipts, calls);
    Ok(found)
}

/// What a receipt says by itself.
fn judge_receipt(found: &mut Reconciled, receipt: &ReceiptRow) {
    let id = EffectId(receipt.id);
    let has_reason = receipt.reason.as_deref().is_some_and(|reason| !reason.is_empty());
    if receipt.state == "unknown" {
        found.unknown += 1;
        found.explained += usize::from(has_reason);
    }
    if receipt.was_unknown && !has_reason {
        found.violation_of(receipt.step_id, format!("{id} is or was unknown without a reason"));
    }
    if receipt.state == "dispatched" && !receipt.step_open {
        found.violation_of(receipt.step_id, format!("{id} is dispatched and its step has ended"));
    }
    if receipt.took_place() && !receipt.step_open && !receipt.step_settled {
        found.violation_of(receipt.step_id, format!("{id} is {} and belongs to no step", receipt.state));
    }
}

/// The run whose input has this field, if one was admitted.
///
/// # Errors
/// The database cannot be read.
pub async fn run_with_input(pool: &PgPool, field: &str, value: &str) -> anyhow::Result<Option<Uuid>> {
    let run = sqlx::query_scalar("SELECT id FROM runs WHERE input ->> $1 = $2")
        .bind(field)
        .bind(value)
        .fetch_optional(pool)
        .await
        .context("reading runs")?;
    Ok(run)
}

/// Ends the holds of hosts that ask blocks what became of their effects, as if their time had come: how many there were.
///
/// # Errors
/// The database cannot be reached.
pub async fn end_asking(pool: &PgPool) -> anyhow::Result<u64> {
    let ended = sqlx::query("UPDATE verifications SET due_at = now() WHERE hold_id IS NOT NULL")
        .execute(pool)
        .await
        .context("ending holds")?;
    Ok(ended.rows_affected())
}
