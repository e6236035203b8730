//! The vocabulary of effects.

use std::error::Error;
use std::fmt::{self, Display};

use serde_json::Value;

use crate::http::Answer;

/// What the host may do when a crash or a lost answer leaves an effect's outcome open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safety {
    /// Never send twice. The default, except for GET and HEAD.
    AtMostOnce,
    /// The receiver recognises the idempotency key: the host may send again with the same key.
    Idempotent,
    /// Changes nothing at the receiver: may be repeated freely. The default for GET and HEAD.
    ReadOnly,
}

/// Why an effect gave no answer. An outcome that nobody knows is not among these: the step stops there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectError {
    /// Policy, grant, address or form refused it; nothing was done.
    Denied(String),
    /// It is known that nothing left: name resolution, connect or TLS failed.
    NotSent(String),
    /// The receiver answered that it did not act.
    Rejected(Answer),
    /// A mail server refused a message, with this code: from 400 on for now, from 500 on for good.
    MailRefused {
        /// The server's code.
        code: u16,
        /// Its text.
        reply: String,
    },
    /// A worker failed, and said that nothing of its work took place.
    WorkerFailed {
        /// The worker's own name for what went wrong.
        code: String,
        /// In words.
        message: String,
    },
    /// A read-only effect got no answer.
    NoAnswer(String),
    /// The receiver acted, and its answer was longer than the host keeps.
    ResponseTooLarge(Answer),
    /// A limit of this step was reached.
    Limit(String),
}

impl Display for EffectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) => write!(f, "the call was denied: {why}"),
            Self::NotSent(why) => write!(f, "the call was not sent: {why}"),
            Self::Rejected(answer) => {
                write!(f, "the receiver refused the call with status {}", answer.status())
            }
            Self::MailRefused { code, reply } => {
                write!(f, "the mail server refused the message with code {code}: {reply}")
            }
            Self::WorkerFailed { code, message } => {
                write!(f, "the worker failed with `{code}`: {message}")
            }
            Self::NoAnswer(why) => write!(f, "the call got no answer: {why}"),
            Self::ResponseTooLarge(answer) => {
                write!(f, "the answer, with status {}, is longer than is kept", answer.status())
            }
            Self::Limit(why) => write!(f, "a limit of this step was reached: {why}"),
        }
    }
}

impl Error for EffectError {}

impl EffectError {
    /// What a worker that failed has said, in JSON.
    pub(crate) fn worker_failed(said: &[u8]) -> Self {
        let said: Value = serde_json::from_slice(said).unwrap_or_default();
        let field = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        Self::WorkerFailed { code: field("code"), message: field("message") }
    }
}

/// The addition that says how long work may lie in its queue.
#[cfg(target_family = "wasm")]
pub(crate) const CLAIM_WITHIN: &str = "claim-within-ms";

/// One HTTP call as it crosses to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpEffect {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) key: Option<String>,
    pub(crate) connection: Option<String>,
    pub(crate) safety: Option<Safety>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) timeout_ms: Option<u32>,
}

/// One event as it crosses to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EmitEffect {
    pub(crate) event_type: String,
    pub(crate) record: Option<String>,
    /// JSON.
    pub(crate) data: String,
    pub(crate) key: Option<String>,
}

/// One operation on stored values as it crosses to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StorageEffect {
    pub(crate) operation: StorageOperation,
    pub(crate) key: Option<String>,
}

/// What is done to a stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorageOperation {
    Get(String),
    Put(String, Vec<u8>),
    Delete(String),
}

/// One message as it crosses to the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MailEffect {
    pub(crate) to: Vec<String>,
    pub(crate) subject: String,
    pub(crate) text: String,
    pub(crate) html: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) connection: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) timeout_ms: Option<u32>,
}

/// Work for a worker as it crosses to the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkerEffect {
    pub(crate) queue: String,
    /// JSON.
    pub(crate) input: String,
    pub(crate) key: Option<String>,
    pub(crate) is_idempotent: bool,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) claim_within_ms: Option<u64>,
    pub(crate) timeout_ms: Option<u32>,
}
