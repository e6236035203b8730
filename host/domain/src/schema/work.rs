//! What checking a value takes, counted before it is done: the schemas are gone through as if each of them applied.

use serde_json::{Map, Value};

use super::shape;

/// Schemas within schemas on the way to one part of a value: the checker recurses over them.
const LEVELS_MAX: usize = 256;
/// Schemas that apply to one and the same value, one within the other.
const LEVELS_IN_PLACE_MAX: usize = 32;
/// Schemas that apply to one and the same value.
const IN_PLACE_MAX: u64 = 1_000;

/// Whether a value is checked with at most so much work.
pub(super) fn is_within(schema: &Value, value: &Value, max: u64) -> bool {
    let mut work = Work { schema, left: max, goes_in: true };
    work.visit(schema, value, LEVELS_MAX).is_some()
}

/// Whether the schemas that apply to one and the same value, from this one on, are few.
pub(super) fn ends(schema: &Value, part: &Value) -> bool {
    let mut work = Work { schema, left: IN_PLACE_MAX, goes_in: false };
    work.visit(part, &Value::Null, LEVELS_IN_PLACE_MAX).is_some()
}

/// Counts down; `None` when there is nothing left.
struct Work<'a> {
    schema: &'a Value,
    left: u64,
    /// Whether the parts of the value are gone through as well.
    goes_in: bool,
}

impl Work<'_> {
    fn spend(&mut self, work: usize) -> Option<()> {
        self.left = self.left.checked_sub(work as u64)?;
        Some(())
    }

    fn visit(&mut self, part: &Value, value: &Value, levels: usize) -> Option<()> {
        self.spend(1)?;
        let Value::Object(fields) = part else { return Some(()) };
        let levels = levels.checked_sub(1)?;
        for (keyword, below) in fields {
            self.in_place(keyword, below, value, levels)?;
            if self.goes_in {
                self.compared(keyword, below, value)?;
                self.inside(keyword, below, value, levels)?;
            }
        }
        Some(())
    }

    /// Schemas that apply to the value itself.
    fn in_place(&mut self, keyword: &str, below: &Value, value: &Value, levels: usize) -> Option<()> {
        match (keyword, below) {
            ("$ref", Value::String(reference)) => match shape::target(self.schema, reference) {
                Some(target) => self.visit(target, value, levels),
                None => Some(()),
            },
            ("not" | "if" | "then" | "else", one) => self.visit(one, value, levels),
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                list.iter().try_for_each(|one| self.visit(one, value, levels))
            }
            ("dependentSchemas" | "dependencies", Value::Object(named)) => {
                named.values().try_for_each(|one| self.visit(one, value, levels))
            }
            _ => Some(()),
        }
    }

    /// Schemas that apply to parts of the value.
    fn inside(&mut self, keyword: &str, below: &Value, value: &Value, levels: usize) -> Option<()> {
        match (keyword, below, value) {
            ("properties", Value::Object(named), Value::Object(parts)) => {
                self.spend(named.len())?;
                let both = named.iter().filter_map(|(name, one)| Some((one, parts.get(name)?)));
                both.into_iter().try_for_each(|(one, part)| self.visit(one, part, levels))
            }
            ("patternProperties", Value::Object(named), Value::Object(parts)) => {
                named.values().try_for_each(|one| {
                    parts.iter().try_for_each(|(name, part)| {
                        self.spend(name.len())?;
                        self.visit(one, part, levels)
                    })
                })
            }
            ("additionalProperties", one, Value::Object(parts)) => {
                parts.values().try_for_each(|part| self.visit(one, part, levels))
            }
            ("propertyNames", one, Value::Object(parts)) => parts.keys().try_for_each(|name| {
                self.spend(name.len())?;
                self.visit(one, &Value::String(name.clone()), levels)
            }),
            ("items" | "additionalItems" | "contains", one, Value::Array(parts)) => {
                parts.iter().try_for_each(|part| self.visit(one, part, levels))
            }
            ("prefixItems", Value::Array(list), Value::Array(parts)) => {
                list.iter().zip(parts).try_for_each(|(one, part)| self.visit(one, part, levels))
            }
            _ => Some(()),
        }
    }

    /// What is compared with the value.
    fn compared(&mut self, keyword: &str, with: &Value, value: &Value) -> Option<()> {
        match (keyword, value) {
            ("pattern", Value::String(text)) => self.spend(text.len()),
            ("minLength" | "maxLength", Value::String(text)) => self.spend(text.len() / 64),
            ("enum" | "const" | "required" | "dependentRequired" | "dependencies", _) => {
                self.spend(parts(with))
            }
            // Sorted or hashed.
            ("uniqueItems", Value::Array(_)) => self.spend(4 * parts(value)),
            _ => Some(()),
        }
    }
}

/// How many values are in one, itself and the names of its fields included.
fn parts(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(parts).sum::<usize>(),
        Value::Object(fields) => 1 + fields.len() + in_fields(fields),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

fn in_fields(fields: &Map<String, Value>) -> usize {
    fields.values().map(parts).sum()
}
