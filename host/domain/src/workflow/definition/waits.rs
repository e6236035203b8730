//! Nodes that wait for somebody else: a signal, an event, a person, another run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Retry, Step, name_schema, task_safety_schema};
use crate::effect::Safety;
use crate::workflow::duration::Duration;

/// Waits for a signal to the run, or for an event.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ListenNode {
    /// What it waits for.
    pub listen: Listen,
    /// What follows when it did not come in time. Without it, the step fails then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Step>")]
    pub on_timeout: Option<Vec<Step>>,
}

/// What a `listen` waits for: a signal or an event.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Name of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "name_schema")]
    pub signal: Option<String>,
    /// Type of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    pub event: Option<String>,
    /// Of an event, the record that it has to be about. A text that begins with `=` is a CEL expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub record: Option<String>,
    /// A condition, in CEL, over `signal` (its `name`, `record` and `data`) and all that the step sees.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub matches: Option<String>,
    /// How long it waits; for ever if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub timeout: Option<Duration>,
}

/// Asks a person.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ApprovalNode {
    /// The question.
    pub approval: Approval,
    /// What follows when nobody answered in time. Without it, the step fails then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Step>")]
    pub on_timeout: Option<Vec<Step>>,
}

/// A question to a person. In `title` and `detail`, a text that begins with `=` is a CEL expression.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// What is asked, in a line.
    #[schemars(length(min = 1))]
    pub title: String,
    /// What there is to know about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub detail: Option<Value>,
    /// JSON Schema of what is to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub form: Option<Value>,
    /// How long there is time; for ever if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub deadline: Option<Duration>,
}

/// Hands work to a worker outside the host, which fetches it from a queue and says what came of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerNode {
    /// The work.
    pub worker: Worker,
    /// What follows when it is known that nothing took place, or if the worker recognises a repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// Work for a worker. In `input`, a string that begins with `=` is a CEL expression.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// The queue that workers fetch it from.
    #[schemars(schema_with = "name_schema")]
    pub queue: String,
    /// What the worker is given.
    #[serde(default = "empty")]
    pub input: Value,
    /// What may be done when a worker took it and nobody knows what became of it: `at-most-once`, or `idempotent` if the
    /// workers of the queue recognise a repeat by its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "task_safety_schema")]
    pub safety: Option<Safety>,
    /// How long it may lie in the queue; 1h if absent. If no worker has taken it by then, it has not been sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub claim_within: Option<Duration>,
    /// How long a worker may be at it; 1h if absent. Its heartbeats keep it no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub timeout: Option<Duration>,
}

/// Starts a run of another workflow, of the version that is active then.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowNode {
    /// Name of the workflow.
    #[schemars(schema_with = "name_schema")]
    pub workflow: String,
    /// Its input. A string that begins with `=` is a CEL expression.
    #[serde(default = "empty")]
    pub input: Value,
    /// Whether the step waits for the end of the run. If so, its output is that of the run, and if the run fails or is
    /// cancelled, the step fails; else its output is `{ "run" }`.
    #[serde(default = "waits")]
    pub wait: bool,
}

fn empty() -> Value {
    Value::Object(Map::new())
}

fn waits() -> bool {
    true
}
