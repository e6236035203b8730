//! What ends an execution of a step: it settles, waits for another attempt, or is blocked. One transaction each, fenced on
//! the execution's lease.

mod advance;
mod answer;
mod answers;
mod block;
mod conclude;
mod finish;
mod hand_back;
mod hold;
mod inline;
mod next;
mod open;
mod own;
mod retry;
mod together;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{Digest, HostId, LineageId, RunId, StepId};
use counterfoil_domain::limits::is_too_deep;
use counterfoil_domain::receipt::{Receipt, ReceiptState, Transition};
use counterfoil_domain::workflow::advance::Container;
use serde_json::Value;

pub(crate) use self::advance::{Kept, first_ready};
pub(crate) use self::answer::{Written, write};
pub(crate) use self::answers::{Answered, flush_answers};
pub(crate) use self::inline::{Inline, insert_inline};
pub(crate) use self::open::OpenArrays;
pub use self::own::{Change, OwnEffect};
pub(crate) use self::together::{Together, flush_settlements};

use crate::StoreError;
use crate::container::Containers;
use crate::step::{Claimed, Fence, Wait};
use crate::value::text_enum;

/// A write to our own database that commits with the end of an execution.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few are alive at a time, and every one is written")]
pub enum OwnWrite {
    /// The answer to an effect. It has been written already if its receipt stands where the answer would bring it.
    Answer(Transition),
    /// A receipt that is answered when it is first written: of a read-only effect, or of one that was refused before it
    /// was sent.
    ReadOnly(Receipt),
}

text_enum! {
    /// How a step ends.
    SettledState {
        /// With an output.
        Succeeded = "succeeded",
        /// On a branch that was not taken.
        Skipped = "skipped",
        /// With an error.
        Failed = "failed",
        /// With its run.
        Cancelled = "cancelled",
    }
}

text_enum! {
    /// How a run ends.
    RunEndState {
        /// With an output.
        Succeeded = "succeeded",
        /// With an error.
        Failed = "failed",
        /// By a person, or by the workflow.
        Cancelled = "cancelled",
    }
}

/// A step that has settled.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledStep {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// How it ended.
    pub state: SettledState,
    /// What came of it, if it succeeded.
    pub output: Option<Value>,
    /// Why it failed, if it did.
    pub error: Option<Value>,
    /// Which branch it chose, if it chooses.
    pub choice: Option<String>,
}

/// A step that a run has from now on. Its id follows from its run and place.
#[derive(Debug, Clone, PartialEq)]
pub struct NewStep {
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// What it waits for: nothing, a delay, or what is inside it.
    pub wait: Wait,
    /// Time until it is due.
    pub delay: Duration,
    /// When it is due instead.
    pub until: Option<DateTime<Utc>>,
    /// The block that it runs, if it runs one.
    pub block: Option<Digest>,
    /// What it holds, if it is a container.
    pub container: Option<Container>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    /// How it ended.
    pub state: RunEndState,
    /// What came of it, if it succeeded.
    pub output: Option<Value>,
    /// Why it failed, if it did.
    pub error: Option<Value>,
}

/// The end of a step, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// The execution that ended.
    pub fence: Fence,
    /// Its run.
    pub run: RunId,
    /// The run's lineage.
    pub lineage: LineageId,
    /// What commits with it, in order.
    pub writes: Vec<OwnWrite>,
    /// What it does to our own database, in order. Only a step that succeeds does anything.
    pub own: Vec<OwnEffect>,
    /// The step itself.
    pub settled: SettledStep,
    /// What the guest logged.
    pub logs: Option<Value>,
    /// Steps that settle with it and were never open: evaluated on the way, or on a branch not taken.
    pub inline: Vec<SettledStep>,
    /// What it means for the containers around it, or for itself if it is one.
    pub containers: Containers,
    /// Steps that follow; none if the run ends.
    pub open: Vec<NewStep>,
    /// The first step that follows and is ready is leased to this host at once, for this long.
    pub keep: Option<(HostId, Duration)>,
    /// The run ends with it; whatever it has still open is cancelled.
    pub end: Option<RunEnd>,
}

