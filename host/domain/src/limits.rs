//! Limits: each a named number with its reason. Those of a block can only narrow its tenant's, and those the operator's.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bounds of one execution of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLimits {
    /// Linear memory, summed over all memories of the store.
    pub memory_bytes_max: u64,
    /// Table elements, summed over all tables of the store.
    pub table_elements_max: u64,
    /// Guest CPU, counted in ticks of [`CPU_TICK_MS`], of which the last one begun counts whole.
    pub cpu_ms_max: u64,
    /// Whole execution, waiting for answers included.
    pub wall_ms_max: u64,
    /// Output text.
    pub output_bytes_max: u64,
    /// Log text of one step.
    pub log_bytes_max: u64,
    /// Log lines of one step.
    pub log_lines_max: u64,
}

impl StepLimits {
    /// What an operator who says nothing grants.
    pub const DEFAULT: Self = Self {
        // A Rust block needs 2 MiB, a scripting runtime 30.
        memory_bytes_max: 64 << 20,
        // A Python component needs 12,000.
        table_elements_max: 20_000,
        // Blocks wait; they do not compute. One second is a thousand times what an ordinary one uses.
        cpu_ms_max: 1_000,
        // Sixty-four effects at two seconds, and less than a person's patience.
        wall_ms_max: 120_000,
        output_bytes_max: PAYLOAD_BYTES_MAX,
        // Enough to explain a failure, too little to be a store.
        log_bytes_max: 64 << 10,
        log_lines_max: 1_000,
    };
}

/// The clock that counts guest CPU: short against a second, long against the cost of a wake-up. Less than one tick is nothing
/// that could be granted.
pub const CPU_TICK_MS: u64 = 10;
/// Linear memory that an operator can grant to one execution: what two cores can hold a few of.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// A run that has not succeeded may be replayed for so long after its end: it is kept at least that long.
pub const REPLAYABLE_FOR: Duration = Duration::from_hours(60 * 24);
/// Component upload: Rust blocks are 0.1 MB, Python ones 20 to 40.
pub const UPLOAD_BYTES_MAX: u64 = 64 << 20;
/// What is said of a program that cannot say what it is: two schemas, and a line for each effect.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 10;
/// Input and output of a step, and an event's data: larger things belong in a store that the payload points to.
pub const PAYLOAD_BYTES_MAX: u64 = 256 << 10;
/// Levels of a payload: well below the 128 at which parsers of JSON give up, so that what wraps a payload can be read too.
pub const PAYLOAD_DEPTH_MAX: usize = 100;
/// Effects of one step: beyond that, the work wants more steps.
pub const EFFECTS_PER_STEP_MAX: u64 = 64;
/// Total time that one call may ask for: within it, nobody can say that the call did not take place.
pub const EFFECT_TIMEOUT_MS_MAX: u64 = 120_000;
/// Time that work for a worker may lie in its queue, and time that a worker may be at it, where neither is named.
pub const TASK_TIME_MS: u64 = 3_600_000;
/// The longest either may be: within both, nobody can say that the work was not done.
pub const TASK_TIME_MS_MAX: u64 = 30 * 86_400_000;
/// Body of a request that a block sends.
pub const REQUEST_BODY_BYTES_MAX: u64 = 1 << 20;
/// Body of an answer that is kept.
pub const ANSWER_BODY_BYTES_MAX: u64 = 1 << 20;
/// Labels, connection names, idempotency keys: they are index keys.
pub const NAME_BYTES_MAX: usize = 255;
/// Key of a stored value: it is an index key.
pub const STORAGE_KEY_BYTES_MAX: usize = 512;
/// A stored value: state that steps share. Larger things belong in a store that a value points to.
pub const STORAGE_VALUE_BYTES_MAX: usize = 64 << 10;
/// Data of an event that a block emits, as JSON: what happened, and where to read the rest.
pub const EMIT_DATA_BYTES_MAX: usize = 64 << 10;
/// Events and values that one step writes: they wait in memory for its end, and are written in one transaction.
pub const OWN_CHANGES_BYTES_MAX: usize = 1 << 20;
/// Error text that is stored and shown.
pub const ERROR_TEXT_BYTES_MAX: usize = 4 << 10;
/// Frames of a guest backtrace.
pub const BACKTRACE_FRAMES_MAX: usize = 20;
/// Lease losses of one step in a row before it is failed: one poisonous block must not take hosts down for ever.
pub const HOST_LOSSES_MAX: u32 = 5;

/// Runs that start each other, one below the other: deeper than this is a loop.
pub const CHILD_DEPTH_MAX: u32 = 8;

/// Whether a text can be an index key that people search for: an event's type, a record.
pub fn is_key_text(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Makes foreign text fit to store and show: control characters escaped, cut at `bytes_max` on a character boundary.
pub fn bounded_text(text: &str, bytes_max: usize) -> String {
    cut_text(text, bytes_max).0
}

/// As [`bounded_text`], and whether it was cut.
pub fn cut_text(text: &str, bytes_max: usize) -> (String, bool) {
    const MARK: &str = "…";
    let mut bounded = String::new();
    // Where the text can be cut and still leave room for the mark.
    let mut cut = 0;
    for character in text.chars() {
        if bounded.len() + MARK.len() <= bytes_max {
            cut = bounded.len();
        }
        if character.is_control() && character != '\n' && character != '\t' {
            bounded.extend(character.escape_default());
        } else {
            bounded.push(character);
        }
        if bounded.len() > bytes_max {
            bounded.truncate(cut);
            if cut + MARK.len() <= bytes_max {
                bounded.push_str(MARK);
            }
            return (bounded, true);
        }
    }
    (bounded, false)
}

/// Whether a payload has more than [`PAYLOAD_DEPTH_MAX`] levels of objects and arrays.
pub fn is_too_deep(payload: &Value) -> bool {
    fn exceeds(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(_) | Value::Object(_) if levels == 0 => true,
            Value::Array(items) => items.iter().any(|item| exceeds(item, levels - 1)),
            Value::Object(fields) => fields.values().any(|field| exceeds(field, levels - 1)),
            _ => false,
        }
    }
    exceeds(payload, PAYLOAD_DEPTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_so_many_levels() {
        let nested =
            |levels| (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![Value::Null, inner]));
        assert!(!is_too_deep(&nested(PAYLOAD_DEPTH_MAX)));
        assert!(is_too_deep(&nested(PAYLOAD_DEPTH_MAX + 1)));
        assert!(is_too_deep(&serde_json::json!({ "a": nested(PAYLOAD_DEPTH_MAX) })));
    }

    #[test]
    fn foreign_text_is_escaped_and_cut() {
        for (text, bytes_max, expected) in [
            ("plain", 100, "plain"),
            ("a\u{1b}[31mb\0", 100, "a\\u{1b}[31mb\\u{0}"),
            ("line\nnext", 100, "line\nnext"),
            ("ääää", 7, "ää…"),
            ("ääää", 8, "ääää"),
            ("abc", 3, "abc"),
            ("abcd", 3, "…"),
            ("abcd", 2, ""),
            ("", 0, ""),
        ] {
            assert_eq!(bounded_text(text, bytes_max), expected, "{text:?}");
        }
    }
}
