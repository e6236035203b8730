//! Work for workers outside the host: queued with its receipt, taken at most once, answered by whoever took it.
//!
//! Whoever takes a task, keeps it, ends it or answers it locks the step first that waits for it, so that one of two sees the
//! other.

mod answer;
mod end;
mod keep;
mod poll;
mod queue;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, RunId};
use counterfoil_domain::receipt::ReceiptState;
use serde_json::Value;
use uuid::Uuid;

pub(crate) use self::end::withdraw;

/// Work to queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewTask<'a> {
    /// The queue.
    pub queue: &'a str,
    /// What the worker is given.
    pub input: &'a Value,
    /// How long it may lie there.
    pub claim_within: Duration,
    /// How long a worker may be at it.
    pub timeout: Duration,
}

/// A worker that looks for work.
#[derive(Debug, Clone, Copy)]
pub struct Poll<'a> {
    /// What it calls itself.
    pub worker: &'a str,
    /// The queues that it serves.
    pub queues: &'a [String],
    /// Names what it takes by this poll.
    pub claim: Uuid,
    /// Tasks that it takes at most.
    pub tasks_max: u32,
    /// How long they are its own without a heartbeat.
    pub lease: Duration,
}

/// A task that a worker has taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its receipt.
    pub id: EffectId,
    /// By which it is the worker's.
    pub claim: Uuid,
    /// The queue that it lay in.
    pub queue: String,
    /// What the worker is given.
    pub input: Value,
    /// The key by which a repeat is recognised.
    pub idempotency_key: String,
    /// The run that it is for.
    pub run: RunId,
    /// The node that queued it.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// Until when it is the worker's without a heartbeat.
    pub lease_until: DateTime<Utc>,
    /// Until when it is the worker's at all.
    pub deadline: DateTime<Utc>,
}

/// What came of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// The task is still the worker's.
    Kept {
        /// Until when, without another.
        lease_until: DateTime<Utc>,
        /// Until when at all.
        deadline: DateTime<Utc>,
    },
    /// Somebody else has taken it, or nobody.
    NotOwned,
    /// Its time is over, or what became of it is settled.
    Over,
    /// There is no such task.
    NotFound,
}

/// What came of a worker's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is recorded.
    Recorded {
        /// Where the receipt stands now.
        state: ReceiptState,
    },
    /// Somebody else has taken the task, or nobody.
    NotOwned,
    /// Something else is settled.
    Over {
        /// Where the receipt stands.
        state: ReceiptState,
    },
    /// There is no such task.
    NotFound,
}

/// What is with the tasks of a step that is claimed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TasksEnd {
    /// The time of one is not over: the step waits on.
    Waits,
    /// None is under way any more.
    Over,
    /// The step is not this execution's any more. Nothing was written.
    Lost,
}
