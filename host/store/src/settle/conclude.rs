//! A step that settles, and its run with it.

use super::{RunEnd, RunEndState, Settlement};
use crate::StoreError;
use crate::receipt::lose_dispatched;
use crate::run::{STEP_CANCELLED, Within, cancel_open_steps};
use crate::transaction::Tx;
use crate::value::Exact;

/// Moves the step to the settled ones and ends the run, with whatever it has open besides. False if a receipt of
/// the step's place has no answer; then nothing must be committed.
pub(super) async fn conclude(
    tx: &mut Tx,
    settlement: &Settlement,
    end: &RunEnd,
    open_steps: i32,
) -> Result<bool, StoreError> {
    let (tenant, run, own) = (settlement.fence.tenant, settlement.run, settlement.fence.step);
    let is_cancelled = end.state == RunEndState::Cancelled;
    if is_cancelled {
        lose_dispatched(tx, tenant, settlement.lineage, &[own], STEP_CANCELLED).await?;
    }
    if open_steps > 1 {
        cancel_open_steps(tx, tenant, run, settlement.lineage, Within::RunBut(own)).await?;
    }
    let settled = &settlement.settled;
    let concluded = sqlx::query!(
        r#"WITH gone AS (
             DELETE FROM open_steps s
             WHERE s.tenant_id = $1 AND s.id = $2 AND ($3 OR NOT EXISTS (
                 SELECT FROM receipts r
                 WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration
                   AND r.state IN ('dispatched', 'unknown')))
             RETURNING *
         ), settled AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output, error, choice, logs, queued_at, started_at)
             SELECT tenant_id, run_id, id, lineage, node, iteration, $4, attempt, losses,
                 $5::json, $6::json, $7, $8::json, queued_at, started_at
             FROM gone
         ), closed AS (
             DELETE FROM open_runs r USING gone WHERE r.tenant_id = gone.tenant_id AND r.run_id = gone.run_id
         )
         UPDATE runs r SET state = $9, ended_at = now(), output = $10, error = $11
         FROM gone WHERE r.tenant_id = gone.tenant_id AND r.id = gone.run_id AND r.state = 'open'"#,
        tenant.0,
        own.0,
        is_cancelled,
        settled.state.name(),
        settled.output.as_ref().map(Exact) as Option<Exact<'_>>,
        settled.error.as_ref().map(Exact) as Option<Exact<'_>>,
        settled.choice,
        settlement.logs.as_ref().map(Exact) as Option<Exact<'_>>,
        end.state.name(),
        end.output.as_ref().map(Exact) as Option<Exact<'_>>,
        end.error.as_ref().map(Exact) as Option<Exact<'_>>,
    )
    .execute(&mut **tx)
    .await?;
    Ok(concluded.rows_affected() == 1)
}
