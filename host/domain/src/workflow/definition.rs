//! What an author writes. The types are the JSON Schema that is published.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(super) use self::containers::default_concurrency;
pub use self::containers::{
    ItemFailure, Join, Lane, Losers, Map as MapSpec, MapNode, ParallelNode, Stage, TryFailure, TryNode,
};
pub use self::own::{Delay, DelayNode, Emit, EmitNode, Until};
pub use self::waits::{Approval, ApprovalNode, Listen, ListenNode, Worker, WorkerNode, WorkflowNode};
use super::duration::Duration;
use crate::effect::Safety;

mod containers;
mod own;
mod waits;

/// The JSON Schema (draft 2020-12) of workflow definitions.
pub fn schema() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Definition>().to_value()
}

/// A workflow.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(rename = "Workflow", deny_unknown_fields)]
pub struct Definition {
    /// Name of the workflow.
    #[schemars(schema_with = "name_schema")]
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Events that start it. Without any, it is started by call only.
    #[serde(default)]
    #[schemars(length(max = super::RULES_MAX))]
    pub triggers: Vec<Trigger>,
    /// What it does, in order.
    #[schemars(length(min = 1))]
    pub steps: Vec<Step>,
    /// What must hold whatever its steps do.
    #[serde(default)]
    #[schemars(length(max = super::RULES_MAX))]
    pub invariants: Vec<Invariant>,
}

/// An event that starts a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Type of the event, such as `crm.lead.created`.
    #[schemars(length(min = 1, max = 128))]
    pub event: String,
    /// A condition, in CEL, over `event`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub when: Option<String>,
    /// The record that the event is about, in CEL, over `event`: a string or an integer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub record: Option<String>,
    /// How often one record may start a run.
    #[serde(default)]
    pub dedup: DedupMode,
}

/// How often one record may start a run of one workflow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DedupMode {
    /// Once, ever.
    #[default]
    OncePerRecord,
    /// Not while a run for the same record is unfinished.
    NotWhileRunning,
    /// On every event.
    EveryTime,
}

impl DedupMode {
    /// The name used in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OncePerRecord => "once_per_record",
            Self::NotWhileRunning => "not_while_running",
            Self::EveryTime => "every_time",
        }
    }
}

/// One step: a name, and what it does. Written as a map of the one to the other.
#[derive(Debug, Clone)]
pub struct Step {
    /// Unique in the workflow.
    pub name: String,
    /// What it does.
    pub node: Node,
    /// Where in the text it stands: JSON Pointer to the node.
    pub(super) pointer: String,
}

impl Serialize for Step {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(&self.name, &self.node)])
    }
}

impl JsonSchema for Step {
    fn schema_name() -> Cow<'static, str> {
        "Step".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let node = generator.subschema_for::<Node>();
        json_schema!({
            "description": "One step: a map of its name, unique in the workflow, to what it does.",
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": name_schema(generator),
            "additionalProperties": node,
        })
    }
}

/// What a step does. The kind of node is the field that all nodes of the kind have.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(missing_docs, reason = "each is told at its type")]
pub enum Node {
    Block(BlockNode),
    Http(HttpNode),
    Delay(DelayNode),
    Switch(SwitchNode),
    Parallel(ParallelNode),
    Map(MapNode),
    Try(TryNode),
    Emit(EmitNode),
    Listen(ListenNode),
    Approval(ApprovalNode),
    Workflow(WorkflowNode),
    Worker(WorkerNode),
    Set(SetNode),
    Stop(StopNode),
}

impl Node {
    /// The kinds that there are.
    pub(super) const KINDS: [&'static str; 14] = [
        "block", "http", "delay", "switch", "parallel", "map", "try", "emit", "listen", "approval",
        "workflow", "worker", "set", "stop",
    ];

    /// The lists of steps inside, in the order in which the plan lays them out.
    pub(super) fn lists(&self) -> Vec<&[Step]> {
        match self {
            Self::Switch(node) => node.switch.iter().map(Branch::steps).collect(),
            Self::Parallel(node) => node.parallel.iter().map(|lane| lane.steps.as_slice()).collect(),
            Self::Map(node) => vec![&node.map.steps],
            Self::Listen(ListenNode { on_timeout: Some(steps), .. })
            | Self::Approval(ApprovalNode { on_timeout: Some(steps), .. }) => vec![steps],
            Self::Try(node) => {
                let (done, undone) = (node.stages.iter(), node.stages.iter().rev());
                done.map(|stage| stage.steps.as_slice())
                    .chain(undone.map(|stage| stage.undo.as_slice()))
                    .collect()
            }
            _ => vec![],
        }
    }
}

