//! The compiled form of a workflow: flat, immutable, and stored with the version.
//!
//! Nodes stand in the order in which they can be reached: every edge goes forward, but for the one from a branch's end
//! back to its container, which goes on from there. So following edges always ends.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::definition::{DedupMode, Invariant, StopOutcome};
use crate::effect::Safety;
use crate::expression::{Compiled, EvaluationError, Expression, Reason, Root, Scope, Template};
use crate::id::Digest;
use crate::step::RetryPolicy;

pub use super::render::RenderedHttp;

/// The form of stored plans. A change that older hosts would misread is a new one, and older forms are migrated when
/// they are read.
pub const PLAN_FORMAT: u32 = 1;

/// What the engine follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Stored")]
pub struct Plan {
    pub(super) workflow: String,
    pub(super) version: Digest,
    pub(super) triggers: Vec<PlanTrigger>,
    pub(super) nodes: Vec<PlanNode>,
    pub(super) invariants: Vec<Invariant>,
}

/// A stored plan that this host cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Written by a newer host.
    #[error("the plan has format {0}, this host knows formats up to {PLAN_FORMAT}")]
    FormatUnknown(u64),
    /// Not a plan at all, or not of its format.
    #[error("the plan cannot be read: {0}")]
    Unreadable(String),
    /// Its edges do not lead forward, or out of it.
    #[error("an edge of the plan leads nowhere, at node {node}")]
    EdgeInvalid {
        /// Position of the node.
        node: usize,
    },
}

/// A plan as it is stored.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    format: u32,
    workflow: String,
    version: Digest,
    #[serde(default)]
    triggers: Vec<PlanTrigger>,
    nodes: Vec<PlanNode>,
    #[serde(default)]
    invariants: Vec<Invariant>,
}

/// An event that starts a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanTrigger {
    /// Its type.
    pub event: String,
    /// The condition on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Compiled<Expression>>,
    /// The record that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Compiled<Expression>>,
    /// How often one record may start a run.
    pub dedup: DedupMode,
}

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
    /// Takes one of several branches.
    Switch {
        /// In the order in which they are asked.
        branches: Vec<PlanBranch>,
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

/// A branch of a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanBranch {
    /// Its condition; none for `else`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Compiled<Expression>>,
    /// Its nodes, nested ones included. The first of them is where it begins.
    pub nodes: Range<usize>,
}

/// What comes behind a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The node at this position.
    Node(usize),
    /// The container at this position has one branch less to wait for. A switch waits for one, and goes on.
    Join(usize),
    /// The end of the run.
    End,
}

impl Plan {
    /// Name of the workflow.
    pub fn workflow(&self) -> &str {
        &self.workflow
    }

    /// Hash of the canonical definition that it was compiled from.
    pub fn version(&self) -> Digest {
        self.version
    }

    /// Events that start it.
    pub fn triggers(&self) -> &[PlanTrigger] {
        &self.triggers
    }

    /// All nodes, in the order in which they can be reached.
    pub fn nodes(&self) -> &[PlanNode] {
        &self.nodes
    }

    /// What must hold whatever its steps do.
    pub fn invariants(&self) -> &[Invariant] {
        &self.invariants
    }

    /// The node with this path.
    pub fn node(&self, path: &str) -> Option<&PlanNode> {
        self.nodes.iter().find(|node| node.path == path)
    }

    /// When the node is tried again: its own policy, the default for blocks and calls, never for flow control. `None` if
    /// there is no such node.
    pub fn retry(&self, path: &str) -> Option<RetryPolicy> {
        Some(match &self.node(path)?.kind {
            NodeKind::Block { retry, .. } | NodeKind::Http { retry, .. } => {
                retry.clone().unwrap_or(RetryPolicy::DEFAULT)
            }
            _ => RetryPolicy::NEVER,
        })
    }

