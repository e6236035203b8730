//! The locks of a settlement.

use counterfoil_domain::id::EffectId;
use counterfoil_domain::receipt::{Move, ReceiptState, Recorded, Transition};

use super::{OwnWrite, Settlement};
use crate::StoreError;
use crate::receipt::AnswerColumns;
use crate::transaction::Tx;
use crate::value::Exact;

/// What is known of a step once it is locked.
pub(super) struct Held {
    /// Steps that its run has open, itself included.
    pub(super) open_steps: i32,
    /// The first of the writes is done.
    pub(super) is_committed: bool,
}

/// Locks the run and then the step. None if the step is not this execution's.
///
/// In the commonest case, one effect that took place, its answer is written on the way.
pub(super) async fn hold_with_run(tx: &mut Tx, settlement: &Settlement) -> Result<Option<Held>, StoreError> {
    let commit = settlement.writes.first().and_then(plain_commit);
    let answer = commit.map(|commit| AnswerColumns::new(commit.recorded)).unwrap_or_default();
    let held = sqlx::query!(
        // The run's lock is taken where its CTE is read, the step's when the join is done.
        r#"WITH run AS MATERIALIZED (
             SELECT tenant_id, run_id, open_steps FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE
         ), step AS MATERIALIZED (
             SELECT run.open_steps FROM run
             JOIN open_steps s ON s.tenant_id = run.tenant_id AND s.run_id = run.run_id
             WHERE s.tenant_id = $1 AND s.id = $3 AND s.lease_id = $4
             FOR UPDATE OF s
         ), answered AS (
             UPDATE receipts r SET state = 'committed', answered_at = now(), answer_kind = $6, answer_status = $7,
                 answer_headers = $8, answer_body = $9, answer_truncated = $10, reason = $11,
                 provider_receipt_id = $12
             FROM step WHERE r.tenant_id = $1 AND r.id = $5 AND r.state = 'dispatched'
             RETURNING r.id
         )
         SELECT open_steps, EXISTS (SELECT FROM answered) AS "is_committed!" FROM step"#,
        settlement.fence.tenant.0,
        settlement.run.0,
        settlement.fence.step.0,
        settlement.fence.lease.0,
        commit.map(|commit| commit.receipt.0),
        answer.kind,
        answer.status,
        answer.headers.as_ref().map(Exact) as Option<Exact<'_>>,
        answer.body,
        answer.truncated,
        commit.map(|commit| commit.reason),
        commit.and_then(|commit| commit.provider_receipt_id),
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(held.map(|held| Held { open_steps: held.open_steps, is_committed: held.is_committed }))
}

/// An answer whose receipt goes from dispatched to committed: no history, no siblings, no guard to be released.
#[derive(Clone, Copy)]
pub(super) struct PlainCommit<'a> {
    pub(super) receipt: EffectId,
    pub(super) recorded: &'a Recorded,
    pub(super) reason: &'a str,
    pub(super) provider_receipt_id: Option<&'a str>,
}

pub(super) fn plain_commit(own: &OwnWrite) -> Option<PlainCommit<'_>> {
    let OwnWrite::Answer(transition) = own else { return None };
    PlainCommit::of(transition)
}

impl<'a> PlainCommit<'a> {
    pub(super) fn of(transition: &'a Transition) -> Option<Self> {
        let Move::Commit { recorded, provider_receipt_id, reason } = transition.what() else { return None };
        (transition.from() == ReceiptState::Dispatched).then(|| Self {
            receipt: transition.receipt(),
            recorded,
            reason,
            provider_receipt_id: provider_receipt_id.as_deref(),
        })
    }
}
