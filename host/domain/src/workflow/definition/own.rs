//! Nodes that wait for a time, or tell others.

use schemars::JsonSchema;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::workflow::duration::Duration;

/// Waits.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DelayNode {
    /// For how long, or until when.
    pub delay: Delay,
}

/// How long a `delay` lasts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(missing_docs, reason = "each is told at its type")]
pub enum Delay {
    For(Duration),
    Until(Until),
}

/// A moment. One that is past when it is asked for is not waited for.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// As RFC 3339 has it (`2026-12-24T18:00:00Z`); or a local time without an offset, together with `zone`. A text that
    /// begins with `=` is a CEL expression.
    #[schemars(length(min = 1))]
    pub until: String,
    /// The zone of a local time, by its IANA name, such as `Europe/Berlin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub zone: Option<String>,
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map(Self::For).map_err(D::Error::custom),
            until @ Value::Object(_) => Until::deserialize(until).map(Self::Until).map_err(D::Error::custom),
            _ => Err(D::Error::custom("a delay is a length of time, or a map with `until`")),
        }
    }
}

/// Records an event, in the transaction that settles the step.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmitNode {
    /// The event.
    pub emit: Emit,
}

/// An event. In `record` and `data`, a text that begins with `=` is a CEL expression.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Emit {
    /// Its type, such as `crm.lead.scored`.
    #[schemars(length(min = 1, max = 128))]
    pub event: String,
    /// The record that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub record: Option<String>,
    /// What it says.
    #[serde(default = "nothing")]
    pub data: Value,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}
