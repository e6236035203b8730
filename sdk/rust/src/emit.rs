//! Events for the tenant's own outbox. An event is recorded in the transaction in which the step succeeds:
//! exactly once, and not at all if the step fails.
//!
//! ```no_run
//! # use counterfoil_sdk::prelude::*;
//! # fn send() -> Result<(), Failure> {
//! emit::event("order.booked").record("o-1").json(&json!({ "cents": 1200 }))?.send()?;
//! # Ok(())
//! # }
//! ```

use serde::Serialize;

use crate::effect::{EffectError, EmitEffect};
use crate::failure::JsonError;
use crate::host;

/// An event of a type, such as `order.booked`. It says nothing more until it is told to.
pub fn event(event_type: impl Into<String>) -> Event {
    let effect = EmitEffect { event_type: event_type.into(), record: None, data: "null".into(), key: None };
    Event { effect }
}

/// An event that has not been emitted.
#[derive(Debug, Clone)]
#[must_use = "an event is not recorded until it is sent"]
pub struct Event {
    effect: EmitEffect,
}

impl Event {
    /// Names the record that the event is about.
    pub fn record(mut self, id: impl Into<String>) -> Self {
        self.effect.record = Some(id.into());
        self
    }

    /// Sets what the event says: JSON of at most 64 KiB.
    ///
    /// # Errors
    ///
    /// When the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, data: &T) -> Result<Self, JsonError> {
        self.effect.data = serde_json::to_string(data).map_err(JsonError::event)?;
        Ok(self)
    }

    /// Labels the effect within its step, so that it keeps its receipt when the code around it changes.
    /// Without a label, it is known by its place among the unlabelled effects of the step.
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.effect.key = Some(label.into());
        self
    }

    /// Has the host record the event when the step succeeds.
    ///
    /// # Errors
    ///
    /// When the block declares no `emit`, or the event cannot be kept.
    pub fn send(self) -> Result<(), EffectError> {
        host::emit(self.effect)
    }
}

#[cfg(test)]
mod tests;