/// Runs a block: a Wasm component, in the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockNode {
    /// Name of the block. The version that is newest when the workflow is saved is the one that runs.
    #[schemars(schema_with = "name_schema")]
    pub block: String,
    /// Its input. A string that begins with `=` is a CEL expression.
    #[serde(default = "empty")]
    pub input: Value,
    /// What follows a failure that may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// Makes one HTTP call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpNode {
    /// The call.
    pub http: HttpCall,
    /// What follows a failure that may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// An HTTP call. In `url`, `headers`, `body` and `idempotency_key`, a string that begins with `=` is a CEL expression.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpCall {
    /// The connection that it goes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "name_schema")]
    pub connection: Option<String>,
    /// The method.
    pub method: HttpMethod,
    /// Absolute, or a path where a connection is named.
    #[schemars(length(min = 1))]
    pub url: String,
    /// Header fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A text is sent as it is, anything else as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub body: Option<Value>,
    /// What may be done when the outcome of the call is open. Without it, GET and HEAD are read-only and all else
    /// at-most-once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "safety_schema")]
    pub safety: Option<Safety>,
    /// What the receiver recognises a repeat by. Without it, the id of the effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub idempotency_key: Option<String>,
    /// For the whole call; at most 2m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub timeout: Option<Duration>,
}

/// A method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "RFC 9110 says it")]
pub enum HttpMethod {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
}

impl HttpMethod {
    /// As it is sent.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }
}

/// When to try again after a failure that may pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Tries in all, the first one included.
    #[schemars(range(min = 1, max = 20))]
    pub attempts: u32,
    /// Waits before the second, third, … try; the last one repeats. Without it, from 1 to 15 minutes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub delays: Vec<Duration>,
}

/// Takes the first branch whose condition holds, and goes on behind it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SwitchNode {
    /// The branches, in the order in which they are asked.
    #[schemars(length(min = 1, max = super::BRANCHES_MAX))]
    pub switch: Vec<Branch>,
}

/// A branch of a switch.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(deny_unknown_fields)]
pub enum Branch {
    /// Taken if its condition holds.
    When {
        /// The condition, in CEL.
        when: String,
        /// Its steps.
        #[serde(rename = "do")]
        steps: Vec<Step>,
    },
    /// Taken if no other is; the last one.
    Else {
        /// Its steps.
        #[serde(rename = "else")]
        steps: Vec<Step>,
    },
}

impl Branch {
    /// Its steps.
    pub(super) fn steps(&self) -> &[Step] {
        match self {
            Self::When { steps, .. } | Self::Else { steps } => steps,
        }
    }
}

/// Computes a value: its output.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetNode {
    /// The value. A string that begins with `=` is a CEL expression.
    pub set: Value,
}

/// Ends the run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopNode {
    /// How.
    pub stop: Stop,
}

/// How a run is ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// As what.
    #[serde(default)]
    pub outcome: StopOutcome,
    /// Why. A string that begins with `=` is a CEL expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub message: Option<String>,
    /// The run's output. A string that begins with `=` is a CEL expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub output: Option<Value>,
}

/// As what a run is ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum StopOutcome {
    #[default]
    Succeeded,
    Failed,
}

/// What must hold whatever the steps do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Invariant {
    /// Names it in evidence.
    #[schemars(schema_with = "name_schema")]
    pub id: String,
    /// The kind of effect that it is about.
    #[schemars(schema_with = "kind_schema")]
    pub kind: String,
    /// The rule.
    pub rule: InvariantRule,
    /// Whether an effect that would break the rule is kept from being sent; true unless said otherwise.
    #[serde(default = "guarded")]
    pub commit_guard: bool,
    /// Among which effects it holds.
    #[serde(default)]
    pub scope: InvariantScope,
}

/// A rule over effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvariantRule {
    /// The same content is sent at most once.
    EffectAtMostOnce,
}

/// Among which effects an invariant holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvariantScope {
    /// Those of a run and its replays.
    #[default]
    Lineage,
    /// Those of all runs of the workflow.
    Workflow,
    /// Those of all workflows of the tenant.
    Tenant,
}

/// The kinds of effect that an invariant may be about.
pub(super) const GUARDED_KINDS: [&str; 4] = ["http", "mail", "model", "worker"];
/// The kinds that take part in no invariant: what they write is our own, and commits with its step.
pub(super) const OWN_KINDS: [&str; 2] = ["emit", "storage"];

fn guarded() -> bool {
    true
}

fn empty() -> Value {
    Value::Object(Map::new())
}

fn name_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[a-z][a-z0-9-]*$", "maxLength": super::NAME_LEN_MAX })
}

fn kind_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": GUARDED_KINDS })
}

fn task_safety_schema(_: &mut SchemaGenerator) -> Schema {
    let names = [Safety::AtMostOnce, Safety::Idempotent].map(Safety::name);
    json_schema!({ "type": "string", "enum": names })
}

fn safety_schema(_: &mut SchemaGenerator) -> Schema {
    let names = [Safety::AtMostOnce, Safety::Idempotent, Safety::ReadOnly].map(Safety::name);
    json_schema!({ "type": "string", "enum": names })
}
