//! How an execution ends, and what may be said of it afterwards.

use super::{Emitted, Halt, Outcome, RUN, Rehearsal};
use crate::effect::{EffectRequest, StorageRequest};
use crate::id::EffectId;
use crate::ports::{StepEnd, VerifyReport};
use crate::receipt::resolution::{Resolution, Unresolvable, resolve, siblings};
use crate::receipt::verification;
use crate::receipt::{Actor, Receipt, ReceiptState, Standing, Transition};
use crate::step::{Circumstances, Conclusion, RetryPolicy, Stop, conclude};

impl Rehearsal {
    /// Ends an execution of the block: what a host makes of it.
    pub fn finish(&mut self, end: StepEnd) -> Outcome {
        let outcome = self.settle(end);
        self.is_stopped = matches!(outcome, Outcome::Blocked { .. });
        outcome
    }

    fn settle(&mut self, end: StepEnd) -> Outcome {
        self.execution.end = Some(end.clone());
        let stop = match self.execution.halt.clone() {
            Some(Halt::Crashed) => return Outcome::Crashed,
            Some(Halt::Broken(what)) => return Outcome::Broken(what),
            Some(Halt::Guard(Stop::Queued)) => return Outcome::Queued,
            Some(Halt::Guard(stop)) => Some(stop),
            None => None,
        };
        let dispatched: Vec<EffectId> = self.with_state(ReceiptState::Dispatched).map(|it| it.id).collect();
        self.lose(&dispatched);
        let circumstances = Circumstances {
            run: RUN,
            node: &self.place.node,
            attempt: self.attempt,
            retry: &RetryPolicy::DEFAULT,
        };
        let conclusion = conclude(end, stop, circumstances);
        let is_end = matches!(conclusion, Conclusion::Succeed(_) | Conclusion::Fail(_));
        if is_end && self.is_unknown() {
            return Outcome::Blocked { reason: "an outcome is unknown".into() };
        }
        match conclusion {
            Conclusion::Succeed(output) => {
                self.commit();
                Outcome::Succeeded(output)
            }
            Conclusion::Fail(error) => Outcome::Failed {
                code: error.block_code.unwrap_or_else(|| error.code.to_string()),
                message: error.message,
            },
            Conclusion::Retry { delay_ms, .. } => {
                self.attempt += 1;
                Outcome::Waiting { delay_ms }
            }
            Conclusion::Block(error) => Outcome::Blocked { reason: error.message },
            Conclusion::HandBack { why, .. } | Conclusion::Lose { why } => Outcome::Broken(why),
            Conclusion::Wait { .. } | Conclusion::Leave => Outcome::Broken("the step was left".into()),
        }
    }

    fn commit(&mut self) {
        for (request, receipt) in std::mem::take(&mut self.execution.changes) {
            let Some(receipt) = receipt else { continue };
            self.journal.put(receipt);
            match request {
                EffectRequest::Emit { event_type, record_id, data } => {
                    let data = serde_json::from_str(&data).unwrap_or_default();
                    self.emitted.push(Emitted { event: event_type, record: record_id, data });
                }
                EffectRequest::Storage(StorageRequest::Put(key, value)) => {
                    self.stored.insert(key, value);
                }
                EffectRequest::Storage(StorageRequest::Delete(key)) => {
                    self.stored.remove(&key);
                }
                _ => {}
            }
        }
    }

    /// Says what became of an effect, by its label or `#` and its number.
    ///
    /// # Errors
    /// [`Unresolvable`]; of an effect that is not unknown, in the state in which its newest receipt is.
    pub fn resolve(&mut self, effect: &str, resolution: Resolution, by: Actor) -> Result<(), Unresolvable> {
        let Some(receipt) = self.newest_unknown(effect).cloned() else {
            let newest = self.journal.receipts().iter().rfind(|receipt| receipt.slot.to_string() == effect);
            let state = newest.map_or(ReceiptState::Planned, |receipt| receipt.standing.state());
            return Err(Unresolvable::NotUnknown(state));
        };
        let end = resolve(&receipt, resolution, by, self.now)?;
        let moves = siblings(&end, self.journal.slot(&receipt.slot), self.now)?;
        for transition in std::iter::once(end).chain(moves) {
            self.apply(&transition);
        }
        Ok(())
    }

    /// Takes what came of asking the block what became of an effect, and believes it if a host would. Says what is wrong if
    /// the scenario, or this machine, is at fault.
    pub fn verified(&mut self, effect: &str, report: VerifyReport) -> Option<String> {
        let stop = match self.execution.halt.take() {
            Some(Halt::Guard(stop)) => Some(stop),
            Some(Halt::Broken(what)) => return Some(what),
            Some(Halt::Crashed) | None => None,
        };
        let receipt = self.newest_unknown(effect)?;
        if let Ok(resolution) = verification::conclude(receipt, report, stop, 1) {
            // Too early, perhaps: then it is asked again.
            let _ = self.resolve(effect, resolution, Actor::Verifier);
        }
        None
    }

    fn apply(&mut self, transition: &Transition) {
        let receipts = self.journal.receipts();
        let Some(receipt) = receipts.iter().find(|receipt| receipt.id == transition.receipt()).cloned()
        else {
            return;
        };
        let standing = match (transition.to(), transition.recorded().cloned()) {
            (ReceiptState::Committed, Some(recorded)) => Standing::Committed(recorded),
            (ReceiptState::Verified, Some(recorded)) => Standing::Verified(recorded),
            (ReceiptState::Compensated, _) => Standing::Compensated,
            (ReceiptState::Abandoned, _) => Standing::Abandoned,
            _ => return,
        };
        self.journal.put(Receipt { standing, ..receipt });
    }
}
