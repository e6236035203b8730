//! The journal of one step: what its receipts say about a call that the guest makes now.
//!
//! A step's *history* is everything up to the last call, not read-only, that may have happened. A re-run in the same
//! attempt is answered from the journal throughout. A new attempt is answered within the history exactly as it was,
//! refusals included; beyond it, refusals and read-only answers are forgotten and the call is made anew. So nothing that
//! may have happened is done again or contradicted, and what is known not to have happened can be tried again.

use chrono::{DateTime, Utc};

use super::answer::Recorded;
use super::identity::SlotKey;
use super::state::ReceiptState;
use super::{Receipt, Standing, UNRECORDED};
use crate::effect::{EffectFailure, Safety};
use crate::id::{EffectId, LeaseId};
use crate::step::Stop;

/// The receipts of one place, every run of the lineage included.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    receipts: Vec<Receipt>,
    history_end: Option<u32>,
}

/// A call that the guest makes.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Its slot in the step.
    pub slot: &'a SlotKey,
    /// Its safety in force.
    pub safety: Safety,
    /// SHA-256 of its canonical request.
    pub request_hash: &'a [u8; 32],
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// This execution.
    pub lease: LeaseId,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// The run it belongs to differs from that of older receipts in a replay; a replay counts as a new attempt.
    pub run: crate::id::RunId,
}

/// What to do about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Make a receipt with this dispatch number, and send.
    Dispatch {
        /// The next number of the slot.
        dispatch_number: u64,
        /// Receipts of the slot whose owner is gone: they become unknown first.
        lost: Vec<EffectId>,
        /// An older dispatch of the slot may have happened, so this one goes under its key.
        resend: bool,
    },
    /// Hand over what is stored; nothing is sent.
    HandOver(Recorded),
    /// A receipt of this slot is durable and nothing of it was sent: go on with it.
    GoOn(EffectId),
    /// The outcome is unknown: the step is blocked.
    Block {
        /// Receipts whose owner is gone: they become unknown now.
        lost: Vec<EffectId>,
    },
    /// The call differs from what its receipt says.
    Diverged(&'static str),
}

impl Journal {
    /// The journal that these receipts make, in whatever order they come.
    pub fn new(mut receipts: Vec<Receipt>) -> Self {
        receipts.sort_by_key(|receipt| (receipt.position, receipt.dispatch_number));
        let history_end = receipts
            .iter()
            .filter(|receipt| {
                receipt.request.safety != Safety::ReadOnly && receipt.standing.state().may_have_happened()
            })
            .map(|receipt| receipt.position)
            .max();
        Self { receipts, history_end }
    }

    /// Adds, or replaces, a receipt that this execution has written.
    pub fn put(&mut self, receipt: Receipt) {
        let mut receipts = std::mem::take(&mut self.receipts);
        receipts.retain(|known| known.id != receipt.id);
        receipts.push(receipt);
        *self = Self::new(receipts);
    }

    /// Notes that a receipt became unknown at `at`, because its owner is gone.
    pub fn lose(&mut self, id: EffectId, at: DateTime<Utc>) {
        for receipt in self.receipts.iter_mut().filter(|receipt| receipt.id == id) {
            if let Standing::Dispatched { at: dispatched_at, .. } = receipt.standing {
                let reason = UNRECORDED.into();
                receipt.standing = Standing::Unknown { reason, dispatched_at, absence_known_at: at };
            }
        }
    }

