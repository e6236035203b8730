//! An execution that ended in a failure which may pass.

use counterfoil_domain::timeline::Ended;

use super::{RetryLater, RetryVerdict, Written, write};
use crate::receipt::apply;
use crate::step::{Leave, Wait, hold, leave};
use crate::transaction::{begin, undo};
use crate::{Store, StoreError};

impl Store {
    /// Lets a step wait for its next execution.
    pub async fn retry_later(&self, retry: &RetryLater) -> Result<RetryVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if hold(&mut tx, &retry.fence).await?.is_none() {
            return undo(tx, RetryVerdict::Lost).await;
        }
        for own in &retry.writes {
            match write(&mut tx, &retry.fence, own).await? {
                Written::Done => {}
                Written::Moved => return undo(tx, RetryVerdict::Lost).await,
                Written::Exists => return undo(tx, RetryVerdict::Rerun).await,
            }
        }
        for transition in &retry.lose {
            // Lost only to its own late answer, which is better still.
            apply(&mut tx, transition).await?;
        }
        let waits = Leave {
            wait: Some(Wait::Retry),
            delay: Some(retry.delay),
            next_attempt: retry.next_attempt,
            ended: Ended::Retry,
            error: Some(&retry.error),
            logs: retry.logs.as_ref(),
        };
        leave(&mut tx, &retry.fence, &waits).await?;
        tx.commit().await?;
        // The hosts that sleep until the next due time must hear of an earlier one.
        self.wake_tenant(retry.fence.tenant);
        Ok(RetryVerdict::Waiting)
    }
}
