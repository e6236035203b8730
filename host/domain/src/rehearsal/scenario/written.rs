//! The form of a scenario, as it is written.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::provider::Calls;
use crate::effect::{Answer, HttpResponse, Safety};
use crate::limits::ANSWER_BODY_BYTES_MAX;
use crate::receipt::resolution::{Outcome as Said, Resolution};
use crate::receipt::{ReceiptState, Recorded};
use crate::workflow::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Authored {
    #[serde(default)]
    pub(super) name: Option<String>,
    pub(super) input: Value,
    #[serde(default = "started_at")]
    pub(super) started_at: DateTime<Utc>,
    #[serde(default)]
    pub(super) stored: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) answers: Vec<AuthoredAnswer>,
    #[serde(default)]
    pub(super) crash_before_answer: Vec<u32>,
    #[serde(default)]
    pub(super) crash_after_answer: Vec<u32>,
    #[serde(default)]
    pub(super) drop_answer: Vec<u32>,
    pub(super) expect: Expectation,
    #[serde(default)]
    pub(super) then: Vec<Stage>,
}

/// The beginning of 2026.
pub(super) fn started_at() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + std::time::Duration::from_hours(490_896)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthoredAnswer {
    #[serde(default)]
    pub(super) to: Option<Calls>,
    #[serde(default)]
    pub(super) status: Option<u16>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) json: Option<Value>,
    #[serde(default)]
    pub(super) body: Option<String>,
    #[serde(default)]
    pub(super) lost: bool,
    #[serde(default)]
    pub(super) not_sent: bool,
}

/// What happens after the step has stopped, and what must come of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Time that passes first.
    #[serde(default)]
    pub advance: Option<Duration>,
    /// What a person says of an unknown effect.
    #[serde(default)]
    pub resolve: Option<Resolve>,
    /// The effect of which the block's own `verify` is asked.
    #[serde(default)]
    pub verify: Option<String>,
    pub(super) expect: Expectation,
}

/// What a person says of an unknown effect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// Its label, or `#` and its number among those without one.
    pub effect: String,
    outcome: Said,
    evidence: String,
    #[serde(default)]
    pub(super) status: Option<u16>,
    #[serde(default)]
    pub(super) json: Option<Value>,
    #[serde(default)]
    pub(super) body: Option<String>,
}

impl Resolve {
    /// As a host takes it.
    pub fn resolution(&self) -> Resolution {
        let recorded = self.status.map(|status| {
            let response = response(status, &BTreeMap::new(), self.json.as_ref(), self.body.as_deref());
            Recorded::Answer(Answer::Http(response))
        });
        Resolution {
            outcome: self.outcome,
            evidence: self.evidence.clone(),
            recorded,
            provider_receipt_id: None,
        }
    }
}

/// What must be; what is not named may be anything.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expectation {
    #[serde(default, deserialize_with = "there")]
    pub(super) output: Option<Value>,
    #[serde(default)]
    pub(super) failed: Option<String>,
    #[serde(default)]
    pub(super) blocked: Option<bool>,
    #[serde(default)]
    pub(super) receipts: Option<Vec<ExpectedReceipt>>,
    #[serde(default)]
    pub(super) calls: Option<Vec<ExpectedCall>>,
    #[serde(default)]
    pub(super) emitted: Option<Vec<ExpectedEvent>>,
    #[serde(default)]
    pub(super) stored: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    pub(super) logs: Option<Vec<String>>,
}

/// `null` is an output too.
pub(super) fn there<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedReceipt {
    pub(super) effect: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<ReceiptState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) safety: Option<Safety>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dispatch: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) idempotency_key: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) effect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) connection: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) headers: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) json: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) idempotency_key: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedEvent {
    pub(super) event: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

pub(super) fn response(
    status: u16,
    headers: &BTreeMap<String, String>,
    json: Option<&Value>,
    body: Option<&str>,
) -> HttpResponse {
    let mut headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if json.is_some() && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        headers.push(("content-type".into(), "application/json".into()));
    }
    let mut body =
        json.map_or_else(|| body.unwrap_or_default().as_bytes().to_vec(), |json| json.to_string().into());
    let bytes_max = usize::try_from(ANSWER_BODY_BYTES_MAX).unwrap_or(usize::MAX);
    let truncated = body.len() > bytes_max;
    body.truncate(bytes_max);
    HttpResponse { status, headers, body, truncated }
}