    /// Every receipt, in call order.
    pub fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    /// The receipts of one slot, oldest dispatch first.
    pub fn slot<'a>(&'a self, slot: &SlotKey) -> impl DoubleEndedIterator<Item = &'a Receipt> + use<'a> {
        let mut receipts: Vec<&Receipt> =
            self.receipts.iter().filter(|receipt| receipt.slot == *slot).collect();
        receipts.sort_by_key(|receipt| receipt.dispatch_number);
        receipts.into_iter()
    }

    /// Says whether work that may have been done may be queued again. What became of it came while the step waited, so that
    /// the attempt which queued it ends only here: another one queues it again, as any other re-send.
    ///
    /// # Errors
    /// How the execution ends.
    pub fn may_queue_again(&self, slot: &SlotKey, asker: Asker) -> Result<(), Stop> {
        let newest = self.slot(slot).next_back();
        let is_of_attempt = |it: &&Receipt| it.attempt == asker.attempt && it.run == asker.run;
        let Some(newest) = newest.filter(is_of_attempt) else { return Ok(()) };
        let reason = format!("the outcome of effect `{slot}` is unknown");
        Err(match &newest.standing {
            Standing::Rejected(Recorded::Failure(EffectFailure::Rejected(_))) => {
                Stop::Blocked { reason: format!("{reason}, and a re-send is refused") }
            }
            _ => Stop::Resend { reason, retry_after_ms: None },
        })
    }

    /// Whether a dispatch of the slot other than `but` is unknown, or has lost its owner.
    pub fn is_open_besides(&self, slot: &SlotKey, but: EffectId) -> bool {
        self.slot(slot).any(|receipt| {
            receipt.id != but
                && matches!(receipt.standing.state(), ReceiptState::Unknown | ReceiptState::Dispatched)
        })
    }

    /// The key that the next dispatch of the slot, `next`, goes under: the one that it was first sent under, so that the
    /// receiver recognises a repeat, or `own` if it never was. What was undone is not repeated but done anew, which a receiver
    /// that remembers its key would not do: from then on the slot goes under the id of its next receipt.
    pub fn key(&self, slot: &SlotKey, next: EffectId, own: &str) -> String {
        let undone: Vec<&str> = self
            .slot(slot)
            .filter(|receipt| receipt.standing == Standing::Compensated)
            .map(|receipt| receipt.request.idempotency_key.as_str())
            .collect();
        let mut keys = self.slot(slot).map(|receipt| receipt.request.idempotency_key.as_str());
        match keys.find(|key| !undone.contains(key)) {
            Some(first) => first.to_owned(),
            None if undone.is_empty() => own.to_owned(),
            None => next.to_string(),
        }
    }

    /// Decides a call.
    ///
    /// `begun` says whether this process has begun the receipt that is dispatched under the asker's own lease.
    pub fn decide(&self, call: Call<'_>, asker: Asker, begun: impl Fn(EffectId) -> bool) -> Decision {
        let in_slot: Vec<&Receipt> = self.slot(call.slot).collect();
        if let Some(what) = self.divergence(&in_slot, call, asker) {
            return Decision::Diverged(what);
        }
        let Some(newest) = in_slot.last() else {
            return Decision::Dispatch { dispatch_number: 0, lost: vec![], resend: false };
        };
        let next = newest.dispatch_number + 1;
        // A read may be answered anew in each attempt: there, what was heard last counts.
        let answered = in_slot.iter().rev().find(|receipt| {
            receipt.request.safety != Safety::ReadOnly
                && matches!(receipt.standing, Standing::Committed(_) | Standing::Verified(_))
        });
        let deciding = answered.unwrap_or(newest);
        let anew = || Decision::Dispatch { dispatch_number: next, lost: vec![], resend: false };
        match &deciding.standing {
            Standing::Committed(recorded) | Standing::Verified(recorded) => {
                if deciding.request.safety == Safety::ReadOnly && self.is_forgotten(deciding, asker) {
                    anew()
                } else {
                    Decision::HandOver(recorded.clone())
                }
            }
            Standing::Rejected(recorded) => {
                self.refused(&in_slot, deciding, recorded, asker, next, call.safety)
            }
            // The newest did not take place, or no longer stands; of an older one nothing is said by that.
            Standing::Abandoned | Standing::Compensated if in_slot.iter().any(|receipt| is_open(receipt)) => {
                open(&in_slot, asker, next, call.safety)
            }
            Standing::Abandoned | Standing::Compensated => anew(),
            Standing::Planned | Standing::Prepared => Decision::GoOn(deciding.id),
            Standing::Dispatched { lease, .. } if *lease == asker.lease => {
                if begun(deciding.id) {
                    Decision::Diverged("the effect is under way in this execution already")
                } else {
                    Decision::GoOn(deciding.id)
                }
            }
            Standing::Dispatched { .. } | Standing::Unknown { .. } => {
                open(&in_slot, asker, next, call.safety)
            }
        }
    }

    fn refused(
        &self,
        in_slot: &[&Receipt],
        deciding: &Receipt,
        recorded: &Recorded,
        asker: Asker,
        next: u64,
        safety: Safety,
    ) -> Decision {
        // A refusal of a re-send says nothing about the older dispatch, so the guest must not learn of it.
        if in_slot.iter().any(|receipt| is_open(receipt)) {
            return open(in_slot, asker, next, safety);
        }
        if self.is_forgotten(deciding, asker) {
            Decision::Dispatch { dispatch_number: next, lost: vec![], resend: false }
        } else {
            Decision::HandOver(recorded.clone())
        }
    }

    fn divergence(&self, in_slot: &[&Receipt], call: Call<'_>, asker: Asker) -> Option<&'static str> {
        for receipt in in_slot.iter().filter(|receipt| receipt.standing.state().may_have_happened()) {
            if receipt.request.safety == Safety::ReadOnly && self.is_forgotten(receipt, asker) {
                continue;
            }
            if receipt.request.safety != call.safety {
                return Some("its safety differs from that of the effect which this slot has already sent");
            }
            if receipt.request.request_hash != *call.request_hash {
                return Some("its request differs from that of the effect which this slot has already sent");
            }
        }
        None
    }

    /// Whether a refusal or a read-only answer lies in the tail, where a new attempt does not hear of it.
    fn is_forgotten(&self, receipt: &Receipt, asker: Asker) -> bool {
        let same_attempt = receipt.attempt == asker.attempt && receipt.run == asker.run;
        let in_history = self.history_end.is_some_and(|end| receipt.position <= end);
        !same_attempt && !in_history
    }
}

fn is_open(receipt: &Receipt) -> bool {
    matches!(receipt.standing, Standing::Dispatched { .. } | Standing::Unknown { .. })
}

/// What follows when a dispatch of the slot may have happened: at-most-once is never sent again, idempotent goes under the
/// same key.
fn open(in_slot: &[&Receipt], asker: Asker, next: u64, safety: Safety) -> Decision {
    let lost = in_slot
        .iter()
        .filter(
            |receipt| matches!(receipt.standing, Standing::Dispatched { lease, .. } if lease != asker.lease),
        )
        .map(|receipt| receipt.id)
        .collect();
    if safety == Safety::Idempotent {
        Decision::Dispatch { dispatch_number: next, lost, resend: true }
    } else {
        Decision::Block { lost }
    }
}

#[cfg(test)]
mod tests;
