//! Containers that are over.

use counterfoil_domain::id::{Place, RunId, StepId, TenantId};
use uuid::Uuid;

use super::Closes;
use crate::StoreError;
use crate::run::{Within, cancel_open_steps};
use crate::transaction::Tx;
use crate::waiting::cancel_waits;

/// Ends what a container holds. Returns how many steps inside it were cancelled. The caller holds the run's lock.
pub(crate) async fn close(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    (step, place): (StepId, &Place),
    closes: Closes,
) -> Result<i32, StoreError> {
    forget(tx, tenant, &[step.0]).await?;
    match closes {
        Closes::Leaving => Ok(0),
        Closes::Cancelling => {
            cancel_open_steps(tx, tenant, run, place.lineage, Within::Container(place)).await
        }
    }
}

/// Deletes what steps held, or waited for, that are open no more.
pub(crate) async fn forget(tx: &mut Tx, tenant: TenantId, steps: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH gone AS (DELETE FROM containers WHERE tenant_id = $1 AND step_id = ANY ($2) RETURNING step_id)
         DELETE FROM container_parts p USING gone WHERE p.tenant_id = $1 AND p.step_id = gone.step_id",
        tenant.0,
        steps,
    )
    .execute(&mut **tx)
    .await?;
    cancel_waits(tx, tenant, steps).await
}
