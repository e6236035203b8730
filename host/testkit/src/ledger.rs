//! The invariants, checked by joins over what the provider saw and what the database says.

use std::collections::BTreeMap;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use counterfoil_domain::id::EffectId;
use serde_json::Value;
use sqlx::{FromRow, PgPool};
use uuid::Uuid;

use crate::provider::Call;

/// Clocks of one machine, read by two processes and kept in milliseconds.
const CLOCK_SLACK_MS: i64 = 2;

/// What the joins found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Calls that the provider received and that may have changed something.
    pub calls: usize,
    /// Calls beyond the first for a receipt.
    pub duplicates: usize,
    /// Calls that no settled or open step has as a committed effect, and receipts so marked without a call.
    pub lost: usize,
    /// Receipts whose outcome is unknown.
    pub unknown: usize,
    /// Those of them that carry a reason and that the provider's log decides.
    pub explained: usize,
    /// Every broken invariant, in words.
    pub violations: Vec<String>,
}

#[derive(Debug, FromRow)]
struct ReceiptRow {
    id: Uuid,
    state: String,
    safety: String,
    idempotency_key: String,
    dispatched_at: Option<DateTime<Utc>>,
    reason: Option<String>,
    preview: Value,
    step_open: bool,
    step_settled: bool,
}

/// Read whole by `Debug`, for the violation that it makes.
#[derive(Debug, FromRow)]
#[expect(dead_code, reason = "`node` is read by Debug")]
struct StuckRow {
    node: String,
    wait: String,
    held: bool,
    due_in_seconds: Option<f64>,
    open_outcomes: i64,
}

/// Joins the provider's log with the database.
///
/// # Errors
/// The database cannot be read.
pub async fn reconcile(pool: &PgPool, calls: &[Call]) -> anyhow::Result<Reconciled> {
    let receipts: Vec<ReceiptRow> = sqlx::query_as(
        "SELECT id, state, safety, idempotency_key, dispatched_at, reason, preview,
                EXISTS (SELECT 1 FROM open_steps s WHERE s.tenant_id = r.tenant_id AND s.id = r.step_id) AS step_open,
                EXISTS (SELECT 1 FROM settled_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.run_id
                                                       AND s.id = r.step_id) AS step_settled
         FROM receipts r",
    )
    .fetch_all(pool)
    .await
    .context("reading receipts")?;
    let mut found = Reconciled::default();
    let mut by_key: BTreeMap<&str, Vec<&ReceiptRow>> = BTreeMap::new();
    for receipt in receipts.iter().filter(|receipt| receipt.safety != "read-only") {
        by_key.entry(&receipt.idempotency_key).or_default().push(receipt);
    }
    let mut calls_by_key: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls.iter().filter(|call| !matches!(call.method.as_str(), "GET" | "HEAD")) {
        found.calls += 1;
        match call.idempotency_key() {
            Some(key) => calls_by_key.entry(key).or_default().push(call),
            None => found.violations.push(format!("call {} to {} carries no key", call.seq, call.path)),
        }
    }
    for (key, calls) in &calls_by_key {
        match by_key.get(key) {
            None => {
                found.lost += calls.len();
                found.duplicates += calls.len() - 1;
                found.violations.push(format!("{} calls under {key} have no receipt", calls.len()));
            }
            Some(receipts) => judge_calls(&mut found, key, calls, receipts),
        }
    }
    for receipt in receipts.iter().filter(|receipt| receipt.safety != "read-only") {
        judge_receipt(&mut found, receipt, calls_by_key.get(receipt.idempotency_key.as_str()));
    }
    judge_waiting(&mut found, pool).await?;
    Ok(found)
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

/// At most one call a receipt, after it was dispatched, for what it says was sent.
fn judge_calls(found: &mut Reconciled, key: &str, calls: &[&Call], receipts: &[&ReceiptRow]) {
    let resendable = receipts.iter().any(|receipt| receipt.safety == "idempotent");
    if calls.len() > 1 && !resendable {
        found.duplicates += calls.len() - 1;
        found.violations.push(format!("{} calls under {key}", calls.len()));
    }
    for call in calls {
        let received_ms = i64::try_from(call.received_at_ms).unwrap_or(i64::MAX);
        let dispatched_first = receipts.iter().any(|receipt| {
            receipt.dispatched_at.is_some_and(|at| at.timestamp_millis() <= received_ms + CLOCK_SLACK_MS)
        });
        if !dispatched_first {
            found.violations.push(format!("call {} came before its receipt {key} was dispatched", call.seq));
        }
        let same_request = receipts.iter().any(|receipt| {
            receipt.preview["body"] == call.body.as_str()
                && receipt.preview["method"] == call.method.as_str()
                && receipt.preview["url"].as_str().is_some_and(|url| url.contains(&call.path))
        });
        if !same_request {
            found.violations.push(format!("call {} is not what its receipt {key} says", call.seq));
        }
    }
}

/// A committed receipt has its call and its step; an unknown one has a reason.
fn judge_receipt(found: &mut Reconciled, receipt: &ReceiptRow, calls: Option<&Vec<&Call>>) {
    let id = EffectId(receipt.id);
    let called = calls.is_some_and(|calls| !calls.is_empty());
    match receipt.state.as_str() {
        "committed" | "verified" => {
            if !called {
                found.lost += 1;
                found.violations.push(format!("{id} is {} and the provider saw no call", receipt.state));
            }
            if !receipt.step_open && !receipt.step_settled {
                found.violations.push(format!("{id} is {} and belongs to no step", receipt.state));
            }
        }
        "unknown" => {
            found.unknown += 1;
            if receipt.reason.as_deref().is_some_and(|reason| !reason.is_empty()) {
                found.explained += 1;
            } else {
                found.violations.push(format!("{id} is unknown without a reason"));
            }
        }
        "dispatched" if !receipt.step_open => {
            found.violations.push(format!("{id} is dispatched and its step has ended"));
        }
        "abandoned" | "rejected" | "dispatched" | "compensated" | "planned" | "prepared" => {}
        other => found.violations.push(format!("{id} is {other}")),
    }
}

/// Nothing waits that nothing will wake.
async fn judge_waiting(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let stuck: Vec<StuckRow> = sqlx::query_as(
        "SELECT node, wait, lease_id IS NOT NULL AS held,
                CASE WHEN vt = 'infinity' THEN NULL ELSE extract(epoch FROM vt - now())::float8 END AS due_in_seconds,
                (SELECT count(*) FROM receipts r WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration AND r.state = 'unknown') AS open_outcomes
         FROM open_steps s",
    )
    .fetch_all(pool)
    .await
    .context("reading open steps")?;
    for step in stuck {
        let woken = match step.wait.as_str() {
            "blocked" => step.open_outcomes > 0,
            _ => step.due_in_seconds.is_some(),
        };
        if !woken {
            found.violations.push(format!("nothing will wake {step:?}"));
        }
        if step.held && step.due_in_seconds.is_none() {
            found.violations.push(format!("a lease that never ends: {step:?}"));
        }
    }
    let orphans: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM runs r WHERE r.state = 'open'
           AND NOT EXISTS (SELECT 1 FROM open_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id)",
    )
    .fetch_one(pool)
    .await
    .context("reading runs")?;
    if orphans > 0 {
        found.violations.push(format!("{orphans} runs are open and have nothing to do next"));
    }
    Ok(())
}
