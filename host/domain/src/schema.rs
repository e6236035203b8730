//! JSON Schemas that other people wrote: the form of an approval, what a block takes and gives.
//!
//! They are checked in the host's own process. So what a schema may hold is bounded, and before a value is checked it is
//! counted what checking it would take: a schema can neither keep a host busy nor exhaust its stack.

use jsonschema::PatternOptions;
use jsonschema::error::ValidationErrorKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::{NAME_BYTES_MAX, bounded_text, is_too_deep};

mod shape;
mod work;

/// What is listed of what is wrong: more of it does not help.
const FAULTS_MAX: usize = 20;
/// What is said of an input in a sentence.
const FAULTS_SHOWN_MAX: usize = 3;
/// A schema, as JSON: of a type with a hundred fields it has 20 KiB.
pub const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// A pattern, compiled: automata of this size are slow, and still of no danger. Any hundred characters take half of it.
const PATTERN_BYTES_MAX: usize = 256 << 10;
/// What a pattern takes besides, once it has been used: the states that it has been in.
const PATTERN_STATES_BYTES_MAX: usize = PATTERN_BYTES_MAX;
/// Patterns of a schema: each may be that large.
const PATTERNS_MAX: usize = 50;
/// Work of checking one value, in looks at a part of it. A payload as large as it may be has less than half as many parts,
/// and so many looks take tens of milliseconds.
const WORK_MAX: u64 = 1 << 18;
/// Work that is nothing beside the step that it is done for: well under a millisecond.
const CHEAP_WORK_MAX: u64 = 1 << 11;

/// What is listed of a value that does not fit may take this many bytes while it is found: each fault names its place in the
/// value, and what the schema says there.
const TELLING_BYTES_MAX: u64 = 16 << 20;

/// A JSON Schema (draft 2020-12) that needs nothing from elsewhere.
#[derive(Debug)]
pub struct Schema {
    written: Value,
    validator: jsonschema::Validator,
    bytes_len: usize,
    bytes_max: usize,
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", if place.is_empty() { "the schema" } else { place })]
pub struct Unusable {
    /// Where in the schema, as a JSON Pointer.
    pub place: String,
    /// What is wrong there.
    pub why: String,
}

/// Something about a value that its schema does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {why}", if place.is_empty() { "/" } else { place })]
pub struct Fault {
    /// Where in the value, as a JSON Pointer.
    pub place: String,
    /// What the schema asks for.
    pub why: String,
}

/// Checking this value would take more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be checked against its schema: that would take too much work")]
pub struct TooCostly;

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// If it is none, needs something from elsewhere, or is larger or more costly than it may be.
    pub fn new(schema: &Value) -> Result<Self, Unusable> {
        let unusable = |why: String| Unusable { place: String::new(), why };
        let bytes_len = schema.to_string().len();
        if is_too_deep(schema) || bytes_len > SCHEMA_BYTES_MAX {
            let why =
                format!("a schema has at most {SCHEMA_BYTES_MAX} bytes, and no more levels than a payload");
            return Err(unusable(why));
        }
        let written = nameless(schema);
        shape::check(&written)?;
        let patterns = shape::patterns(&written);
        if patterns.len() > PATTERNS_MAX {
            return Err(unusable(format!("a schema has at most {PATTERNS_MAX} patterns")));
        }
        let validator = validator(&written).map_err(|error| match error.instance_path().as_str() {
            // The compiler of patterns does not say which one it is.
            "" => unusable_pattern(&patterns)
                .unwrap_or_else(|| unusable(bounded_text(&error.to_string(), NAME_BYTES_MAX))),
            place => Unusable { place: place.into(), why: bounded_text(&error.to_string(), NAME_BYTES_MAX) },
        })?;
        // A schema that is read takes some ten times what it is written in.
        let bytes_max = 10 * bytes_len + patterns.len() * (PATTERN_BYTES_MAX + PATTERN_STATES_BYTES_MAX);
        Ok(Self { written, validator, bytes_len, bytes_max })
    }

