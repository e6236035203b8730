//! Tasks that come to an end without their worker.

use std::time::Duration;

use counterfoil_domain::id::{EffectId, TenantId};
use counterfoil_domain::receipt::task::{expired, withdrawn};
use counterfoil_domain::receipt::{Actor, Move, ReceiptState, Transition};
use uuid::Uuid;

use super::TasksEnd;
use crate::receipt::apply;
use crate::step::{Fence, Leave, hold, leave};
use crate::transaction::{Tx, begin, undo};
use crate::{Store, StoreError};

impl Store {
    /// Ends the tasks of a step that is claimed because it has waited long enough for them.
    pub async fn end_tasks(&self, fence: &Fence) -> Result<TasksEnd, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if hold(&mut tx, fence).await?.is_none() {
            return undo(tx, TasksEnd::Lost).await;
        }
        // The step is this execution's, so that nobody takes one of them or keeps it meanwhile.
        let tasks = sqlx::query!(
            r#"SELECT t.id, t.queue, t.worker, t.waiting,
                 EXTRACT(EPOCH FROM COALESCE(t.lease_until, t.claim_until) - now())::float8 AS "seconds_left!"
             FROM worker_tasks t JOIN receipts r ON r.tenant_id = t.tenant_id AND r.id = t.id
             WHERE t.tenant_id = $1 AND t.step_id = $2 AND r.state = 'dispatched'"#,
            fence.tenant.0,
            fence.step.0,
        )
        .fetch_all(&mut *tx)
        .await?;
        let left = tasks.iter().map(|task| task.seconds_left).fold(0.0, f64::max);
        if left > 0.0 {
            let delay = Duration::try_from_secs_f64(left).unwrap_or_default();
            leave(&mut tx, fence, &Leave::hand_back(delay, None, false)).await?;
            tx.commit().await?;
            self.wake_tenant(fence.tenant);
            return Ok(TasksEnd::Waits);
        }
        for task in &tasks {
            if task.waiting {
                take_back(&mut tx, fence.tenant, task.id).await?;
            }
            let what = expired(&task.queue, task.worker.as_deref());
            end(&mut tx, fence.tenant, task.id.into(), what).await?;
        }
        tx.commit().await?;
        Ok(TasksEnd::Over)
    }
}

/// Takes tasks out of their queues whose steps are cancelled: nothing of them took place. The caller holds the steps' locks.
pub(crate) async fn withdraw(tx: &mut Tx, tenant: TenantId, steps: &[Uuid]) -> Result<(), StoreError> {
    let withdrawn_tasks = sqlx::query!(
        "UPDATE worker_tasks SET waiting = false
         WHERE tenant_id = $1 AND step_id = ANY ($2) AND waiting
         RETURNING id, queue",
        tenant.0,
        steps,
    )
    .fetch_all(&mut **tx)
    .await?;
    for task in withdrawn_tasks {
        end(tx, tenant, task.id.into(), withdrawn(&task.queue)).await?;
    }
    Ok(())
}

async fn take_back(tx: &mut Tx, tenant: TenantId, task: Uuid) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE worker_tasks SET waiting = false WHERE tenant_id = $1 AND id = $2 AND waiting",
        tenant.0,
        task,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn end(tx: &mut Tx, tenant: TenantId, receipt: EffectId, what: Move) -> Result<(), StoreError> {
    let transition = Transition::new(tenant, receipt, ReceiptState::Dispatched, Actor::Host, what)
        .map_err(|_| StoreError::Unstorable("a dispatched task cannot be ended"))?;
    // Lost only to its worker's word, which is better still.
    apply(tx, &transition).await?;
    Ok(())
}
