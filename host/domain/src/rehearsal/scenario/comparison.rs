//! What came of a scenario, held against what must come of it.

use serde_json::{Map, Value};

use super::Mismatch;
use super::written::Expectation;
use crate::expression::child;
use crate::rehearsal::Outcome;
use crate::workflow::source::Source;

/// Differences that are told: more of them do not help.
const MISMATCHES_MAX: usize = 20;

pub(super) struct Comparison<'a> {
    pub(super) source: &'a Source,
    pub(super) found: Vec<Mismatch>,
}

impl Comparison<'_> {
    pub(super) fn end(&mut self, pointer: &str, expect: &Expectation, outcome: &Outcome) {
        let found = match outcome {
            Outcome::Succeeded(output) => format!("the output {output}"),
            Outcome::Failed { code, message } => format!("the failure {code}: {message}"),
            Outcome::Blocked { reason } => format!("that it is blocked: {reason}"),
            Outcome::Waiting { .. } => "that it waits".into(),
            Outcome::Crashed => "that the process died".into(),
            Outcome::Queued => "that its work lies in a queue".into(),
            Outcome::Broken(what) => what.clone(),
        };
        match (expect, outcome) {
            (Expectation { output: Some(expected), .. }, Outcome::Succeeded(output)) => {
                self.value(&child(pointer, "output"), expected, output, false);
            }
            (Expectation { failed: Some(expected), .. }, Outcome::Failed { code, .. })
                if expected == code => {}
            (Expectation { blocked: Some(blocked), .. }, outcome)
                if matches!(outcome, Outcome::Blocked { .. }) == *blocked => {}
            (Expectation { output: Some(expected), .. }, _) => {
                self.add(&child(pointer, "output"), format!("the output {expected}"), found);
            }
            (Expectation { failed: Some(code), .. }, _) => {
                self.add(&child(pointer, "failed"), format!("the failure {code}"), found);
            }
            (Expectation { blocked, .. }, _) => {
                let not = if *blocked == Some(false) { "not " } else { "" };
                self.add(&child(pointer, "blocked"), format!("that it is {not}blocked"), found);
            }
        }
    }

    /// Where `is_partial`, an object may have more fields than are named.
    pub(super) fn value(&mut self, pointer: &str, expected: &Value, found: &Value, is_partial: bool) {
        match (expected, found) {
            (Value::Object(expected), Value::Object(found)) => {
                self.fields(pointer, expected, found, is_partial);
            }
            (Value::Array(expected), Value::Array(found)) => {
                for (index, pair) in expected.iter().zip(found).enumerate() {
                    self.value(&child(pointer, &index.to_string()), pair.0, pair.1, is_partial);
                }
                let listed = |items: &[Value]| match items {
                    [] => "none".to_owned(),
                    items => items.iter().map(brief).collect::<Vec<_>>().join(", "),
                };
                if expected.len() != found.len() {
                    let (more, less) = (expected.len(), found.len());
                    let shared = more.min(less);
                    self.add(
                        pointer,
                        format!("{more}, after {shared}: {}", listed(&expected[shared..])),
                        format!("{less}, after {shared}: {}", listed(&found[shared..])),
                    );
                }
            }
            (Value::Number(expected_number), Value::Number(found_number)) => {
                if expected_number.as_f64() != found_number.as_f64() {
                    self.add(pointer, expected.to_string(), found.to_string());
                }
            }
            _ if expected == found => {}
            _ => self.add(pointer, expected.to_string(), found.to_string()),
        }
    }

    fn fields(
        &mut self,
        pointer: &str,
        expected: &Map<String, Value>,
        found: &Map<String, Value>,
        is_partial: bool,
    ) {
        for (name, expected) in expected {
            let at = child(pointer, name);
            match found.get(name) {
                // What a call carries is compared whole, and its header fields by those that are named.
                Some(found) => {
                    self.value(&at, expected, found, is_partial && !["json", "data"].contains(&&**name));
                }
                None => self.add(&at, expected.to_string(), "nothing".into()),
            }
        }
        if !is_partial {
            for (name, found) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
                self.add(pointer, format!("no `{name}`"), format!("`{name}`: {found}"));
            }
        }
    }

    fn add(&mut self, pointer: &str, expected: String, found: String) {
        if self.found.len() < MISMATCHES_MAX {
            let (line, column) = self.source.value_position(pointer);
            self.found.push(Mismatch { pointer: pointer.to_owned(), line, column, expected, found });
        }
    }
}

/// An element of a list, by what tells it from the others.
fn brief(item: &Value) -> String {
    let named: Vec<String> = ["effect", "request", "state", "event"]
        .iter()
        .filter_map(|name| item.get(name)?.as_str())
        .map(str::to_owned)
        .collect();
    if named.is_empty() { item.to_string() } else { format!("({})", named.join(" ")) }
}