impl Settlement {
    /// Refuses what could be stored and not be read again.
    fn check_depth(&self) -> Result<(), StoreError> {
        let steps = std::iter::once(&self.settled).chain(&self.inline);
        let outputs = steps.filter_map(|step| step.output.as_ref());
        check_depth(outputs.chain(self.end.as_ref().and_then(|end| end.output.as_ref())))
    }
}

/// Refuses payloads that are nested too deeply to be read again.
pub(crate) fn check_depth<'a>(payloads: impl IntoIterator<Item = &'a Value>) -> Result<(), StoreError> {
    if payloads.into_iter().any(is_too_deep) {
        return Err(StoreError::Unstorable("a payload that is nested too deeply"));
    }
    Ok(())
}

/// What came of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is matched where it is returned")]
pub enum SettleVerdict {
    /// It is durable.
    Settled {
        /// The step that follows, if this host keeps it.
        next: Option<Claimed>,
    },
    /// The step is not this execution's any more. Nothing was written.
    Lost,
    /// A receipt of the step is dispatched or unknown, so that it cannot end. Nothing was written; block it.
    Unanswered,
    /// A receipt that was to be written first exists already. Nothing was written; run the step again.
    Rerun,
}

/// The end of an execution after which the step is tried again.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryLater {
    /// The execution that ended.
    pub fence: Fence,
    /// Its run.
    pub run: RunId,
    /// What commits with it, in order.
    pub writes: Vec<OwnWrite>,
    /// Receipts of idempotent effects whose outcome is open: dispatched to unknown.
    pub lose: Vec<Transition>,
    /// Time until the next execution.
    pub delay: Duration,
    /// Why it failed.
    pub error: Value,
    /// What the guest logged.
    pub logs: Option<Value>,
    /// The next execution is another attempt; otherwise the same one goes on.
    pub next_attempt: bool,
}

/// What came of a wish to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVerdict {
    /// The step waits.
    Waiting,
    /// The step is not this execution's any more. Nothing was written.
    Lost,
    /// A receipt that was to be written first exists already. Nothing was written; run the step again.
    Rerun,
}

/// The end of an execution that has to wait, and goes on with the answers that it has.
#[derive(Debug, Clone, PartialEq)]
pub struct HandBack {
    /// The execution that ended.
    pub fence: Fence,
    /// What commits with it, in order.
    pub writes: Vec<OwnWrite>,
    /// Time until the next execution, of the same attempt.
    pub delay: Duration,
    /// What it waits for, as people read it.
    pub why: Option<Value>,
    /// What ran it is gone, which is counted.
    pub lost: bool,
}

/// The end of an execution that met an outcome which is unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocking {
    /// The execution that ended.
    pub fence: Fence,
    /// Its run.
    pub run: RunId,
    /// What commits with it, in order.
    pub writes: Vec<OwnWrite>,
    /// Receipts whose outcome is open, with the reasons: dispatched to unknown.
    pub lose: Vec<Transition>,
    /// Why it is blocked.
    pub error: Value,
    /// What the guest logged.
    pub logs: Option<Value>,
}

/// What came of a wish to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockVerdict {
    /// The step waits until its outcome is known.
    Blocked,
    /// What was unknown has been settled meanwhile: the step is ready, in the same attempt.
    Resumed,
    /// The step is not this execution's any more. Nothing was written.
    Lost,
    /// A receipt that was to be written first exists already. Nothing was written; run the step again.
    Rerun,
}

/// What came of a compare-and-swap on a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// It moved.
    Moved,
    /// It did not stand where it was expected. Nothing was written.
    Lost {
        /// Where it stands; none if there is no such receipt.
        found: Option<ReceiptState>,
    },
}
