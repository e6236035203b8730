//! Checks that hold for every scalar of a definition, wherever it stands.

use serde_json::Value;

use super::problem::Problems;
use crate::code::Code;
use crate::expression::Pointer;

/// Integers beyond it lose their last digits in JSON's canonical form, which is the version's identity.
const INTEGER_EXACT_MAX: u64 = 1 << 53;

/// Reports numbers that are not exact. Returns how many texts begin with `=`.
pub(super) fn check(value: &Value, problems: &mut Problems<'_>) -> usize {
    visit(value, &Pointer::At(""), problems)
}

fn visit(value: &Value, pointer: &Pointer<'_>, problems: &mut Problems<'_>) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 0,
        Value::String(text) => usize::from(text.starts_with('=')),
        Value::Number(number) => {
            let magnitude = number.as_i64().map(i64::unsigned_abs).or(number.as_u64());
            if magnitude.is_some_and(|magnitude| magnitude > INTEGER_EXACT_MAX) {
                let message = "integers beyond 2^53 are not exact in JSON; write it as a text";
                problems.at_value(&pointer.to_string(), Code::NumberInexact, message);
            }
            0
        }
        Value::Array(elements) => {
            let indexed = elements.iter().enumerate();
            indexed.map(|(index, element)| visit(element, &Pointer::Index(pointer, index), problems)).sum()
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| visit(value, &Pointer::Field(pointer, name), problems)).sum()
        }
    }
}
