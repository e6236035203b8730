//! Nodes that hold lists of steps beside each other, or again and again.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::Step;
use crate::workflow::{BRANCHES_MAX, MAP_CONCURRENCY_MAX, MAP_ITEMS_MAX};

/// Goes through several lists of steps at the same time, and on behind them once enough have succeeded.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ParallelNode {
    /// The lists.
    #[schemars(length(min = 1, max = BRANCHES_MAX))]
    pub parallel: Vec<Lane>,
    /// How many of them have to succeed.
    #[serde(default)]
    pub join: Join,
    /// What becomes of the others then.
    #[serde(default)]
    pub losers: Losers,
}

/// One of the lists of a `parallel`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Lane {
    /// Its steps.
    #[serde(rename = "do")]
    pub steps: Vec<Step>,
}

/// How many lists of a `parallel` have to succeed: `all`, `any`, or a number of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Join {
    #[default]
    All,
    Any,
    AtLeast(u32),
}

impl Join {
    /// Successes that are needed of so many lists.
    pub(in crate::workflow) fn needed(self, lanes: usize) -> u32 {
        match self {
            Self::All => u32::try_from(lanes).unwrap_or(u32::MAX),
            Self::Any => 1,
            Self::AtLeast(count) => count,
        }
    }
}

impl Serialize for Join {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Any => serializer.serialize_str("any"),
            Self::AtLeast(count) => serializer.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for Join {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match (value.as_str(), value.as_u64().and_then(|count| u32::try_from(count).ok())) {
            (Some("all"), _) => Ok(Self::All),
            (Some("any"), _) => Ok(Self::Any),
            (_, Some(count)) => Ok(Self::AtLeast(count)),
            _ => Err(D::Error::custom("`join` is `all`, `any`, or how many have to succeed")),
        }
    }
}

impl JsonSchema for Join {
    fn schema_name() -> Cow<'static, str> {
        "Join".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "How many lists have to succeed: all, any (one), or a number of them.",
            "anyOf": [{ "enum": ["all", "any"] }, { "type": "integer", "minimum": 1, "maximum": BRANCHES_MAX }],
        })
    }
}

/// What becomes of the lists that a `parallel` does not wait for any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Losers {
    /// Their steps are cancelled.
    #[default]
    Cancel,
    /// They go on beside the run, at longest until it ends. No later step sees what comes of them.
    Leave,
}

/// Goes through a list of steps once for each of some items.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct MapNode {
    /// The items, and what is done with each.
    pub map: Map,
}

/// What a `map` does. Its output is the list of what the last step came to for each item, in the order of the items.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Map {
    /// The items: a list, or a text that begins with `=`, a CEL expression for one.
    #[schemars(schema_with = "items_schema")]
    pub items: Value,
    /// The steps. Their expressions read `item` and `index`.
    #[serde(rename = "do")]
    #[schemars(length(min = 1))]
    pub steps: Vec<Step>,
    /// Items that are worked on at once.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = MAP_CONCURRENCY_MAX))]
    pub concurrency: u32,
    /// What follows when the steps fail for an item.
    #[serde(default)]
    pub on_failure: ItemFailure,
}

/// What follows when the steps of a `map` fail for an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemFailure {
    /// The map fails, and what it has under way is cancelled.
    #[default]
    Fail,
    /// Null takes the place of the item's result.
    Skip,
}

/// Goes through stages one after the other. When one fails, those before it are undone, the last one first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TryNode {
    /// The stages.
    #[serde(rename = "try")]
    #[schemars(length(min = 1, max = BRANCHES_MAX))]
    pub stages: Vec<Stage>,
    /// What follows when everything has been undone.
    #[serde(default)]
    pub on_failure: TryFailure,
}

/// A stage of a `try`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Stage {
    /// What it does.
    #[serde(rename = "do")]
    pub steps: Vec<Step>,
    /// What undoes it, if a later stage fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<Step>,
}

/// What follows when a `try` has undone everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TryFailure {
    /// It fails as the stage did.
    #[default]
    Fail,
    /// It succeeds with `{ "failed": { "node", "code", "message" } }`.
    Continue,
}

/// Enough to be quick, few enough to be polite to most providers.
const CONCURRENCY: u32 = 10;

pub(in crate::workflow) fn default_concurrency() -> u32 {
    CONCURRENCY
}

fn items_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "A list, or an expression for one.",
        "anyOf": [{ "type": "string", "pattern": "^=" }, { "type": "array", "maxItems": MAP_ITEMS_MAX }],
    })
}
