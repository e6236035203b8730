//! Compiled on first use, stored as its source.

use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Expression, ExpressionError};

/// What can be compiled from a source that can be stored.
pub trait Compile: Sized {
    /// The stored form.
    type Source;
    /// Why a source cannot be compiled.
    type Error: Clone;

    /// Compiles it.
    ///
    /// # Errors
    /// If the source breaks a rule.
    fn compile(source: &Self::Source) -> Result<Self, Self::Error>;
}

impl Compile for Expression {
    type Source = String;
    type Error = ExpressionError;

    fn compile(source: &String) -> Result<Self, ExpressionError> {
        Self::compile(source)
    }
}

/// A source, and what is compiled from it when it is first asked for.
///
/// A stored plan loads without compiling what it will not use; and if a later host refuses what an earlier one let
/// through, that fails where it is used, and the rest of the run can still be read, cancelled and shown.
#[derive(Debug, Clone)]
pub struct Compiled<T: Compile> {
    source: T::Source,
    compiled: OnceLock<Result<T, T::Error>>,
}

impl<T: Compile> Compiled<T> {
    /// Compiles `source` now.
    ///
    /// # Errors
    /// As [`Compile::compile`].
    pub fn new(source: T::Source) -> Result<Self, T::Error> {
        let compiled = T::compile(&source)?;
        Ok(Self::from_parts(source, compiled))
    }

    pub(crate) fn from_parts(source: T::Source, compiled: T) -> Self {
        Self { source, compiled: OnceLock::from(Ok(compiled)) }
    }

    /// What it was compiled from.
    pub fn source(&self) -> &T::Source {
        &self.source
    }

    /// The compiled form.
    ///
    /// # Errors
    /// If the source does not compile on this host: it was stored by another one.
    pub fn get(&self) -> Result<&T, T::Error> {
        self.compiled.get_or_init(|| T::compile(&self.source)).as_ref().map_err(Clone::clone)
    }
}

impl<T: Compile<Source: PartialEq>> PartialEq for Compiled<T> {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl<T: Compile<Source: Serialize>> Serialize for Compiled<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.serialize(serializer)
    }
}

impl<'de, T: Compile<Source: Deserialize<'de>>> Deserialize<'de> for Compiled<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { source: T::Source::deserialize(deserializer)?, compiled: OnceLock::new() })
    }
}
