//! An execution that was stopped through no fault of its step, and whose answers are kept.

use super::{HandBack, RetryVerdict, Written, write};
use crate::step::{Leave, hold, leave};
use crate::transaction::{begin, undo};
use crate::{Store, StoreError};

impl Store {
    /// Gives a step back with what was answered so far, to go on from there in the same attempt.
    pub async fn hand_back_with(&self, back: &HandBack) -> Result<RetryVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if hold(&mut tx, &back.fence).await?.is_none() {
            return undo(tx, RetryVerdict::Lost).await;
        }
        for own in &back.writes {
            match write(&mut tx, &back.fence, own).await? {
                Written::Done => {}
                Written::Moved => return undo(tx, RetryVerdict::Lost).await,
                Written::Exists => return undo(tx, RetryVerdict::Rerun).await,
            }
        }
        leave(&mut tx, &back.fence, &Leave::hand_back(back.delay, back.why.as_ref(), back.lost)).await?;
        tx.commit().await?;
        // The hosts that sleep until the next due time must hear of an earlier one.
        self.wake_tenant(back.fence.tenant);
        Ok(RetryVerdict::Waiting)
    }
}
