//! The journal of the step: what its receipts say about a call that the block makes now.
//!
//! This is the host's own table in miniature. That the two agree is tested where both can be reached: in the program's
//! tests, over thousands of random steps.

use std::time::Duration;

use super::effect::{Facts, Recorded, Slot};
use super::receipt::State;
use crate::effect::Safety;

/// A receipt, with what is true only where it stands.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) slot: Slot,
    pub(super) dispatch_number: u64,
    /// Place in the order of calls.
    pub(super) position: usize,
    pub(super) asker: Asker,
    pub(super) facts: Facts,
    pub(super) standing: Standing,
}

#[derive(Debug, Clone)]
pub(super) enum Standing {
    Dispatched {
        /// From when on the request can no longer arrive, on the step's clock.
        absence_known_at: Duration,
    },
    Unknown {
        absence_known_at: Duration,
    },
    Committed(Recorded),
    Rejected(Recorded),
    Verified(Recorded),
    Compensated,
    Abandoned,
}

impl Standing {
    pub(super) fn state(&self) -> State {
        match self {
            Self::Dispatched { .. } => State::Dispatched,
            Self::Unknown { .. } => State::Unknown,
            Self::Committed(_) => State::Committed,
            Self::Rejected(_) => State::Rejected,
            Self::Verified(_) => State::Verified,
            Self::Compensated => State::Compensated,
            Self::Abandoned => State::Abandoned,
        }
    }
}

/// Who asks: an attempt of a run. A replay is another run, and counts as another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) run: u32,
    pub(super) attempt: u32,
}

/// What to do about a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Make a receipt with this number, and send.
    Dispatch { dispatch_number: u64, is_resend: bool },
    /// Hand over what is stored; nothing is sent.
    HandOver(Recorded),
    /// The outcome is unknown.
    Block,
    /// The call differs from what its receipt says.
    Diverged(&'static str),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Journal(pub(super) Vec<Entry>);

impl Journal {
    /// The receipts of a slot, oldest dispatch first.
    pub(super) fn slot<'a>(&'a self, slot: &'a Slot) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.0.iter().filter(move |entry| entry.slot == *slot)
    }

    /// Where the newest receipt of the slot stands, if the asker's attempt has written it.
    pub(super) fn newest_of_attempt<'a>(&'a self, slot: &'a Slot, asker: Asker) -> Option<&'a Standing> {
        let newest = self.slot(slot).next_back()?;
        (newest.asker == asker).then_some(&newest.standing)
    }

    /// Whether another dispatch of the slot may still have happened without an answer.
    pub(super) fn is_open_besides(&self, slot: &Slot, but: u64) -> bool {
        self.slot(slot).any(|entry| entry.dispatch_number != but && is_open(entry))
    }

    /// The key that the next dispatch goes under: the one that the slot was first sent under, else `own`. What was undone
    /// is done anew, so from then on the slot goes under the key of its next receipt.
    pub(super) fn key(&self, slot: &Slot, next: &str, own: &str) -> String {
        let is_undone = |entry: &&Entry| matches!(entry.standing, Standing::Compensated);
        let undone: Vec<&str> =
            self.slot(slot).filter(is_undone).map(|entry| entry.facts.key.as_str()).collect();
        let first = self.slot(slot).map(|entry| entry.facts.key.as_str()).find(|key| !undone.contains(key));
        match first {
            Some(first) => first.to_owned(),
            None if undone.is_empty() => own.to_owned(),
            None => next.to_owned(),
        }
    }

    /// Whoever dispatched before this execution is gone.
    pub(super) fn lose(&mut self) {
        for entry in &mut self.0 {
            if let Standing::Dispatched { absence_known_at } = entry.standing {
                entry.standing = Standing::Unknown { absence_known_at };
            }
        }
    }

    /// Decides a call.
    pub(super) fn decide(&self, slot: &Slot, facts: &Facts, asker: Asker) -> Decision {
        let in_slot: Vec<&Entry> = self.slot(slot).collect();
        if let Some(what) = self.divergence(&in_slot, facts, asker) {
            return Decision::Diverged(what);
        }
        let Some(newest) = in_slot.last() else {
            return Decision::Dispatch { dispatch_number: 0, is_resend: false };
        };
        let next = newest.dispatch_number + 1;
        let anew = Decision::Dispatch { dispatch_number: next, is_resend: false };
        // A read may be answered anew in each attempt: there, what was heard last counts.
        let is_answered = |entry: &&&Entry| {
            entry.facts.safety != Safety::ReadOnly
                && matches!(entry.standing, Standing::Committed(_) | Standing::Verified(_))
        };
        let deciding = in_slot.iter().rev().find(is_answered).unwrap_or(newest);
        let any_open = in_slot.iter().any(|entry| is_open(entry));
        match &deciding.standing {
            Standing::Committed(recorded) | Standing::Verified(recorded) => {
                if deciding.facts.safety == Safety::ReadOnly && self.is_forgotten(deciding, asker) {
                    anew
                } else {
                    Decision::HandOver(recorded.clone())
                }
            }
            // What became of the newest says nothing of an older dispatch that may have happened.
            _ if any_open && facts.safety == Safety::Idempotent => {
                Decision::Dispatch { dispatch_number: next, is_resend: true }
            }
            _ if any_open => Decision::Block,
            Standing::Rejected(recorded) if !self.is_forgotten(deciding, asker) => {
                Decision::HandOver(recorded.clone())
            }
            _ => anew,
        }
    }

    fn divergence(&self, in_slot: &[&Entry], facts: &Facts, asker: Asker) -> Option<&'static str> {
        for entry in in_slot.iter().filter(|entry| may_have_happened(entry)) {
            if entry.facts.safety == Safety::ReadOnly && self.is_forgotten(entry, asker) {
                continue;
            }
            if entry.facts.safety != facts.safety {
                return Some("its safety differs from that of the effect which this slot has already sent");
            }
            if entry.facts.content != facts.content {
                return Some("its request differs from that of the effect which this slot has already sent");
            }
        }
        None
    }

    /// Whether a refusal or a read-only answer lies in the tail, where a new attempt does not hear of it.
    fn is_forgotten(&self, entry: &Entry, asker: Asker) -> bool {
        let changes = |entry: &&Entry| entry.facts.safety != Safety::ReadOnly && may_have_happened(entry);
        let history_end = self.0.iter().filter(changes).map(|entry| entry.position).max();
        entry.asker != asker && history_end.is_none_or(|end| entry.position > end)
    }
}

fn may_have_happened(entry: &Entry) -> bool {
    is_open(entry) || matches!(entry.standing, Standing::Committed(_) | Standing::Verified(_))
}

pub(super) fn is_open(entry: &Entry) -> bool {
    matches!(entry.standing, Standing::Dispatched { .. } | Standing::Unknown { .. })
}
