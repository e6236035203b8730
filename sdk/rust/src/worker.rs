//! Work for workers outside the host: programs of the tenant's own, each of which fetches it from a queue and says what
//! came of it. The step is let go meanwhile, and the block is run again when its worker has said so.
//!
//! ```no_run
//! # use counterfoil_sdk::prelude::*;
//! # fn print(order: &str) -> Result<u32, Failure> {
//! #[derive(Deserialize)]
//! struct Printed {
//!     pages: u32,
//! }
//! let label = worker::task("papers").json(&json!({ "order": order }))?.key("label");
//! let printed: Printed = label.send()?.json()?;
//! # Ok(printed.pages)
//! # }
//! ```

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::effect::{EffectError, WorkerEffect};
use crate::failure::JsonError;
use crate::host;

/// Work for whoever serves the queue. Its input is `null` until it is told what to be.
pub fn task(queue: impl Into<String>) -> Task {
    Task { effect: WorkerEffect { queue: queue.into(), input: "null".into(), ..WorkerEffect::default() } }
}

/// Work that has not been handed over.
#[derive(Debug, Clone)]
#[must_use = "work is not handed over until it is sent"]
pub struct Task {
    effect: WorkerEffect,
}

impl Task {
    /// Sets what the worker is given: JSON of at most 256 KiB.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, input: &T) -> Result<Self, JsonError> {
        self.effect.input = serde_json::to_string(input).map_err(JsonError::task)?;
        Ok(self)
    }

    /// Labels the effect within its step; see [`http::Request::key`](crate::http::Request::key).
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.effect.key = Some(label.into());
        self
    }

    /// Bounds how long it may lie in its queue, up to 30 days; an hour if nothing is said. What no worker takes in time is
    /// not sent.
    pub fn claim_within(mut self, time: Duration) -> Self {
        self.effect.claim_within_ms = Some(time.as_millis().try_into().unwrap_or(u64::MAX));
        self
    }

    /// Bounds how long a worker may be at it, up to 30 days; an hour if nothing is said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.effect.timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u32::MAX));
        self
    }

    /// Says that workers of this queue recognise the idempotency key that comes with a task: it is queued again, under the
    /// same key, when nobody knows what came of it.
    pub fn idempotent(mut self) -> Self {
        self.effect.is_idempotent = true;
        self
    }

    /// Gives the key that workers recognise a repeat by, of 1 to 255 bytes. Without one, the host makes one.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.effect.idempotency_key = Some(key.into());
        self
    }

    /// Has the host queue the work, or hand over what its worker has said already.
    ///
    /// Does not return where nothing is said yet: the step waits, and the block is run again. Nor does it when a worker took
    /// the work and nobody knows what came of it: the step stops here until that is resolved.
    ///
    /// # Errors
    ///
    /// When it is known that nothing of it took place.
    pub fn send(self) -> Result<Output, EffectError> {
        host::worker(self.effect).map(Output)
    }
}

/// What came of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output(String);

impl Output {
    /// As the worker gave it: JSON.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The output read as JSON.
    ///
    /// # Errors
    ///
    /// When it is not JSON of that shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        serde_json::from_str(&self.0).map_err(JsonError::output)
    }
}

#[cfg(test)]
mod tests;
