//! The executions that are under way in this process: who they are, what their journal says, and what they have still to
//! write.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::effect::EffectCall;
use counterfoil_domain::id::{EffectId, LeaseId, Place, RunId, WorkflowId};
use counterfoil_domain::limits::{EFFECTS_PER_STEP_MAX, NAME_BYTES_MAX, OWN_CHANGES_BYTES_MAX};
use counterfoil_domain::receipt::journal::{Asker, Journal};
use counterfoil_domain::receipt::{Receipt, SlotKey, Transition};
use counterfoil_domain::step::Stop;
use counterfoil_domain::workflow::definition::Invariant;
use counterfoil_store::settle::{Change, OwnEffect, OwnWrite};
use counterfoil_store::step::Fence;

/// What the guard must know about an execution before its first effect.
#[derive(Debug, Clone)]
pub struct ExecutionContext {
    /// The step and the lease that this execution holds.
    pub fence: Fence,
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: WorkflowId,
    /// Where in the work the step is.
    pub place: Place,
    /// From 1.
    pub attempt: u32,
    /// No execution of this place came before, in any run of the lineage: its journal is empty.
    pub is_first: bool,
    /// What the block declared; `None` for a node of the workflow itself, whose author named the call.
    pub grants: Option<Vec<EffectGrant>>,
    /// What the workflow version declared.
    pub invariants: Arc<[Invariant]>,
}

/// What an execution leaves behind.
#[derive(Debug, Default)]
pub struct Finished {
    /// Own-database writes that belong with the end of the step, in order.
    pub writes: Vec<OwnWrite>,
    /// What the step does to our own database if it succeeds, in order.
    pub own: Vec<OwnEffect>,
    /// Receipts whose answers were lost.
    pub lose: Vec<Transition>,
    /// Why the guard stopped it, if it did.
    pub stop: Option<Stop>,
}

/// What an execution is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To do the work of a step.
    Step,
    /// To find out what became of an effect: it may look and change nothing, its calls have no slot, and nothing of it is
    /// journaled.
    Verification,
}

/// One execution. Its calls come one at a time.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) context: ExecutionContext,
    pub(crate) purpose: Purpose,
    progress: Mutex<Progress>,
    /// What is answered and not yet durable. Held across the statement that makes it so: nobody may find it neither here
    /// nor in the database.
    pub(crate) unwritten: tokio::sync::Mutex<Vec<OwnWrite>>,
}

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Read at the first effect.
    pub(crate) journal: Option<Journal>,
    pub(crate) begun: BTreeSet<EffectId>,
    /// What this execution does to our own database, in order.
    pub(crate) changes: Vec<Change>,
    /// Which of the changes wait for the end of the step; an earlier execution has made the others.
    new_changes: Vec<(usize, Receipt)>,
    changes_bytes: usize,
    pub(crate) lose: Vec<Transition>,
    pub(crate) stop: Option<Stop>,
    /// When the last answer was kept for the next write.
    pub(crate) answered_at: Option<Instant>,
    /// The step has ended; what is still under way writes for itself.
    pub(crate) finished: bool,
    labels: BTreeSet<String>,
    ordinals: u64,
    calls: u32,
}

/// A call's slot and its place in the order of calls.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) slot: SlotKey,
    pub(crate) position: u32,
}

impl Execution {
    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        // Progress is changed in single assignments, so a panic elsewhere leaves it whole.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker { lease: self.context.fence.lease, attempt: self.context.attempt, run: self.context.run }
    }

    /// As [`Journal::may_queue_again`].
    pub(crate) fn may_queue_again(&self, slot: &SlotKey) -> Result<(), Stop> {
        let progress = self.progress();
        progress.journal.as_ref().ok_or(Stop::Rerun)?.may_queue_again(slot, self.asker())
    }
}

impl Progress {
    /// Names the slot of the next call, or says which limit of the call itself it breaks.
    pub(crate) fn place(&mut self, call: &EffectCall) -> Result<Placed, String> {
        if u64::from(self.calls) >= EFFECTS_PER_STEP_MAX {
            return Err(format!("effect_limit: a step makes at most {EFFECTS_PER_STEP_MAX} effects"));
        }
        let slot = match &call.key {
            Some(label) if label.is_empty() || label.len() > NAME_BYTES_MAX || label.contains('\0') => {
                return Err(format!("slot_label: a key has 1 to {NAME_BYTES_MAX} bytes and no NUL"));
            }
            Some(label) if !self.labels.insert(label.clone()) => {
                return Err(format!(
                    "slot_reused: the key `{label}` names another effect of this step already"
                ));
            }
            Some(label) => SlotKey::Label(label.clone()),
            None => {
                self.ordinals += 1;
                SlotKey::Ordinal(self.ordinals - 1)
            }
        };
        self.calls += 1;
        Ok(Placed { slot, position: self.calls - 1 })
    }

    /// Takes a change into account that waits for the end of the step, or says which limit it breaks.
    pub(crate) fn change(&mut self, change: Change, receipt: Receipt) -> Result<(), String> {
        if self.changes_bytes + bytes_len(&change) > OWN_CHANGES_BYTES_MAX {
            return Err(format!(
                "effect_limit: the events and values of a step have at most {OWN_CHANGES_BYTES_MAX} bytes together"
            ));
        }
        self.new_changes.push((self.changes.len(), receipt));
        self.changed_before(change);
        Ok(())
    }

    /// Takes a change into account that an earlier execution has made.
    pub(crate) fn changed_before(&mut self, change: Change) {
        self.changes_bytes += bytes_len(&change);
        self.changes.push(change);
    }

    /// The changes that wait for the end of the step.
    pub(crate) fn take_changes(&mut self) -> Vec<OwnEffect> {
        let changes = std::mem::take(&mut self.changes);
        let own = std::mem::take(&mut self.new_changes).into_iter();
        own.map(|(index, receipt)| OwnEffect { receipt, change: changes[index].clone() }).collect()
    }
}

fn bytes_len(change: &Change) -> usize {
    match change {
        Change::Emit { event_type, record, data } => {
            event_type.len() + record.as_ref().map_or(0, String::len) + data.to_string().len()
        }
        Change::Put { key, value } => key.len() + value.len(),
        Change::Delete { key } => key.len(),
    }
}

/// Executions by lease.
#[derive(Debug, Default)]
pub(crate) struct Executions(Mutex<HashMap<LeaseId, Arc<Execution>>>);

impl Executions {
    fn map(&self) -> MutexGuard<'_, HashMap<LeaseId, Arc<Execution>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, context: ExecutionContext, purpose: Purpose) {
        let (progress, unwritten) = (Mutex::default(), tokio::sync::Mutex::default());
        let execution = Execution { context, purpose, progress, unwritten };
        self.map().insert(execution.context.fence.lease, Arc::new(execution));
    }

    pub(crate) fn get(&self, lease: LeaseId) -> Option<Arc<Execution>> {
        self.map().get(&lease).cloned()
    }

    pub(crate) fn remove(&self, lease: LeaseId) -> Option<Arc<Execution>> {
        self.map().remove(&lease)
    }
}
