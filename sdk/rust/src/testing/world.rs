//! The world of one step: what the host does with each call of the block, without a host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;

use super::effect::{Call, Facts, Given, Recorded, Slot};
use super::journal::{Asker, Decision, Entry, Journal, Standing};
use super::judge;
use super::meaning::{AfterRefusal, Exchanged, Meaning, meaning, worked};
use super::receipt::Emitted;
use super::rerun::{Rerun, Told};
use super::script::{Fault, Script};
use crate::block::Grant;
use crate::context::{Level, Place};
use crate::effect::{EffectError, EmitEffect, Safety, StorageEffect, StorageOperation, WorkerEffect};

/// How long a host holds a step without renewing it, and what is added for clocks and queues.
const LEASE: Duration = Duration::from_secs(15);
const ABSENCE_MARGIN: Duration = Duration::from_secs(5);
/// Total time of a call that names none, and what a call may ask for.
const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// How long work may lie in its queue, and how long a worker may be at it, where nothing is said.
const TASK_TIME: Duration = Duration::from_secs(3_600);

/// Why an execution ends at a call. The block learns nothing of it: its stack is unwound.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    Blocked {
        reason: String,
    },
    Resend {
        reason: String,
        retry_after: Option<Duration>,
    },
    Failed {
        code: &'static str,
        message: String,
    },
    Crashed,
    /// The step was let go with its work for a worker, who has said by now what came of it.
    Queued,
    /// The test is at fault.
    Unscripted(String),
    /// The block is: run again, it makes another call.
    Diverges(String),
}

/// What an execution is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Step,
    /// To find out what became of an effect: it may look and change nothing, and nothing of it is journaled.
    Verification,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) grants: &'static [Grant],
    pub(super) script: Script,
    pub(super) journal: Journal,
    pub(super) place: Place,
    pub(super) started_at: SystemTime,
    pub(super) seed: [u8; 32],
    /// Since the step first started.
    pub(super) now: Duration,
    pub(super) asker: Asker,
    pub(super) stored: BTreeMap<String, Vec<u8>>,
    pub(super) emitted: Vec<Emitted>,
    pub(super) execution: Execution,
    /// Set while the block is run again to see whether it makes the same calls.
    pub(super) rerun: Option<Rerun>,
}

/// What one execution has done so far.
#[derive(Debug, Clone)]
pub(super) struct Execution {
    purpose: Purpose,
    labels: BTreeSet<String>,
    ordinals: u64,
    /// Every call, with what the block was told.
    pub(super) told: Vec<Told>,
    /// Changes of the tenant's own data, in order. Those with a receipt wait for the step's success.
    changes: Vec<(Call, Option<Entry>)>,
    pub(super) logs: Vec<(Level, String)>,
    pub(super) random: ChaCha20Rng,
}

impl Execution {
    pub(super) fn new(purpose: Purpose, seed: [u8; 32]) -> Self {
        Self {
            purpose,
            labels: BTreeSet::new(),
            ordinals: 0,
            told: Vec::new(),
            changes: Vec::new(),
            logs: Vec::new(),
            random: ChaCha20Rng::from_seed(seed),
        }
    }
}

impl World {
    pub(super) fn begin(&mut self, purpose: Purpose) {
        self.execution = Execution::new(purpose, self.seed);
    }

    /// What the block is told of a call.
    ///
    /// # Errors
    ///
    /// The execution ends here.
    pub(super) fn effect(&mut self, call: Call) -> Result<Recorded, Stop> {
        let is_verification = self.execution.purpose == Purpose::Verification;
        let call = if is_verification { call.without_label() } else { call };
        let position = self.execution.told.len();
        let is_used = call.label().is_some_and(|label| self.execution.labels.contains(label));
        if let Err(limit) = judge::limits(position, call.label(), is_used) {
            return Ok(Err(limit));
        }
        let slot = self.slot(&call);
        let facts = call.facts(call.own_key().map_or_else(|| self.key(&slot, 0), Into::into));
        if let Some(rerun) = &self.rerun {
            rerun.compare(position, &slot, &facts).map_err(Stop::Diverges)?;
        }
        self.execution.told.push(Told { slot: slot.clone(), facts: facts.clone(), recorded: None });
        let recorded = match judge::connection(&call) {
            Err(denied) => Err(denied),
            Ok(()) if is_verification => self.look_up(&slot, &call, &facts)?,
            Ok(()) => self.perform(&slot, &call, facts, position)?,
        };
        self.execution.told[position].recorded = Some(recorded.clone());
        Ok(recorded)
    }

    fn slot(&mut self, call: &Call) -> Slot {
        if let Some(label) = call.label() {
            self.execution.labels.insert(label.to_owned());
            Slot::Label(label.to_owned())
        } else {
            self.execution.ordinals += 1;
            Slot::Ordinal(self.execution.ordinals - 1)
        }
    }