    fn check_edges(&self) -> Result<(), PlanError> {
        for (position, node) in self.nodes.iter().enumerate() {
            let branches = match &node.kind {
                NodeKind::Switch { branches } => branches.as_slice(),
                _ => &[],
            };
            let mut inner_end = position + 1;
            for branch in branches {
                if branch.nodes.start != inner_end || branch.nodes.end < branch.nodes.start {
                    return Err(PlanError::EdgeInvalid { node: position });
                }
                inner_end = branch.nodes.end;
            }
            let leads_on = match node.then {
                Then::Node(next) => next == inner_end && next < self.nodes.len(),
                Then::Join(container) => self.is_inside(position, container),
                Then::End => true,
            };
            if inner_end > self.nodes.len() || !leads_on {
                return Err(PlanError::EdgeInvalid { node: position });
            }
        }
        Ok(())
    }

    fn is_inside(&self, position: usize, container: usize) -> bool {
        match self.nodes.get(container).map(|node| &node.kind) {
            Some(NodeKind::Switch { branches }) => {
                branches.iter().any(|branch| branch.nodes.contains(&position))
            }
            _ => false,
        }
    }
}

impl TryFrom<Value> for Plan {
    type Error = PlanError;

    fn try_from(stored: Value) -> Result<Self, PlanError> {
        // The format first: what a newer host wrote may hold anything.
        let format = stored.get("format").and_then(Value::as_u64).unwrap_or_default();
        if format != u64::from(PLAN_FORMAT) {
            return Err(PlanError::FormatUnknown(format));
        }
        let unreadable = |error: serde_json::Error| PlanError::Unreadable(error.to_string());
        let Stored { workflow, version, triggers, nodes, invariants, .. } =
            serde_json::from_value(stored).map_err(unreadable)?;
        let plan = Self { workflow, version, triggers, nodes, invariants };
        plan.check_edges()?;
        Ok(plan)
    }
}

impl From<Plan> for Stored {
    fn from(plan: Plan) -> Self {
        let Plan { workflow, version, triggers, nodes, invariants } = plan;
        Self { format: PLAN_FORMAT, workflow, version, triggers, nodes, invariants }
    }
}

impl PlanTrigger {
    /// Whether its condition holds for `event`.
    ///
    /// # Errors
    /// If the condition cannot be evaluated.
    pub fn holds(&self, event: &Value) -> Result<bool, EvaluationError> {
        match &self.when {
            None => Ok(true),
            Some(when) => compiled(when)?.holds(&Scope::of_event(event)),
        }
    }

    /// The record that `event` is about, as text; `None` if the trigger does not ask, or the event names none.
    ///
    /// # Errors
    /// If the expression cannot be evaluated, or comes to something else than a text, an integer or null.
    pub fn record(&self, event: &Value) -> Result<Option<String>, EvaluationError> {
        let Some(record) = &self.record else { return Ok(None) };
        let failed = |reason| EvaluationError { expression: record.source().clone(), reason };
        match compiled(record)?.evaluate(&Scope::of_event(event)) {
            Ok(Value::String(record)) if record.is_empty() => Ok(None),
            Ok(Value::String(record)) => Ok(Some(record)),
            Ok(Value::Number(record)) if !record.is_f64() => Ok(Some(record.to_string())),
            Ok(Value::Null) | Err(EvaluationError { reason: Reason::MissingField { .. }, .. }) => Ok(None),
            Ok(_) => Err(failed(Reason::WrongType("a record is a string or an integer".to_owned()))),
            Err(error) => Err(error),
        }
    }
}

/// The compiled form of a stored expression, or its refusal as an error of the evaluation.
pub(super) fn compiled(expression: &Compiled<Expression>) -> Result<&Expression, EvaluationError> {
    expression.get().map_err(|error| EvaluationError {
        expression: expression.source().clone(),
        reason: Reason::Failed(error.message),
    })
}

/// The root variables of a trigger.
pub(super) const TRIGGER_ROOTS: &[Root] = &[Root::Event];
