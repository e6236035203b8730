//! Answers that are written by themselves, since no end of a step takes them with it.

use std::time::Duration;

use counterfoil_domain::id::EffectId;
use counterfoil_domain::receipt::{Actor, Move, ReceiptState, Transition};
use counterfoil_store::StoreError;
use counterfoil_store::settle::{OwnWrite, Swap};
use tokio::time::Instant;

use super::{Guard, Inner};

/// A database that fails three times in a row is left alone: whoever has the answer asks it again later.
const RECORD_TRIES_MAX: usize = 3;
/// Before the second round; each pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// What came of answers that were written by themselves.
pub(crate) struct Alone {
    /// Every one that was written is what is recorded of its effect. If not, an execution that goes on has heard what no
    /// re-run will hear.
    pub(super) stand: bool,
    /// What the database would not take now.
    pub(super) unwritten: Vec<OwnWrite>,
    /// Why, of the last of these.
    error: Option<StoreError>,
}

impl Guard {
    /// Writes answers that no step's end took with it, lease or no lease. Nobody else knows them, so that a database which is away
    /// is waited for.
    pub async fn record_alone(&self, writes: Vec<OwnWrite>) {
        let (began, record_for) = (Instant::now(), self.inner.config.record_for);
        let mut alone = self.inner.record_alone(writes, None).await;
        if let Some(error) = &alone.error {
            let (error, record_for_s) = (error as &dyn std::error::Error, record_for.as_secs());
            for receipt in alone.receipts() {
                tracing::warn!(%receipt, error, record_for_s, "an answer cannot be recorded now, and is tried again");
            }
        }
        let mut pause = PAUSE_MIN;
        while let Some(error) = &alone.error {
            let left = record_for.saturating_sub(began.elapsed());
            if left.is_zero() {
                let (error, waited_s) = (error as &dyn std::error::Error, began.elapsed().as_secs());
                for receipt in alone.receipts() {
                    tracing::error!(
                        %receipt, error, waited_s,
                        "an answer is lost, since it could not be recorded; its receipt becomes unknown"
                    );
                }
                return;
            }
            tokio::time::sleep(pause.min(left)).await;
            pause *= 2;
            alone = self.inner.record_alone(alone.unwritten, Some(began)).await;
        }
    }
}

impl Alone {
    /// Whose answers were not written.
    fn receipts(&self) -> impl Iterator<Item = EffectId> {
        self.unwritten.iter().filter_map(|write| match write {
            OwnWrite::Answer(transition) if !follows(transition) => Some(transition.receipt()),
            OwnWrite::Answer(_) | OwnWrite::ReadOnly(_) => None,
        })
    }
}

/// It follows from the answer before it.
fn follows(transition: &Transition) -> bool {
    matches!(transition.what(), Move::VerifyBySibling { .. })
}

impl Inner {
    /// Writes answers by themselves, each with what it means for its slot, lease or no lease; `first_tried` if that failed before.
    pub(super) async fn record_alone(&self, writes: Vec<OwnWrite>, first_tried: Option<Instant>) -> Alone {
        let mut answers: Vec<Vec<Transition>> = vec![];
        for write in writes {
            // A read-only answer belongs to its step alone.
            let OwnWrite::Answer(transition) = write else { continue };
            match answers.last_mut() {
                Some(answer) if follows(&transition) => answer.push(transition),
                _ => answers.push(vec![transition]),
            }
        }
        let mut alone = Alone { stand: true, unwritten: vec![], error: None };
        for answer in answers {
            match self.record_answer(&answer, first_tried).await {
                Ok(stands) => alone.stand &= stands,
                Err(error) => {
                    alone.unwritten.extend(answer.into_iter().map(OwnWrite::Answer));
                    alone.error = Some(error);
                }
            }
        }
        alone
    }

    /// Whether the answer is what is recorded now.
    async fn record_answer(
        &self,
        answer: &[Transition],
        first_tried: Option<Instant>,
    ) -> Result<bool, StoreError> {
        let Some((receipt, to)) = answer.first().map(|answer| (answer.receipt(), answer.to())) else {
            return Ok(true);
        };
        let late: Vec<Transition> = answer.iter().filter_map(from_unknown).collect();
        // Of a try that failed, nobody knows whether it was committed.
        let (mut is_late, mut may_be_written, mut tries) = (false, first_tried.is_some(), 0);
        loop {
            let transitions = if is_late { &late } else { answer };
            match self.store.record_answer(transitions).await {
                Ok(Swap::Lost { found: Some(ReceiptState::Unknown) }) if !is_late => {
                    tracing::info!(%receipt, "an answer is late");
                    is_late = true;
                }
                Ok(Swap::Lost { found }) if !(may_be_written && found == Some(to)) => {
                    tracing::info!(%receipt, ?found, "an answer came after its receipt was settled");
                    return Ok(false);
                }
                Ok(Swap::Moved | Swap::Lost { .. }) => {
                    if let Some(first_tried) = first_tried {
                        let waited_ms = first_tried.elapsed().as_millis();
                        tracing::info!(%receipt, waited_ms, "an answer that had to wait is recorded");
                    }
                    return Ok(true);
                }
                Err(error) => {
                    tries += 1;
                    if tries == RECORD_TRIES_MAX {
                        return Err(error);
                    }
                    may_be_written |= error.is_transient();
                }
            }
        }
    }
}

/// The same answer, arriving after its receipt was declared unknown.
fn from_unknown(transition: &Transition) -> Option<Transition> {
    let (tenant, receipt) = (transition.tenant(), transition.receipt());
    Transition::new(tenant, receipt, ReceiptState::Unknown, Actor::Host, transition.what().clone()).ok()
}
