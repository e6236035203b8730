//! Work for a worker outside the host: what of it is judged without looking anywhere.

use std::time::Duration;

use serde_json::Value;

use crate::effect::{CLAIM_WITHIN, EffectCall, Safety};
use crate::limits::{
    NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, TASK_TIME_MS, TASK_TIME_MS_MAX, is_key_text, is_too_deep,
};
use crate::step::holds_nul;
use crate::workflow::is_name;

/// Work that may be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// What the worker is given.
    pub input: Value,
    /// How long it may lie in its queue.
    pub claim_within: Duration,
    /// How long a worker may be at it.
    pub timeout: Duration,
}

impl Work {
    /// The longest that it takes: as long as that, it may still be done.
    pub fn total(&self) -> Duration {
        self.claim_within + self.timeout
    }
}

/// Judges the form of a call that hands `input` to whoever serves `queue`.
///
/// # Errors
/// What the guest is told.
pub fn judge_work(call: &EffectCall, queue: &str, input: &str) -> Result<Work, String> {
    if call.connection.is_some() {
        return Err("work for a worker goes through no connection".into());
    }
    if call.effective_safety() == Safety::ReadOnly {
        return Err("work for a worker is at-most-once or idempotent".into());
    }
    if call.idempotency_key.as_ref().is_some_and(|key| !is_key_text(key)) {
        return Err(format!(
            "an idempotency key has 1 to {NAME_BYTES_MAX} bytes, without control characters"
        ));
    }
    if !is_name(queue) {
        return Err("the name of a queue is a small letter, then small letters, digits and `-`".into());
    }
    let input = read(input)?;
    let (claim_within, timeout) = times(call)?;
    Ok(Work { input, claim_within, timeout })
}

fn read(text: &str) -> Result<Value, String> {
    if text.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(format!("the input has {} bytes; at most {PAYLOAD_BYTES_MAX} are passed", text.len()));
    }
    let input: Value =
        serde_json::from_str(text).map_err(|error| format!("the input of a worker is not JSON: {error}"))?;
    if holds_nul(&input) || is_too_deep(&input) {
        return Err("the input holds a NUL character, or is nested too deeply, and cannot be kept".into());
    }
    Ok(input)
}

/// How long it may lie in its queue, and how long a worker may be at it.
fn times(call: &EffectCall) -> Result<(Duration, Duration), String> {
    let mut within = TASK_TIME_MS;
    for (_, value) in call.extra.iter().filter(|(name, _)| name == CLAIM_WITHIN) {
        within = value.parse().map_err(|_| format!("`{CLAIM_WITHIN}` is a number of milliseconds"))?;
    }
    let timeout = call.timeout_ms.map_or(TASK_TIME_MS, u64::from);
    match [within, timeout].into_iter().find(|ms| !(1..=TASK_TIME_MS_MAX).contains(ms)) {
        Some(ms) => Err(format!("{ms} ms is not between 1 and {TASK_TIME_MS_MAX}")),
        None => Ok((Duration::from_millis(within), Duration::from_millis(timeout))),
    }
}
