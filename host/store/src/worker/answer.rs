//! What a worker says of its task.

use counterfoil_domain::id::{EffectId, StepId, TenantId};
use counterfoil_domain::receipt::resolution::siblings;
use counterfoil_domain::receipt::task::{Said, TaskOver, answer};
use uuid::Uuid;

use super::Told;
use crate::receipt::{apply, find, hold_slot, slot};
use crate::step::{hold_place, resume};
use crate::transaction::{Tx, begin, undo};
use crate::{Store, StoreError};

impl Store {
    /// Records what the worker says that has taken the task, in time or late, and lets the step go on that waits for it.
    pub async fn answer_task(
        &self,
        tenant: TenantId,
        id: EffectId,
        claim: Uuid,
        said: Said,
    ) -> Result<Told, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let task = sqlx::query!(
            "SELECT claim_id, worker FROM worker_tasks WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            id.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(task) = task else { return undo(tx, Told::NotFound).await };
        // A claim is never taken back, so that who has taken the task needs no lock.
        let (Some(owner), Some(worker)) = (task.claim_id, task.worker) else {
            return undo(tx, Told::NotOwned).await;
        };
        if owner != claim {
            return undo(tx, Told::NotOwned).await;
        }
        let Some(seen) = find(&mut tx, tenant, id).await? else { return undo(tx, Told::NotFound).await };
        let open = hold_place(&mut tx, tenant, &seen.place).await?;
        hold_slot(&mut tx, tenant, id).await?;
        let Some(receipt) = find(&mut tx, tenant, id).await? else { return undo(tx, Told::NotFound).await };
        let transition = match answer(&receipt, &worker, said) {
            Ok(Some(transition)) => transition,
            Ok(None) => {
                return undo(tx, Told::Recorded { state: receipt.standing.state() }).await;
            }
            Err(TaskOver(state)) => return undo(tx, Told::Over { state }).await,
        };
        apply(&mut tx, &transition).await?;
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&mut *tx).await?;
        // Only a person's word can be refused here, and a worker's is an answer.
        for sibling in siblings(&transition, &slot(&mut tx, &receipt).await?, now).unwrap_or_default() {
            apply(&mut tx, &sibling).await?;
        }
        if let Some(step) = open {
            if step.is_blocked {
                resume(&mut tx, tenant, step.id).await?;
            } else {
                wake_step(&mut tx, tenant, step.id).await?;
            }
        }
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(Told::Recorded { state: transition.to() })
    }
}

/// Makes the step due that waits for the task. One that a host has at this moment finds the answer in its journal.
async fn wake_step(tx: &mut Tx, tenant: TenantId, step: StepId) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE open_steps SET wait = 'ready', vt = now()
         WHERE tenant_id = $1 AND id = $2 AND wait = 'worker' AND lease_id IS NULL",
        tenant.0,
        step.0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
