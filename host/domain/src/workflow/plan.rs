//! The compiled form of a workflow: flat, immutable, and stored with the version.
//!
//! Nodes stand in the order in which they can be reached: every edge goes forward, but for the one from a branch's end
//! back to its container, which goes on from there. So following edges always ends.

mod node;
mod shape;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::node::{
    Listened, NodeKind, PlanApproval, PlanBranch, PlanHttp, PlanListen, PlanNode, PlanStage, PlanTask, Then,
};
pub(super) use self::shape::Inside;
use self::shape::Shape;
use super::definition::{DedupMode, Invariant};
use crate::expression::{Compiled, EvaluationError, Expression, Reason, Root, Scope};
use crate::id::Digest;
use crate::step::RetryPolicy;

pub use super::render::{RenderedEvent, RenderedHttp, RenderedTask};

/// The newest form of stored plans. A plan is stored in the oldest form that has all its nodes, so that hosts of before
/// an upgrade follow what they know and refuse the rest by its number. What is stored once is readable for ever.
pub const PLAN_FORMAT: u32 = 3;

/// What the engine follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Stored")]
pub struct Plan {
    pub(super) workflow: String,
    pub(super) version: Digest,
    pub(super) triggers: Vec<PlanTrigger>,
    pub(super) nodes: Vec<PlanNode>,
    pub(super) invariants: Vec<Invariant>,
    shape: Shape,
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

    /// Types of the events that its steps wait for.
    pub fn listened(&self) -> Vec<String> {
        let event = |node: &PlanNode| match &node.kind {
            NodeKind::Listen { listen, .. } => match &listen.what {
                Listened::Event(event) => Some(event.clone()),
                Listened::Signal(_) => None,
            },
            _ => None,
        };
        self.nodes.iter().filter_map(event).collect()
    }

    /// The connections that its own calls go through; what its blocks go through, those say.
    pub fn connections(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            NodeKind::Http { call, .. } => call.connection.as_deref(),
            _ => None,
        })
    }

    /// The block versions that it runs.
    pub fn blocks(&self) -> impl Iterator<Item = Digest> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            NodeKind::Block { digest, .. } => Some(*digest),
            _ => None,
        })
    }

    /// The node with this path.
    pub fn node(&self, path: &str) -> Option<&PlanNode> {
        self.nodes.iter().find(|node| node.path == path)
    }

    /// When the node is tried again: its own policy, the default for blocks and calls, never for flow control. `None` if
    /// there is no such node.
    pub fn retry(&self, path: &str) -> Option<RetryPolicy> {
        Some(match &self.node(path)?.kind {
            NodeKind::Block { retry, .. } | NodeKind::Http { retry, .. } | NodeKind::Worker { retry, .. } => {
                retry.clone().unwrap_or(RetryPolicy::DEFAULT)
            }
            _ => RetryPolicy::NEVER,
        })
    }

    /// A plan of these nodes.
    ///
    /// # Errors
    /// If an edge leads nowhere.
    pub(super) fn new(
        workflow: String,
        version: Digest,
        triggers: Vec<PlanTrigger>,
        nodes: Vec<PlanNode>,
        invariants: Vec<Invariant>,
    ) -> Result<Self, PlanError> {
        let shape = Shape::of(&nodes)?;
        Ok(Self { workflow, version, triggers, nodes, invariants, shape })
    }

    pub(super) fn position(&self, path: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.path == path)
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl TryFrom<Value> for Plan {
    type Error = PlanError;

    fn try_from(stored: Value) -> Result<Self, PlanError> {
        // The format first: what a newer host wrote may hold anything.
        let format = stored.get("format").and_then(Value::as_u64).unwrap_or_default();
        // A later form has nodes that an earlier one has not; what both have is the same in both.
        if !(1..=u64::from(PLAN_FORMAT)).contains(&format) {
            return Err(PlanError::FormatUnknown(format));
        }
        let unreadable = |error: serde_json::Error| PlanError::Unreadable(error.to_string());
        let Stored { workflow, version, triggers, nodes, invariants, .. } =
            serde_json::from_value(stored).map_err(unreadable)?;
        Self::new(workflow, version, triggers, nodes, invariants)
    }
}

impl From<Plan> for Stored {
    fn from(plan: Plan) -> Self {
        let Plan { workflow, version, triggers, nodes, invariants, shape: _ } = plan;
        let format = nodes.iter().map(|node| node.kind.format()).max().unwrap_or(1);
        Self { format, workflow, version, triggers, nodes, invariants }
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