    /// Stands for the receipt's id, by which the receiver recognises a repeat.
    fn key(&self, slot: &Slot, dispatch_number: u64) -> String {
        let Place { lineage, node, .. } = &self.place;
        format!("eff-{lineage}-{node}-{slot}-{dispatch_number}")
    }

    fn perform(&mut self, slot: &Slot, call: &Call, facts: Facts, position: usize) -> Result<Recorded, Stop> {
        let (dispatch_number, is_resend) = match self.journal.decide(slot, &facts, self.asker) {
            Decision::HandOver(recorded) => {
                if recorded.is_ok() && is_change(call) {
                    self.execution.changes.push((call.clone(), None));
                }
                return Ok(recorded);
            }
            Decision::Block => {
                return Err(Stop::Blocked { reason: format!("the outcome of effect `{slot}` is unknown") });
            }
            Decision::Diverged(what) => {
                let message = format!("effect `{slot}` diverged: {what}");
                return Err(Stop::Failed { code: "diverged", message });
            }
            Decision::Dispatch { dispatch_number, is_resend } => (dispatch_number, is_resend),
        };
        if is_resend && matches!(call, Call::Worker(_)) {
            self.may_queue_again(slot)?;
        }
        let key = self.journal.key(slot, &self.key(slot, dispatch_number), &facts.key);
        let entry = |standing| Entry {
            slot: slot.clone(),
            dispatch_number,
            position,
            asker: self.asker,
            facts: Facts { key, ..facts },
            standing,
        };
        match judge::allowed(call, self.grants) {
            Err(message) if is_resend => {
                return Err(Stop::Blocked { reason: format!("a re-send is refused: {message}") });
            }
            Err(message) => {
                let recorded = Err(EffectError::Denied(message));
                self.journal.0.push(entry(Standing::Rejected(recorded.clone())));
                return Ok(recorded);
            }
            Ok(()) => {}
        }
        if is_change(call) {
            let given = if matches!(call, Call::Emit(_)) { Given::Emitted } else { Given::Stored(None) };
            let entry = entry(Standing::Committed(Ok(given.clone())));
            self.execution.changes.push((call.clone(), Some(entry)));
            return Ok(Ok(given));
        }
        if let Call::Storage(StorageEffect { operation: StorageOperation::Get(key), .. }) = call {
            if let Some(written) = self.written(key) {
                return Ok(Ok(written));
            }
            // A step that is run again for comparison must not see what it has changed since.
            let recorded = match &self.rerun {
                Some(rerun) => rerun.answer(position)?,
                None => Ok(Given::Stored(self.stored.get(key).cloned())),
            };
            self.journal.0.push(entry(Standing::Committed(recorded.clone())));
            return Ok(recorded);
        }
        let absence_known_at = self.now + LEASE + total(call) + ABSENCE_MARGIN;
        let entry = entry(Standing::Dispatched { absence_known_at });
        match call {
            Call::Worker(_) => self.queue(call, entry, absence_known_at),
            _ => self.send(call, entry),
        }
    }

    /// What became of work came while the step waited, so that the attempt which queued it ends only here.
    fn may_queue_again(&self, slot: &Slot) -> Result<(), Stop> {
        let reason = format!("the outcome of effect `{slot}` is unknown");
        match self.journal.newest_of_attempt(slot, self.asker) {
            None => Ok(()),
            Some(Standing::Rejected(Err(EffectError::WorkerFailed { .. }))) => Err(Stop::Blocked { reason }),
            Some(_) => Err(Stop::Resend { reason, retry_after: None }),
        }
    }

    /// Puts work into a queue, and records what its worker said. A process that dies takes nothing with it.
    fn queue(&mut self, call: &Call, mut entry: Entry, absence_known_at: Duration) -> Result<Recorded, Stop> {
        if let Some(rerun) = &self.rerun {
            return rerun.answer(entry.position);
        }
        let (exchanged, fault) =
            self.script.take(&entry.slot, call, &entry.facts).map_err(Stop::Unscripted)?;
        entry.standing = worked(exchanged, absence_known_at).map_err(Stop::Unscripted)?;
        if let Standing::Committed(recorded) = &entry.standing {
            self.verify_siblings(&entry.slot, recorded);
        }
        self.journal.0.push(entry);
        Err(if fault.is_some() { Stop::Crashed } else { Stop::Queued })
    }

