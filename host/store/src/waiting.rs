//! Steps that wait for something from outside their run: a signal, an event, a person, another run.
//!
//! Whoever brings it locks the run before it looks who waits; whoever begins to wait locks it before it looks what has come.

mod approval;
mod begin;
mod child;
mod end;
mod event;
mod signal;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, StepId};
use serde_json::Value;
use uuid::Uuid;

pub use self::approval::{ApprovalOutcome, ApprovalRow, Decided};
pub use self::child::{ChildAdmission, ChildRun, ChildVerdict};
pub(crate) use self::child::{bind_types, end_child};
pub(crate) use self::end::{cancel_waits, end_wait};
pub use self::signal::{NewSignal, Signalled};

use crate::step::Fence;

/// What is kept for one run and not taken yet, at most: who sends more is not listened to.
pub const SIGNALS_PER_RUN_MAX: i64 = 1_000;

/// A step that is to wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Await {
    /// Its execution.
    pub fence: Fence,
    /// Its run.
    pub run: RunId,
    /// For what.
    pub what: Awaited,
    /// For how long; for ever if there is none.
    pub timeout: Option<Duration>,
    /// How many of those that came it has looked at, and none was what it waits for.
    pub seen: i64,
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Awaited {
    /// A signal of this name.
    Signal {
        /// Its name.
        name: String,
    },
    /// An event.
    Event {
        /// Its type.
        event_type: String,
        /// The record that it has to be about.
        record: Option<String>,
    },
    /// A person's decision.
    Approval {
        /// Path of the node.
        node: String,
        /// What is asked.
        title: String,
        /// What there is to know about it.
        detail: Value,
        /// JSON Schema of what is to be filled in.
        form: Option<Value>,
    },
}

/// What came of a wish to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AwaitVerdict {
    /// It waits, or goes on at once with what has come.
    Waiting,
    /// The step is not this execution's any more. Nothing was written.
    Lost,
}

/// A step that waits, as its execution finds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The time is over.
    pub is_over: bool,
    /// What has come and was not taken, in that order.
    pub signals: Vec<SignalRow>,
}

/// Something that came to a run.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalRow {
    /// Its id; of an event, that of the event.
    pub id: Uuid,
    /// Its name, or the type of the event.
    pub name: String,
    /// The record that the event is about.
    pub record: Option<String>,
    /// What it says.
    pub data: Value,
    /// When it came.
    pub received_at: DateTime<Utc>,
}

/// How a step's wait ends that settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// It takes this.
    Takes(Uuid),
    /// It has looked at so many, and the time is over.
    TimedOut {
        /// How many.
        seen: i64,
    },
    /// Nobody decided in time.
    Expired,
    /// What it waited for has come, and stays as it is.
    Came,
}

/// The step that a run was started by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Its run.
    pub run: RunId,
    /// The step.
    pub step: StepId,
}