    /// About how much memory it takes, at most.
    pub const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether checking this value takes next to nothing.
    pub fn is_cheap(&self, value: &Value) -> bool {
        work::is_within(&self.written, value, CHEAP_WORK_MAX)
    }

    /// What is wrong with a value; the first so many faults.
    ///
    /// # Errors
    /// If that takes too much work to find out.
    pub fn faults(&self, value: &Value) -> Result<Vec<Fault>, TooCostly> {
        if !work::is_within(&self.written, value, WORK_MAX) {
            return Err(TooCostly);
        }
        if self.validator.is_valid(value) {
            return Ok(vec![]);
        }
        // The checker makes a list of all that is wrong with a part, however short the one that is wanted.
        let bytes_len = (self.bytes_len + value.to_string().len()) as u64;
        if !work::is_within(&self.written, value, TELLING_BYTES_MAX / bytes_len) {
            let why = "it is not what the schema asks for; it is too large to say where".into();
            return Ok(vec![Fault { place: String::new(), why }]);
        }
        Ok(self.validator.iter_errors(value).take(FAULTS_MAX).map(|fault| told(&fault)).collect())
    }

    /// What is wrong with a value whatever stands at the pointers `open` in it. Nothing, where that takes too much work.
    pub fn faults_beside(&self, value: &Value, open: &[String]) -> Vec<Fault> {
        if !work::is_within(&self.written, value, CHEAP_WORK_MAX) {
            return vec![];
        }
        let is_within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_certain = |fault: &jsonschema::ValidationError<'_>| {
            let place = fault.instance_path().as_str();
            // Which fields there are is known also where what they hold is not.
            let is_of_names = matches!(
                fault.kind(),
                ValidationErrorKind::Required { .. } | ValidationErrorKind::AdditionalProperties { .. }
            );
            open.iter().all(|open| !is_within(place, open) && (is_of_names || !is_within(open, place)))
        };
        self.validator
            .iter_errors(value)
            .filter(is_certain)
            .take(FAULTS_MAX)
            .map(|fault| told(&fault))
            .collect()
    }

    /// Judges what a block is given.
    ///
    /// # Errors
    /// Why it is not what the block takes.
    pub fn judge_input(&self, input: &Value) -> Result<(), String> {
        let why = match self.faults(input) {
            Ok(faults) if faults.is_empty() => return Ok(()),
            Ok(faults) => {
                let shown: Vec<String> =
                    faults.iter().take(FAULTS_SHOWN_MAX).map(ToString::to_string).collect();
                shown.join("; ")
            }
            Err(costly) => costly.to_string(),
        };
        Err(format!("the input is not what the block takes: {why}"))
    }
}

fn told(fault: &jsonschema::ValidationError<'_>) -> Fault {
    Fault {
        place: bounded_text(fault.instance_path().as_str(), NAME_BYTES_MAX),
        why: bounded_text(&fault.to_string(), NAME_BYTES_MAX),
    }
}

/// The first pattern with which a schema of its own cannot be used.
fn unusable_pattern(patterns: &[(&str, String)]) -> Option<Unusable> {
    let is_unusable = |pattern: &str| validator(&json!({ "pattern": pattern })).is_err();
    let (_, place) = patterns.iter().find(|(pattern, _)| is_unusable(pattern))?;
    let why = "the pattern is no regular expression, is too large, or looks around";
    Some(Unusable { place: place.clone(), why: why.into() })
}

fn validator(schema: &Value) -> Result<jsonschema::Validator, jsonschema::ValidationError<'static>> {
    let patterns =
        PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_STATES_BYTES_MAX);
    jsonschema::draft202012::options().with_pattern_options(patterns).build(schema)
}

/// A schema without its own address and dialect: it is read by one draft, and nobody refers to it.
fn nameless(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let own = |name: &str| name == "$id" || name == "$schema";
            let kept = fields.iter().filter(|(name, _)| !own(name));
            Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
