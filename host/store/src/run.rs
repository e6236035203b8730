//! Runs: what one is about, how it ends, and what people see of it.

mod context;
mod end;
mod list;

use chrono::{DateTime, Utc};
use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::id::{EventId, LineageId, RunId, WorkflowId, WorkflowVersionId};
use serde_json::Value;
use uuid::Uuid;

pub(crate) use self::end::{STEP_CANCELLED, Within, cancel_open_steps};
pub use self::list::RunFilter;

use crate::value::text_enum;

text_enum! {
    /// Where a run stands.
    RunState {
        /// Nothing of it has begun.
        Pending = "pending",
        /// A step is being worked on, or about to be.
        Running = "running",
        /// A step is blocked, and nothing else can move.
        Blocked = "blocked",
        /// It waits on purpose.
        Waiting = "waiting",
        /// Ended with an output.
        Succeeded = "succeeded",
        /// Ended with an error.
        Failed = "failed",
        /// Ended by a person, or by the workflow.
        Cancelled = "cancelled",
    }
}

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A call.
    Api,
    /// An event.
    Event {
        /// Which.
        event: EventId,
        /// By which of the workflow's bindings to its type.
        ordinal: u32,
    },
    /// A step of another run.
    Run {
        /// That run.
        parent: RunId,
    },
}

impl Trigger {
    /// Its name in the database and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Event { .. } => "event",
            Self::Run { .. } => "run",
        }
    }

    /// The event that it is, and by which binding.
    pub(crate) fn columns(self) -> (Option<Uuid>, Option<i32>) {
        match self {
            Self::Api | Self::Run { .. } => (None, None),
            Self::Event { event, ordinal } => (Some(event.0), Some(ordinal.cast_signed())),
        }
    }
}

/// What a step's decisions are taken from.
#[derive(Debug, Clone, PartialEq)]
pub struct RunContext {
    /// The run.
    pub run: RunId,
    /// The run and all its replays.
    pub lineage: LineageId,
    /// Its workflow.
    pub workflow: WorkflowId,
    /// The version that it is pinned to.
    pub version: WorkflowVersionId,
    /// The event that started it, as expressions see it.
    pub event: Value,
    /// Its input.
    pub input: Value,
    /// When it was admitted.
    pub admitted_at: DateTime<Utc>,
    /// Runs above it: it was started by a step of another if there are any.
    pub depth: u32,
    /// What its tenant's blocks may use at most.
    pub limits: WantedLimits,
    /// What its steps came to that succeeded, as far as the iteration at hand sees them: node, iteration path, output,
    /// branch chosen.
    pub outputs: Vec<(String, Vec<u32>, Value, Option<String>)>,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// The run.
    pub id: RunId,
    /// Its workflow's name.
    pub workflow_name: String,
    /// Number of the version that it is pinned to.
    pub version: u32,
    /// Where it stands.
    pub state: RunState,
    /// When it was admitted.
    pub admitted_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// The record that it is about.
    pub record: Option<String>,
    /// What started it.
    pub trigger: Trigger,
}

impl RunRow {
    /// Where a list goes on after this row.
    pub fn cursor(&self) -> String {
        self.id.0.simple().to_string()
    }
}

/// A run with its payloads.
#[derive(Debug, Clone, PartialEq)]
pub struct RunView {
    /// As in a list.
    pub row: RunRow,
    /// The run and all its replays.
    pub lineage: LineageId,
    /// The event that started it.
    pub event: Value,
    /// Its input.
    pub input: Value,
    /// What came of it, if it succeeded.
    pub output: Option<Value>,
    /// Why it failed, if it did.
    pub error: Option<Value>,
}

/// What came of a wish to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled.
    Done,
    /// It had ended before.
    AlreadyEnded,
    /// There is no such run.
    NotFound,
}
