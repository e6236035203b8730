//! Writes that commit with the end of an execution, or before its next dispatch; and answers that are written alone.

use counterfoil_domain::receipt::resolution::siblings;
use counterfoil_domain::receipt::{Move, ReceiptState, Transition};

use super::{Answered, OwnWrite, Swap};
use crate::receipt::{apply, find, hold_slot, insert_answered, slot};
use crate::step::{Fence, hold_place, resume};
use crate::transaction::{Tx, begin, undo};
use crate::{Store, StoreError};

/// What came of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The receipt stands neither where it was expected nor where it was to go.
    Moved,
    /// The receipt exists already.
    Exists,
}

/// Carries out one write of the execution that holds `fence`. The caller holds the step's lock.
pub(crate) async fn write(tx: &mut Tx, fence: &Fence, own: &OwnWrite) -> Result<Written, StoreError> {
    match own {
        OwnWrite::Answer(transition) => Ok(match apply(tx, transition).await? {
            Swap::Moved => Written::Done,
            // Written before, by a call whose own answer was lost.
            Swap::Lost { found } if found == Some(transition.to()) => Written::Done,
            // An older dispatch of the slot had an answer of its own, or a person's: it needs none of this one's.
            Swap::Lost { .. } if matches!(transition.what(), Move::VerifyBySibling { .. }) => Written::Done,
            Swap::Lost { .. } => Written::Moved,
        }),
        OwnWrite::ReadOnly(receipt) => {
            let inserted = insert_answered(tx, receipt, fence.lease).await?;
            Ok(if inserted { Written::Done } else { Written::Exists })
        }
    }
}

impl Store {
    /// Records an answer alone, lease or no lease: whoever sent an effect may always say what came of it. The first
    /// transition is the answer; the others, if there are any, follow from it for the other receipts of its slot, and so
    /// does what it means for those that its caller does not know of.
    ///
    /// If that settles what a step was blocked on, the step goes on in the same attempt.
    pub async fn record_answer(&self, transitions: &[Transition]) -> Result<Swap, StoreError> {
        let Some((answer, others)) = transitions.split_first() else {
            return Err(StoreError::Unstorable("an answer without a transition"));
        };
        let is_plain = others.is_empty()
            && answer.from() == ReceiptState::Dispatched
            && answer.to() == ReceiptState::Committed;
        if is_plain {
            // Nothing can be blocked on it, and no later dispatch of its slot be open: whatever blocks a step, or sends
            // again, moves its dispatched receipts to unknown first. Of earlier ones its caller knows.
            return match self.lane().answers.submit(answer.clone()).await? {
                Answered::Swapped(swap) => Ok(swap),
                Answered::Unsure => Err(StoreError::TaskLost),
                Answered::Alone => {
                    let mut connection = self.pool().acquire().await?;
                    apply(&mut connection, answer).await
                }
            };
        }
        let mut tx = begin(self.pool()).await?;
        let Some(receipt) = find(&mut tx, answer.tenant(), answer.receipt()).await? else {
            return undo(tx, Swap::Lost { found: None }).await;
        };
        let open = hold_place(&mut tx, answer.tenant(), &receipt.place).await?;
        hold_slot(&mut tx, answer.tenant(), answer.receipt()).await?;
        if let Swap::Lost { found } = apply(&mut tx, answer).await? {
            return undo(tx, Swap::Lost { found }).await;
        }
        for other in others {
            // Lost to an answer of its own, which says the same.
            apply(&mut tx, other).await?;
        }
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&mut *tx).await?;
        // Only a person's word can be refused here, and an answer is none.
        for sibling in siblings(answer, &slot(&mut tx, &receipt).await?, now).unwrap_or_default() {
            apply(&mut tx, &sibling).await?;
        }
        let resumed = match open {
            Some(step) if step.is_blocked => resume(&mut tx, answer.tenant(), step.id).await?,
            _ => false,
        };
        tx.commit().await?;
        if resumed {
            self.wake_tenant(answer.tenant());
        }
        Ok(Swap::Moved)
    }
}
