//! The end of a run: once, with all its steps.

use counterfoil_domain::id::{LineageId, RunId, StepId, TenantId};
use counterfoil_domain::receipt::Actor;

use super::Cancelled;
use crate::audit::audit;
use crate::receipt::lose_dispatched;
use crate::settle::{RunEnd, RunEndState};
use crate::transaction::{Tx, begin, undo};
use crate::value::Exact;
use crate::{Store, StoreError};

/// Why a receipt is unknown whose step was cancelled while it was under way.
pub(crate) const STEP_CANCELLED: &str = "its step was cancelled before an answer was recorded";

impl Store {
    /// Cancels a run and its open steps. Their receipts stay open to resolution; an execution that is under way finds its
    /// lease gone.
    pub async fn cancel_run(
        &self,
        tenant: TenantId,
        run: RunId,
        actor: &Actor,
    ) -> Result<Cancelled, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let lineage = sqlx::query_scalar!(
            "SELECT lineage FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE",
            tenant.0,
            run.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(lineage) = lineage else {
            let ended =
                sqlx::query_scalar!("SELECT id FROM runs WHERE tenant_id = $1 AND id = $2", tenant.0, run.0,)
                    .fetch_optional(&mut *tx)
                    .await?;
            let verdict = if ended.is_some() { Cancelled::AlreadyEnded } else { Cancelled::NotFound };
            return undo(tx, verdict).await;
        };
        let end = RunEnd { state: RunEndState::Cancelled, output: None, error: None };
        end_run(&mut tx, tenant, run, lineage.into(), &end, true).await?;
        let nothing = serde_json::json!({});
        audit(&mut tx, tenant, actor, "run.cancel", Some(run.0), Some(run), &nothing).await?;
        tx.commit().await?;
        Ok(Cancelled::Done)
    }
}

/// Ends a run whose row in `open_runs` the caller has locked. Steps that it still has open are cancelled.
pub(crate) async fn end_run(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    lineage: LineageId,
    end: &RunEnd,
    has_open_steps: bool,
) -> Result<(), StoreError> {
    if has_open_steps {
        cancel_open_steps(tx, tenant, run, lineage).await?;
    }
    sqlx::query!(
        "WITH closed AS (DELETE FROM open_runs WHERE tenant_id = $1 AND run_id = $2)
         UPDATE runs SET state = $3, ended_at = now(), output = $4, error = $5
         WHERE tenant_id = $1 AND id = $2 AND state = 'open'",
        tenant.0,
        run.0,
        end.state.name(),
        end.output.as_ref().map(Exact) as Option<Exact<'_>>,
        end.error.as_ref().map(Exact) as Option<Exact<'_>>,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn cancel_open_steps(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    lineage: LineageId,
) -> Result<(), StoreError> {
    let steps = sqlx::query_scalar!(
        "SELECT id FROM open_steps WHERE tenant_id = $1 AND run_id = $2 ORDER BY id FOR UPDATE",
        tenant.0,
        run.0,
    )
    .fetch_all(&mut **tx)
    .await?;
    let steps: Vec<StepId> = steps.into_iter().map(StepId).collect();
    lose_dispatched(tx, tenant, lineage, &steps, STEP_CANCELLED).await?;
    sqlx::query!(
        "WITH gone AS (DELETE FROM open_steps WHERE tenant_id = $1 AND run_id = $2 RETURNING *)
         INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
             queued_at, started_at)
         SELECT tenant_id, run_id, id, lineage, node, iteration, 'cancelled', attempt, losses, queued_at, started_at
         FROM gone",
        tenant.0,
        run.0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
