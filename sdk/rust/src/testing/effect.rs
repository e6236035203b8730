//! A call as the block makes it, in the form that is compared and kept.

use std::fmt;

use serde_json::{Value, json};

use crate::effect::{
    EffectError, EmitEffect, HttpEffect, MailEffect, Safety, StorageEffect, StorageOperation, WorkerEffect,
};
use crate::http::Answer;

/// Which effect of the step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Label(String),
    Ordinal(u64),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => f.write_str(label),
            Self::Ordinal(ordinal) => write!(f, "#{ordinal}"),
        }
    }
}

/// What an effect gives when it took place.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    Http(Answer),
    Emitted,
    Stored(Option<Vec<u8>>),
    Mailed(String),
    Worked(String),
}

/// What is stored of an outcome, and handed over on every re-run.
pub(super) type Recorded = Result<Given, EffectError>;

/// What is kept of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    pub(super) kind: &'static str,
    pub(super) safety: Safety,
    /// All that tells it from another request.
    pub(super) content: Value,
    pub(super) key: String,
    /// For people.
    pub(super) request: String,
}

/// A call of any kind.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Http(HttpEffect),
    Emit(EmitEffect),
    Storage(StorageEffect),
    Mail(MailEffect),
    Worker(WorkerEffect),
}

/// Header fields that tell no request from another: they are credentials, or the host's to give.
const NO_CONTENT: [&str; 6] =
    ["authorization", "cookie", "idempotency-key", "proxy-authorization", "set-cookie", "x-api-key"];

impl Call {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Emit(_) => "emit",
            Self::Storage(_) => "storage",
            Self::Mail(_) => "mail",
            Self::Worker(_) => "worker",
        }
    }

    pub(super) fn label(&self) -> Option<&str> {
        match self {
            Self::Http(http) => http.key.as_deref(),
            Self::Emit(emit) => emit.key.as_deref(),
            Self::Storage(storage) => storage.key.as_deref(),
            Self::Mail(mail) => mail.key.as_deref(),
            Self::Worker(work) => work.key.as_deref(),
        }
    }

    /// A call that is asked of a receipt is known by no label.
    pub(super) fn without_label(mut self) -> Self {
        match &mut self {
            Self::Http(HttpEffect { key, .. })
            | Self::Emit(EmitEffect { key, .. })
            | Self::Storage(StorageEffect { key, .. })
            | Self::Mail(MailEffect { key, .. })
            | Self::Worker(WorkerEffect { key, .. }) => *key = None,
        }
        self
    }

    pub(super) fn connection(&self) -> Option<&str> {
        match self {
            Self::Http(http) => http.connection.as_deref(),
            Self::Mail(mail) => mail.connection.as_deref(),
            Self::Emit(_) | Self::Storage(_) | Self::Worker(_) => None,
        }
    }

    pub(super) fn timeout_ms(&self) -> Option<u32> {
        match self {
            Self::Http(http) => http.timeout_ms,
            Self::Mail(mail) => mail.timeout_ms,
            Self::Worker(work) => work.timeout_ms,
            Self::Emit(_) | Self::Storage(_) => None,
        }
    }

    /// The safety in force: what was declared, else read-only for GET and HEAD, else at-most-once.
    pub(super) fn safety(&self) -> Safety {
        match self {
            Self::Http(http) => http.safety.unwrap_or(match http.method.as_str() {
                "GET" | "HEAD" => Safety::ReadOnly,
                _ => Safety::AtMostOnce,
            }),
            Self::Storage(StorageEffect { operation: StorageOperation::Get(_), .. }) => Safety::ReadOnly,
            Self::Worker(WorkerEffect { is_idempotent: true, .. }) => Safety::Idempotent,
            Self::Emit(_) | Self::Storage(_) | Self::Mail(_) | Self::Worker(_) => Safety::AtMostOnce,
        }
    }

    /// The key that the block gave, in a field or in the header of an unaware client.
    pub(super) fn own_key(&self) -> Option<&str> {
        let http = match self {
            Self::Http(http) => http,
            Self::Worker(work) => return work.idempotency_key.as_deref(),
            Self::Emit(_) | Self::Storage(_) | Self::Mail(_) => return None,
        };
        let in_header = http.headers.iter().rfind(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"));
        http.idempotency_key.as_deref().or(in_header.map(|(_, value)| value.as_str()))
    }

    pub(super) fn facts(&self, key: String) -> Facts {
        Facts {
            kind: self.kind(),
            safety: self.safety(),
            content: self.content(),
            key,
            request: self.request(),
        }
    }

    /// What was asked for, in a line.
    pub(super) fn request(&self) -> String {
        match self {
            Self::Http(http) => format!("{} {}", http.method, http.url),
            Self::Emit(emit) => format!("emit {}", emit.event_type),
            Self::Storage(storage) => match &storage.operation {
                StorageOperation::Get(key) => format!("get {key}"),
                StorageOperation::Put(key, _) => format!("put {key}"),
                StorageOperation::Delete(key) => format!("delete {key}"),
            },
            Self::Mail(mail) => format!("mail to {}: {}", mail.to.join(", "), mail.subject),
            Self::Worker(work) => format!("worker {}", work.queue),
        }
    }

    fn content(&self) -> Value {
        match self {
            Self::Http(http) => json!({
                "connection": http.connection,
                "method": http.method,
                "url": http.url,
                "headers": headers(&http.headers),
                "body": body(http),
            }),
            Self::Emit(emit) => json!({
                "event_type": emit.event_type,
                "record": emit.record,
                "data": serde_json::from_str(&emit.data).map_or_else(|_| json!(emit.data), plain),
            }),
            Self::Storage(storage) => match &storage.operation {
                StorageOperation::Get(key) => json!({ "get": key }),
                StorageOperation::Put(key, value) => json!({ "put": key, "value": value }),
                StorageOperation::Delete(key) => json!({ "delete": key }),
            },
            Self::Mail(mail) => json!({
                "connection": mail.connection,
                "to": mail.to,
                "subject": mail.subject,
                "text": mail.text,
                "html": mail.html,
                "headers": mail.headers,
            }),
            Self::Worker(work) => json!({
                "queue": work.queue,
                "input": serde_json::from_str(&work.input).map_or_else(|_| json!(work.input), plain),
            }),
        }
    }
}

fn headers(given: &[(String, String)]) -> Vec<(String, &str)> {
    let mut headers: Vec<(String, &str)> = given
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
        .filter(|(name, _)| !NO_CONTENT.contains(&name.as_str()))
        .collect();
    headers.sort();
    headers
}

/// A body that says it is JSON is compared as JSON: the order of its fields and the spelling of its numbers tell nothing.
fn body(http: &HttpEffect) -> Value {
    let is_json = http.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("content-type") && {
            let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            essence == "application/json" || essence.ends_with("+json")
        }
    });
    match serde_json::from_slice(&http.body) {
        Ok(value) if is_json => json!({ "json": plain(value) }),
        _ => json!({ "bytes": format!("{:?}", http.body) }),
    }
}

fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Number(number), Value::from),
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, plain(value))).collect(),
        other => other,
    }
}
