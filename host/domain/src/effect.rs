//! The vocabulary of effects: what a block may ask for, and what it may be told.
//!
//! These are the owned twins of `wit/block.wit`, so that they can cross to another process.

use serde::{Deserialize, Serialize};

/// The addition to work for a worker that says, in milliseconds, how long it may lie in its queue.
pub const CLAIM_WITHIN: &str = "claim-within-ms";

/// What the host may do with an effect when a crash or a lost answer leaves its outcome open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Safety {
    /// Never sent twice.
    AtMostOnce,
    /// The receiver recognises the idempotency key; it may be sent again with the same key.
    Idempotent,
    /// Changes nothing at the receiver.
    ReadOnly,
}

impl Safety {
    /// The name used in the database, in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AtMostOnce => "at-most-once",
            Self::Idempotent => "idempotent",
            Self::ReadOnly => "read-only",
        }
    }

    /// The inverse of [`Safety::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::AtMostOnce, Self::Idempotent, Self::ReadOnly].into_iter().find(|safety| safety.name() == name)
    }
}

/// An HTTP request as the guest gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Method, as given.
    pub method: String,
    /// Absolute, or a path when a connection is named.
    pub url: String,
    /// Header fields in the order given.
    pub headers: Vec<(String, String)>,
    /// Body bytes.
    pub body: Vec<u8>,
}

/// An HTTP answer in the form that is stored, which is the form that the guest gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// The header fields that are kept.
    pub headers: Vec<(String, String)>,
    /// Body, cut at the cap.
    pub body: Vec<u8>,
    /// The body was longer than the cap.
    pub truncated: bool,
}

/// Header fields of an answer that are kept: what a block may act on, and nothing that is a credential.
const KEPT_HEADERS: [&str; 10] = [
    "content-type",
    "content-language",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
    "x-request-id",
    "request-id",
    "content-encoding",
];

impl HttpResponse {
    /// The answer without the header fields that are not kept. `declared` is the field in which the receiver names its own
    /// receipt.
    #[must_use]
    pub fn kept(mut self, declared: Option<&str>) -> Self {
        self.headers.retain(|(name, value)| {
            let name = name.to_ascii_lowercase();
            let wanted = KEPT_HEADERS.contains(&name.as_str())
                || name.contains("ratelimit")
                || declared.is_some_and(|declared| name.eq_ignore_ascii_case(declared));
            wanted && !value.contains('\0')
        });
        self
    }
}

/// What leaves the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectRequest {
    /// One HTTP exchange.
    Http(HttpRequest),
    /// An event for the tenant's own outbox.
    Emit {
        /// Type of the event, dotted.
        event_type: String,
        /// The record that it is about.
        record_id: Option<String>,
        /// UTF-8 JSON.
        data: String,
    },
    /// The tenant's key-value space.
    Storage(StorageRequest),
    /// One message over SMTP.
    Mail(MailMessage),
    /// A call of a language model; UTF-8 JSON of the request body.
    Model(String),
    /// Work for a worker outside the host.
    Worker {
        /// Queue that the worker polls.
        queue: String,
        /// UTF-8 JSON.
        input: String,
    },
}

impl EffectRequest {
    /// The kind's name in grants, receipts and invariants.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Emit { .. } => "emit",
            Self::Storage(_) => "storage",
            Self::Mail(_) => "mail",
            Self::Model(_) => "model",
            Self::Worker { .. } => "worker",
        }
    }

    /// Whether a call of this kind may have the named addition.
    pub fn knows(&self, extra: &str) -> bool {
        matches!(self, Self::Worker { .. }) && extra == CLAIM_WITHIN
    }
}

/// An operation on the tenant's key-value space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageRequest {
    /// Read a key.
    Get(String),
    /// Write a key.
    Put(String, Vec<u8>),
    /// Remove a key.
    Delete(String),
}

/// One mail message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailMessage {
    /// Recipients.
    pub to: Vec<String>,
    /// Subject line.
    pub subject: String,
    /// Plain text body.
    pub text: String,
    /// HTML body.
    pub html: Option<String>,
    /// Further header fields.
    pub headers: Vec<(String, String)>,
}

/// One call of `perform`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCall {
    /// What to do.
    pub request: EffectRequest,
    /// Label of the slot; the ordinal of the call when absent.
    pub key: Option<String>,
    /// A connection of the tenant.
    pub connection: Option<String>,
    /// At-most-once when absent (read-only for GET and HEAD).
    pub safety: Option<Safety>,
    /// The key that the receiver recognises a repeat by; the receipt's id when absent.
    pub idempotency_key: Option<String>,
    /// Total time for the call.
    pub timeout_ms: Option<u32>,
    /// Named additions of later minor versions; unknown names are refused.
    pub extra: Vec<(String, String)>,
}

impl EffectCall {
    /// The safety in force: what was declared, else read-only for GET and HEAD, else at-most-once.
    pub fn effective_safety(&self) -> Safety {
        self.safety.unwrap_or(match &self.request {
            EffectRequest::Http(request) if matches!(request.method.as_str(), "GET" | "HEAD") => {
                Safety::ReadOnly
            }
            EffectRequest::Storage(StorageRequest::Get(_)) => Safety::ReadOnly,
            _ => Safety::AtMostOnce,
        })
    }
}

/// What the guest gets when the effect took place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The receiver's answer.
    Http(HttpResponse),
    /// The event commits with the step.
    Emitted,
    /// The value that was there, for a read.
    Stored(Option<Vec<u8>>),
    /// The receiving server's reply.
    Mailed(String),
    /// UTF-8 JSON of the response body.
    Model(String),
    /// UTF-8 JSON of the worker's output.
    Worker(String),
}

/// What the guest gets when it is known that the effect did not take place (or its answer is too large to keep).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectFailure {
    /// Policy, grant or address refused it; nothing was sent.
    Denied(String),
    /// It is known that nothing left.
    NotSent(String),
    /// The receiver answered that it did not act.
    Rejected(HttpResponse),
    /// A read-only effect got no answer.
    NoAnswer(String),
    /// The receiver acted, and its answer was longer than the host keeps.
    ResponseTooLarge(HttpResponse),
    /// A limit of this step was reached.
    Limit(String),
}

/// What comes back through the one door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectReply {
    /// Hand this over.
    Answered(Answer),
    /// Hand this over.
    Failed(EffectFailure),
    /// Drop the sandbox: the step cannot go on in this execution, and the guest must not learn why.
    Stop,
}
