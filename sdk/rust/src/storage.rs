//! Values that the tenant's blocks share, by key. What a step writes is stored in the transaction in which the
//! step succeeds: exactly once, and not at all if the step fails. Of several steps that write a key, the last
//! one to succeed wins.
//!
//! A step sees what it has written itself. Anything else that it reads is recorded, so that a re-run reads the
//! same.
//!
//! ```no_run
//! # use counterfoil_sdk::prelude::*;
//! # fn send() -> Result<(), Failure> {
//! let booked: u64 = match storage::get("booked").send()? {
//!     Some(value) => value.json()?,
//!     None => 0,
//! };
//! storage::put("booked").json(&(booked + 1))?.send()?;
//! # Ok(())
//! # }
//! ```

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::effect::{EffectError, StorageEffect, StorageOperation};
use crate::failure::JsonError;
use crate::host;

/// A look at what is stored under a key, of 1 to 512 bytes.
pub fn get(key: impl Into<String>) -> Get {
    Get { stored_under: key.into(), label: None }
}

/// A value to store under a key, of 1 to 512 bytes. It is empty until it is told what to be.
pub fn put(key: impl Into<String>) -> Put {
    Put { stored_under: key.into(), value: Vec::new(), label: None }
}

/// The removal of what is stored under a key, of 1 to 512 bytes.
pub fn delete(key: impl Into<String>) -> Delete {
    Delete { stored_under: key.into(), label: None }
}

/// A look that has not been taken.
#[derive(Debug, Clone)]
#[must_use = "nothing is read until it is sent"]
pub struct Get {
    stored_under: String,
    label: Option<String>,
}

/// A value that has not been stored.
#[derive(Debug, Clone)]
#[must_use = "a value is not stored until it is sent"]
pub struct Put {
    stored_under: String,
    value: Vec<u8>,
    label: Option<String>,
}

/// A removal that has not been made.
#[derive(Debug, Clone)]
#[must_use = "nothing is removed until it is sent"]
pub struct Delete {
    stored_under: String,
    label: Option<String>,
}

impl Get {
    /// Labels the effect within its step; see [`http::Request::key`](crate::http::Request::key).
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Has the host read the value; none if nothing is stored there.
    ///
    /// # Errors
    ///
    /// When the block declares no `storage`, or the key is none.
    pub fn send(self) -> Result<Option<Value>, EffectError> {
        let operation = StorageOperation::Get(self.stored_under);
        let value = host::storage(StorageEffect { operation, key: self.label })?;
        Ok(value.map(Value))
    }
}

impl Put {
    /// Sets the value: at most 64 KiB.
    pub fn bytes(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets the value to JSON of at most 64 KiB.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self, JsonError> {
        self.value = serde_json::to_vec(value).map_err(JsonError::value)?;
        Ok(self)
    }

    /// Labels the effect within its step; see [`http::Request::key`](crate::http::Request::key).
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Has the host store the value when the step succeeds.
    ///
    /// # Errors
    ///
    /// When the block declares no `storage` to write, or the value cannot be kept.
    pub fn send(self) -> Result<(), EffectError> {
        let operation = StorageOperation::Put(self.stored_under, self.value);
        host::storage(StorageEffect { operation, key: self.label }).map(drop)
    }
}

impl Delete {
    /// Labels the effect within its step; see [`http::Request::key`](crate::http::Request::key).
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Has the host remove the value when the step succeeds.
    ///
    /// # Errors
    ///
    /// When the block declares no `storage` to write, or the key is none.
    pub fn send(self) -> Result<(), EffectError> {
        let operation = StorageOperation::Delete(self.stored_under);
        host::storage(StorageEffect { operation, key: self.label }).map(drop)
    }
}

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(Vec<u8>);

impl Value {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The value read as JSON.
    ///
    /// # Errors
    ///
    /// When it is not JSON of that shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        serde_json::from_slice(&self.0).map_err(JsonError::stored)
    }
}

#[cfg(test)]
mod tests;
