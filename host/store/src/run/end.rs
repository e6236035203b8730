//! The end of a run: once, with all its steps.

use counterfoil_domain::id::{LineageId, Place, RunId, StepId, TenantId};
use counterfoil_domain::receipt::Actor;

use super::Cancelled;
use crate::audit::audit;
use crate::container::forget;
use crate::receipt::lose_dispatched;
use crate::transaction::{Tx, begin, undo};
use crate::value;
use crate::waiting::end_child;
use crate::worker::withdraw;
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
        cancel_open_steps(&mut tx, tenant, run, lineage.into(), Within::Run).await?;
        end_child(&mut tx, tenant, run).await?;
        sqlx::query!(
            "WITH closed AS (DELETE FROM open_runs WHERE tenant_id = $1 AND run_id = $2)
             UPDATE runs SET state = 'cancelled', ended_at = now() WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            run.0,
        )
        .execute(&mut *tx)
        .await?;
        let nothing = serde_json::json!({});
        audit(&mut tx, tenant, actor, "run.cancel", Some(run.0), Some(run), &nothing).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(Cancelled::Done)
    }
}

/// Which steps of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Within<'a> {
    /// All of them.
    Run,
    /// All but one.
    RunBut(StepId),
    /// Those inside a container.
    Container(&'a Place),
}

/// Settles steps that a run has open as cancelled, and returns how many. The caller holds the run's row in `open_runs`, so that
/// none is added meanwhile.
pub(crate) async fn cancel_open_steps(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    lineage: LineageId,
    within: Within<'_>,
) -> Result<i32, StoreError> {
    let (but, container) = match within {
        Within::Run => (None, None),
        Within::RunBut(step) => (Some(step.0), None),
        Within::Container(place) => (None, Some(place)),
    };
    let steps = sqlx::query_scalar!(
        "SELECT id FROM open_steps WHERE tenant_id = $1 AND run_id = $2 AND id IS DISTINCT FROM $3
           AND ($4::text IS NULL
             OR (starts_with(node, $4 || '/') AND iteration[1:cardinality($5::int[])] = $5))
         ORDER BY id FOR UPDATE",
        tenant.0,
        run.0,
        but,
        container.map(|place| place.node.as_str()),
        &container.map(|place| value::path_out(&place.iteration)).unwrap_or_default(),
    )
    .fetch_all(&mut **tx)
    .await?;
    let ids: Vec<StepId> = steps.iter().copied().map(StepId).collect();
    if ids.is_empty() {
        return Ok(0);
    }
    withdraw(tx, tenant, &steps).await?;
    lose_dispatched(tx, tenant, lineage, &ids, STEP_CANCELLED).await?;
    forget(tx, tenant, &steps).await?;
    sqlx::query!(
        "WITH gone AS (DELETE FROM open_steps WHERE tenant_id = $1 AND id = ANY ($2) RETURNING *)
         INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
             queued_at, started_at)
         SELECT tenant_id, run_id, id, lineage, node, iteration, 'cancelled', attempt, losses, queued_at, started_at
         FROM gone",
        tenant.0,
        &steps,
    )
    .execute(&mut **tx)
    .await?;
    Ok(i32::try_from(steps.len()).unwrap_or(i32::MAX))
}
