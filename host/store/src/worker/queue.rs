//! A task that is queued.

use super::NewTask;
use counterfoil_domain::timeline::Ended;

use crate::receipt::{Dispatch, DispatchVerdict, dispatch_in, keep_duplicate};
use crate::step::{Leave, Wait, hold, leave};
use crate::transaction::{begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError};

impl Store {
    /// Makes a receipt durable as dispatched, puts its task into the queue and lets the step go, which waits for it: all of
    /// it, or nothing.
    pub async fn queue_task(
        &self,
        dispatch: &Dispatch<'_>,
        task: &NewTask<'_>,
    ) -> Result<DispatchVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if hold(&mut tx, dispatch.fence).await?.is_none() {
            return undo(tx, DispatchVerdict::Stale).await;
        }
        let verdict = dispatch_in(&mut tx, dispatch).await?;
        if !matches!(verdict, DispatchVerdict::Dispatched { .. }) {
            tx.rollback().await?;
            if let DispatchVerdict::Duplicate { held_by } = verdict {
                keep_duplicate(self.pool(), dispatch, held_by).await?;
            }
            return Ok(verdict);
        }
        sqlx::query!(
            "INSERT INTO worker_tasks (tenant_id, id, step_id, queue, input, claim_until, timeout)
             VALUES ($1, $2, $3, $4, $5, now() + $6::interval, $7)",
            dispatch.fence.tenant.0,
            dispatch.receipt.id.0,
            dispatch.fence.step.0,
            task.queue,
            Exact(task.input) as Exact<'_>,
            value::interval(task.claim_within),
            value::interval(task.timeout),
        )
        .execute(&mut *tx)
        .await?;
        let waits = Leave {
            wait: Some(Wait::Worker),
            delay: Some(task.claim_within),
            next_attempt: false,
            ended: Ended::Queued,
            error: None,
            logs: None,
        };
        leave(&mut tx, dispatch.fence, &waits).await?;
        tx.commit().await?;
        // The tenant's workers wait for it, and hosts that sleep longer than it may lie there.
        self.wake_tenant(dispatch.fence.tenant);
        Ok(verdict)
    }
}