    /// Makes the call, and records what its answer means.
    fn send(&mut self, call: &Call, mut entry: Entry) -> Result<Recorded, Stop> {
        let (slot, dispatch_number, safety) = (entry.slot.clone(), entry.dispatch_number, entry.facts.safety);
        if let Some(rerun) = &self.rerun {
            return rerun.answer(entry.position);
        }
        let (exchanged, fault) = self.script.take(&slot, call, &entry.facts).map_err(Stop::Unscripted)?;
        let is_read = safety == Safety::ReadOnly;
        if fault == Some(Fault::CrashBefore) {
            // A read leaves nothing until it is answered.
            if !is_read {
                self.journal.0.push(entry);
            }
            return Err(Stop::Crashed);
        }
        let older_unknown = self.journal.is_open_besides(&slot, dispatch_number);
        let answer = match meaning(keeping(exchanged), safety, older_unknown) {
            Meaning::Committed(recorded) => {
                entry.standing = Standing::Committed(recorded.clone());
                self.verify_siblings(&slot, &recorded);
                Ok(recorded)
            }
            Meaning::Rejected { recorded, then } => {
                entry.standing = Standing::Rejected(recorded.clone());
                let reason = format!("a re-send of `{slot}` was refused, and an older one may have happened");
                match then {
                    AfterRefusal::HandOver => Ok(recorded),
                    AfterRefusal::Wait(retry_after) => Err(Stop::Resend { reason, retry_after }),
                    AfterRefusal::Block => Err(Stop::Blocked { reason }),
                }
            }
            Meaning::Unknown { reason, resend, retry_after } => {
                if let Standing::Dispatched { absence_known_at } = entry.standing {
                    entry.standing = Standing::Unknown { absence_known_at };
                }
                Err(if resend { Stop::Resend { reason, retry_after } } else { Stop::Blocked { reason } })
            }
        };
        self.journal.0.push(entry);
        match fault {
            Some(Fault::CrashAfter) => Err(Stop::Crashed),
            _ => answer,
        }
    }

    fn verify_siblings(&mut self, slot: &Slot, recorded: &Recorded) {
        let open = |entry: &&mut Entry| entry.slot == *slot && super::journal::is_open(entry);
        for sibling in self.journal.0.iter_mut().filter(open) {
            sibling.standing = Standing::Verified(recorded.clone());
        }
    }

    /// A call of a block that is asked what became of an effect; nothing is kept of it.
    fn look_up(&mut self, slot: &Slot, call: &Call, facts: &Facts) -> Result<Recorded, Stop> {
        if facts.safety != Safety::ReadOnly {
            let message = "a block that is asked what became of an effect may look, and change nothing";
            return Ok(Err(EffectError::Denied(message.into())));
        }
        if let Err(message) = judge::allowed(call, self.grants) {
            return Ok(Err(EffectError::Denied(message)));
        }
        if let Call::Storage(StorageEffect { operation: StorageOperation::Get(key), .. }) = call {
            return Ok(Ok(Given::Stored(self.stored.get(key).cloned())));
        }
        let (exchanged, _) = self.script.take(slot, call, facts).map_err(Stop::Unscripted)?;
        match meaning(keeping(exchanged), Safety::ReadOnly, false) {
            Meaning::Committed(recorded) | Meaning::Rejected { recorded, .. } => Ok(recorded),
            Meaning::Unknown { reason, .. } => Err(Stop::Blocked { reason }),
        }
    }

    /// What this step has written under a key itself.
    fn written(&self, key: &str) -> Option<Given> {
        self.execution.changes.iter().rev().find_map(|(call, _)| match call {
            Call::Storage(storage) => match &storage.operation {
                StorageOperation::Put(written, value) if written == key => {
                    Some(Given::Stored(Some(value.clone())))
                }
                StorageOperation::Delete(written) if written == key => Some(Given::Stored(None)),
                _ => None,
            },
            _ => None,
        })
    }

    /// The step has succeeded, and with it what it changed.
    pub(super) fn commit(&mut self) {
        for (call, entry) in std::mem::take(&mut self.execution.changes) {
            let Some(entry) = entry else { continue };
            self.journal.0.push(entry);
            match call {
                Call::Emit(EmitEffect { event_type, record, data, .. }) => {
                    // The block gave JSON.
                    let data = serde_json::from_str(&data).unwrap_or_default();
                    self.emitted.push(Emitted { event_type, record, data });
                }
                Call::Storage(storage) => match storage.operation {
                    StorageOperation::Put(key, value) => {
                        self.stored.insert(key, value);
                    }
                    StorageOperation::Delete(key) => {
                        self.stored.remove(&key);
                    }
                    StorageOperation::Get(_) => {}
                },
                Call::Http(_) | Call::Mail(_) | Call::Worker(_) => {}
            }
        }
        self.journal.0.sort_by_key(|entry| (entry.position, entry.dispatch_number));
    }
}

fn is_change(call: &Call) -> bool {
    matches!(call, Call::Emit(_)) || (matches!(call, Call::Storage(_)) && call.safety() != Safety::ReadOnly)
}

fn total(call: &Call) -> Duration {
    if let Call::Worker(WorkerEffect { claim_within_ms, timeout_ms, .. }) = call {
        let time = |ms: Option<u64>| ms.map_or(TASK_TIME, Duration::from_millis);
        return time(*claim_within_ms) + time(timeout_ms.map(u64::from));
    }
    let asked = call.timeout_ms().map(|ms| Duration::from_millis(ms.into()));
    asked.map_or(TIMEOUT, |asked| asked.clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

fn keeping(exchanged: Exchanged) -> Exchanged {
    match exchanged {
        Exchanged::Answered(answer) => Exchanged::Answered(judge::kept(answer)),
        other => other,
    }
}
