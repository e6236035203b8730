//! What a test may read: receipts, and the calls that the provider saw.

use serde_json::Value;

use super::journal::{Entry, Standing};
use crate::effect::Safety;

/// Where a receipt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Sent, or about to be; no answer is recorded.
    Dispatched,
    /// The receiver answered that it acted.
    Committed,
    /// It is known that it did not take place.
    Rejected,
    /// It may have taken place.
    Unknown,
    /// It took place, as somebody established.
    Verified,
    /// It took place and was undone.
    Compensated,
    /// It did not take place, as somebody established.
    Abandoned,
}

/// The record of one dispatch of one effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The effect: its label, or `#` and its number among those without one.
    pub effect: String,
    /// `http`, `mail`, `emit`, `storage` or `worker`.
    pub kind: &'static str,
    /// What may be done while its outcome is open.
    pub safety: Safety,
    /// Where it stands.
    pub state: State,
    /// From 0; it grows when the effect is sent again.
    pub dispatch_number: u64,
    /// The attempt that wrote it, from 1.
    pub attempt: u32,
    /// By which the receiver recognises a repeat.
    pub idempotency_key: String,
    /// What was asked for, in a line: `POST /charges`.
    pub request: String,
}

impl Receipt {
    pub(super) fn of(entry: &Entry) -> Self {
        let Entry { slot, dispatch_number, asker, facts, standing, .. } = entry;
        Self {
            effect: slot.to_string(),
            kind: facts.kind,
            safety: facts.safety,
            state: Standing::state(standing),
            dispatch_number: *dispatch_number,
            attempt: asker.attempt,
            idempotency_key: facts.key.clone(),
            request: facts.request.clone(),
        }
    }
}

/// A call that the provider saw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The effect: its label, or `#` and its number among those without one.
    pub effect: String,
    /// What was asked for, in a line: `POST /charges`, `mail to ada@example.com: Paid`, `worker papers`.
    pub request: String,
    /// Through which connection.
    pub connection: Option<String>,
    /// The header fields that the block set.
    pub headers: Vec<(String, String)>,
    /// The body; of a message, its text, and of work, its input.
    pub body: Vec<u8>,
    /// By which the receiver recognises a repeat; none of a read.
    pub idempotency_key: Option<String>,
}

impl Sent {
    /// The body read as JSON.
    ///
    /// # Panics
    ///
    /// When it is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(json) => json,
            Err(error) => panic!("the body of `{}` is not JSON: {error}", self.effect),
        }
    }
}

/// An event that the step emitted.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Emitted {
    /// Its type.
    pub event_type: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// What it says.
    pub data: Value,
}
