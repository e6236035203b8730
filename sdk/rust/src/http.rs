//! HTTP calls, made by the host and recorded by a receipt each.
//!
//! ```no_run
//! # use counterfoil_sdk::prelude::*;
//! # fn send() -> Result<(), Failure> {
//! let answer = http::post("/charges")
//!     .connection("payments")
//!     .key("charge")
//!     .json(&json!({ "cents": 1200 }))?
//!     .send()?;
//! assert!(answer.status() < 400);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::effect::{EffectError, HttpEffect, Safety};
use crate::failure::JsonError;
use crate::host;

/// A GET request. Read-only unless told otherwise. `url` is absolute, or a path under a connection.
pub fn get(url: impl Into<String>) -> Request {
    request("GET", url)
}

/// A POST request. At-most-once unless told otherwise. `url` is absolute, or a path under a connection.
pub fn post(url: impl Into<String>) -> Request {
    request("POST", url)
}

/// A PUT request. At-most-once unless told otherwise. `url` is absolute, or a path under a connection.
pub fn put(url: impl Into<String>) -> Request {
    request("PUT", url)
}

/// A PATCH request. At-most-once unless told otherwise. `url` is absolute, or a path under a connection.
pub fn patch(url: impl Into<String>) -> Request {
    request("PATCH", url)
}

/// A DELETE request. At-most-once unless told otherwise. `url` is absolute, or a path under a connection.
pub fn delete(url: impl Into<String>) -> Request {
    request("DELETE", url)
}

/// A request with any method. `url` is absolute, or a path under a connection.
pub fn request(method: impl Into<String>, url: impl Into<String>) -> Request {
    Request {
        effect: HttpEffect {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            key: None,
            connection: None,
            safety: None,
            idempotency_key: None,
            timeout_ms: None,
        },
    }
}

/// A request that has not been sent.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    effect: HttpEffect,
}

impl Request {
    /// Sends through a connection of the tenant, which holds the base address and the credentials.
    pub fn connection(mut self, name: impl Into<String>) -> Self {
        self.effect.connection = Some(name.into());
        self
    }

    /// Labels the call within its step, so that it keeps its receipt when the code around it changes.
    /// Without a label, the call is known by its place among the unlabelled calls of the step.
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.effect.key = Some(label.into());
        self
    }

    /// Adds a header field.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.effect.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.effect.body = bytes.into();
        self
    }

    /// Sets the body to JSON, and the content type unless it is set already.
    ///
    /// # Errors
    ///
    /// When the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self, JsonError> {
        self.effect.body = serde_json::to_vec(value).map_err(JsonError::request)?;
        if find(&self.effect.headers, "content-type").is_none() {
            self = self.header("content-type", "application/json");
        }
        Ok(self)
    }

    /// Declares that the receiver recognises the idempotency key, so that the host may send again.
    pub fn idempotent(self) -> Self {
        self.safety(Safety::Idempotent)
    }

    /// Declares that the call changes nothing at the receiver, whatever its method.
    pub fn read_only(self) -> Self {
        self.safety(Safety::ReadOnly)
    }

    /// Sets what the host may do when the outcome is open.
    pub fn safety(mut self, safety: Safety) -> Self {
        self.effect.safety = Some(safety);
        self
    }

    /// Sets the key that the receiver is sent to recognise a repeat by; the receipt's id when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.effect.idempotency_key = Some(key.into());
        self
    }

    /// Bounds the whole call. The host has a bound of its own; the shorter one holds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.effect.timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u32::MAX));
        self
    }

    /// Has the host make the call, or hand over the answer that it has already recorded for it.
    ///
    /// Does not return when the outcome is unknown: the step stops here until that is resolved.
    ///
    /// # Errors
    ///
    /// When it is known that the receiver did not act, or its answer is longer than the host keeps.
    pub fn send(self) -> Result<Answer, EffectError> {
        host::perform(self.effect)
    }
}

/// What the receiver answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) truncated: bool,
}

impl Answer {
    /// What a receiver would have answered, to say it in its place: see [`Verdict`](crate::Verdict).
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), truncated: false }
    }

    /// As [`Answer::new`], with a body of JSON.
    pub fn new_json(status: u16, value: &Value) -> Self {
        let headers = vec![("content-type".into(), "application/json".into())];
        Self { headers, ..Self::new(status, value.to_string()) }
    }

    /// The same with one more header field.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first value of a header field that the host kept, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The header fields that the host kept.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The body, cut where it was longer than the host keeps.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the body was cut.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The body read as JSON.
    ///
    /// # Errors
    ///
    /// When the body is not JSON of that shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        serde_json::from_slice(&self.body).map_err(JsonError::answer)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests;
