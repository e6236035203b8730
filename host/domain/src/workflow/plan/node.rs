//! The nodes of a plan.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::effect::Safety;
use crate::expression::{Compiled, Expression, Template};
use crate::id::Digest;
use crate::step::RetryPolicy;
use crate::workflow::definition::{ItemFailure, Losers, StopOutcome, TryFailure};

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanNode {
    /// Step names from the outermost in, joined by `/`. Unique, and the node's identity in receipts.
    pub path: String,
    /// What it does.
    #[serde(flatten)]
    pub kind: NodeKind,
    /// What comes behind it.
    pub then: Then,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NodeKind {
    /// Runs a block.
    Block {
        /// Its name.
        block: String,
        /// Its version, pinned when the workflow was saved.
        digest: Digest,
        /// Its input.
        input: Compiled<Template>,
        /// The node's own policy, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry: Option<RetryPolicy>,
    },
    /// Makes one HTTP call.
    Http {
        /// The call.
        call: Box<PlanHttp>,
        /// The node's own policy, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry: Option<RetryPolicy>,
    },
    /// Waits.
    Delay {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// Waits until a moment.
    Until {
        /// When, as text.
        until: Compiled<Template>,
        /// The zone of a local time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
    },
    /// Takes one of several branches.
    Switch {
        /// In the order in which they are asked.
        branches: Vec<PlanBranch>,
    },
    /// Goes through several branches at the same time.
    Parallel {
        /// Each branch's nodes, nested ones included.
        branches: Vec<Range<usize>>,
        /// Branches that have to succeed.
        needed: u32,
        /// What becomes of the others then.
        losers: Losers,
    },
    /// Goes through its nodes once for each of some items.
    Map {
        /// The items.
        items: Compiled<Template>,
        /// The nodes.
        body: Range<usize>,
        /// Items that are worked on at once.
        concurrency: u32,
        /// What follows when an item fails.
        on_failure: ItemFailure,
    },
    /// Goes through stages one after the other, and undoes them when one fails.
    Try {
        /// The stages. What undoes them stands behind the last one, in reverse order.
        stages: Vec<PlanStage>,
        /// What follows when everything is undone.
        on_failure: TryFailure,
    },
    /// Records an event.
    Emit {
        /// Its type.
        event: String,
        /// The record that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Compiled<Template>>,
        /// What it says.
        data: Compiled<Template>,
    },
    /// Waits for a signal or an event.
    Listen {
        /// Which.
        listen: Box<PlanListen>,
        /// The nodes for when it did not come in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_timeout: Option<Range<usize>>,
    },
    /// Asks a person.
    Approval {
        /// What.
        approval: Box<PlanApproval>,
        /// The nodes for when nobody answered in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_timeout: Option<Range<usize>>,
    },
    /// Starts a run of another workflow.
    Workflow {
        /// Its name.
        workflow: String,
        /// Its input.
        input: Compiled<Template>,
        /// Whether the step waits for the run's end.
        wait: bool,
    },
    /// Hands work to a worker outside the host.
    Worker {
        /// The work.
        task: Box<PlanTask>,
        /// The node's own policy, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry: Option<RetryPolicy>,
    },
    /// Computes a value.
    Set {
        /// The value.
        value: Compiled<Template>,
    },
    /// Ends the run.
    Stop {
        /// As what.
        outcome: StopOutcome,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Compiled<Template>>,
        /// The run's output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Compiled<Template>>,
    },
}

/// An HTTP call that is yet to be rendered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanHttp {
    /// The method.
    pub method: String,
    /// Absolute, or a path where a connection is named.
    pub url: Compiled<Template>,
    /// A map of header fields.
    pub headers: Compiled<Template>,
    /// The body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Compiled<Template>>,
    /// The connection that it goes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// What was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety: Option<Safety>,
    /// What was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Compiled<Template>>,
    /// For the whole call, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
}

/// Work for a worker that is yet to be rendered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanTask {
    /// The queue that workers fetch it from.
    pub queue: String,
    /// What the worker is given.
    pub input: Compiled<Template>,
    /// What was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety: Option<Safety>,
    /// How long it may lie in the queue, in milliseconds.
    pub claim_within_ms: u64,
    /// How long a worker may be at it, in milliseconds.
    pub timeout_ms: u64,
}

/// A branch of a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanBranch {
    /// Its condition; none for `else`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Compiled<Expression>>,
    /// Its nodes, nested ones included. The first of them is where it begins.
    pub nodes: Range<usize>,
}

/// What a `listen` waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanListen {
    /// A signal or an event.
    pub what: Listened,
    /// The record that an event has to be about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Compiled<Template>>,
    /// The condition on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<Compiled<Expression>>,
    /// For how long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A signal or an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listened {
    /// A signal of this name.
    Signal(String),
    /// An event of this type.
    Event(String),
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanApproval {
    /// What is asked.
    pub title: Compiled<Template>,
    /// What there is to know about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Compiled<Template>>,
    /// JSON Schema of what is to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// How long there is time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// A stage of a `try`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStage {
    /// What it does. Its last node leads to the next stage.
    pub nodes: Range<usize>,
    /// What undoes it. Its last node leads to what undoes the stage before it.
    pub undo: Range<usize>,
}

/// What comes behind a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The node at this position.
    Node(usize),
    /// A part of the container at this position is done. A switch has one that counts, and goes on.
    Join(usize),
    /// The end of the run.
    End,
}

impl NodeKind {
    /// The ranges of nodes inside, in the order in which they stand.
    pub(in crate::workflow) fn parts(&self) -> Vec<&Range<usize>> {
        match self {
            Self::Switch { branches } => branches.iter().map(|branch| &branch.nodes).collect(),
            Self::Parallel { branches, .. } => branches.iter().collect(),
            Self::Map { body, .. } => vec![body],
            Self::Listen { on_timeout: Some(part), .. } | Self::Approval { on_timeout: Some(part), .. } => {
                vec![part]
            }
            Self::Try { stages, .. } => {
                let (done, undone) = (stages.iter(), stages.iter().rev());
                done.map(|stage| &stage.nodes).chain(undone.map(|stage| &stage.undo)).collect()
            }
            _ => vec![],
        }
    }

    /// Whether it goes through its parts beside each other, and nothing tells one from another but its steps: where not all of
    /// them have to succeed, what comes of it names those that did, by their place.
    pub(in crate::workflow) fn has_equal_lanes(&self) -> bool {
        matches!(self, Self::Parallel { branches, needed, .. } if *needed as usize == branches.len())
    }

    /// Whether it is open itself while the nodes inside are.
    pub fn is_container(&self) -> bool {
        matches!(self, Self::Parallel { .. } | Self::Map { .. } | Self::Try { .. })
    }

    /// The oldest format of plans that has it.
    pub(super) fn format(&self) -> u32 {
        match self {
            Self::Block { .. }
            | Self::Http { .. }
            | Self::Delay { .. }
            | Self::Switch { .. }
            | Self::Set { .. }
            | Self::Stop { .. } => 1,
            Self::Until { .. }
            | Self::Parallel { .. }
            | Self::Map { .. }
            | Self::Try { .. }
            | Self::Emit { .. }
            | Self::Listen { .. }
            | Self::Approval { .. }
            | Self::Workflow { .. } => 2,
            Self::Worker { .. } => 3,
        }
    }
}
