//! Steps: what one execution came to, and what follows from it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code::Code;
use crate::id::{Parts, RunId};
use crate::limits::{ERROR_TEXT_BYTES_MAX, PAYLOAD_BYTES_MAX, bounded_text};
use crate::ports::StepEnd;

/// How often, and how soon, a step is tried again after a failure that may pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Tries after the first.
    pub retries_max: u32,
    /// The waits between them.
    pub delays: Delays,
}

/// The waits before the second, third, … try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delays {
    /// Fourfold each time between these two, up to a quarter less by a hash of run, node and attempt.
    Growing {
        /// The first, in milliseconds.
        ms_min: u64,
        /// The longest, in milliseconds.
        ms_max: u64,
    },
    /// These, in milliseconds; the last one repeats.
    Listed(Vec<u64>),
}

impl RetryPolicy {
    /// Three retries within about twenty minutes: most outages of a provider are shorter.
    pub const DEFAULT: Self =
        Self { retries_max: 3, delays: Delays::Growing { ms_min: 60_000, ms_max: 900_000 } };
    /// For flow control, which never retries.
    pub const NEVER: Self = Self { retries_max: 0, delays: Delays::Listed(vec![]) };

    /// The wait before the next attempt, in milliseconds: a function of run, node and attempt, so that every host computes
    /// the same one, and many runs that failed together do not come back together.
    pub fn delay_ms(&self, run: RunId, node: &str, attempt: u32) -> u64 {
        let nth = attempt.saturating_sub(1);
        match &self.delays {
            Delays::Listed(delays) => {
                let index = usize::try_from(nth).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
                delays.get(index).copied().unwrap_or(0)
            }
            Delays::Growing { ms_min, ms_max } => {
                let whole = ms_min.saturating_mul(4_u64.saturating_pow(nth)).min(*ms_max);
                let mut hash = Parts::new(b"counterfoil-backoff-v1\0");
                hash.part(run.0.as_bytes());
                hash.part(node.as_bytes());
                hash.part(&attempt.to_be_bytes());
                let digest = hash.finish();
                let fraction = u64::from(u16::from_be_bytes([digest[0], digest[1]]));
                (whole - whole / 4 * fraction / u64::from(u16::MAX)).max(*ms_min.min(ms_max))
            }
        }
    }
}

/// Why a step failed, or failed for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// Which kind.
    pub code: Code,
    /// The block's own code, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_code: Option<String>,
    /// In words, bounded and escaped.
    pub message: String,
}

impl StepError {
    /// An error with this message, cut and escaped.
    pub fn new(code: Code, message: &str) -> Self {
        Self { code, block_code: None, message: bounded_text(message, ERROR_TEXT_BYTES_MAX) }
    }

    /// As stored.
    ///
    /// # Panics
    /// Never: every field is a string.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a step error is strings")
    }
}

/// Why the guard stopped an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// An outcome is unknown and must not be sent again.
    Blocked {
        /// In words.
        reason: String,
    },
    /// An outcome is open, and the effect is sent again under its key in another attempt.
    Resend {
        /// In words.
        reason: String,
        /// The provider's lower bound on the wait.
        retry_after_ms: Option<u64>,
    },
    /// The step fails, permanently.
    Failed {
        /// `diverged` or `duplicate`.
        code: Code,
        /// In words.
        message: String,
    },
    /// The lease is gone: whatever this execution came to is no longer its to write.
    Stale,
    /// What was read is not in the journal as it should be: run the step again in the same attempt.
    Rerun,
    /// The effect lies in a queue for a worker outside the host, and the step was let go with that: what came of it makes
    /// the step due again.
    Queued,
    /// The connection's rate has no room before its turn: run the step again then, in the same attempt.
    NoRoom {
        /// Time until its turn.
        wait_ms: u64,
    },
    /// The database could not be reached: run the step again in the same attempt, later.
    Database {
        /// In words.
        message: String,
    },
}

/// What to do with a step after an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// It succeeded with this output.
    Succeed(Value),
    /// It failed for good.
    Fail(StepError),
    /// It waits and is tried again.
    Retry {
        /// How long it waits.
        delay_ms: u64,
        /// Why.
        error: StepError,
    },
    /// An outcome is unknown: it is a verifier's or a person's turn.
    Block(StepError),
    /// It goes back as it was, in the same attempt.
    HandBack {
        /// How long it waits.
        delay_ms: u64,
        /// For the operator.
        why: String,
    },
    /// What ran it is gone: it goes back as it was, in the same attempt, and the loss is counted.
    Lose {
        /// For the operator.
        why: String,
    },
    /// It waits for its turn, and goes on in the same attempt with the answers that it has.
    Wait {
        /// How long it waits.
        delay_ms: u64,
    },
    /// Nothing may be written.
    Leave,
}

/// What the conclusion depends on besides how the execution ended.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// Of this step.
    pub run: RunId,
    /// Of this step.
    pub node: &'a str,
    /// From 1, counted over the run.
    pub attempt: u32,
    /// The node's own, or the default.
    pub retry: &'a RetryPolicy,
}

/// Wait before a step that this host could not run is offered again.
const HAND_BACK_DELAY_MS: u64 = 2_000;

/// Draws the conclusion from how an execution ended. What the guard says goes before what the sandbox says.
pub fn conclude(end: StepEnd, stop: Option<Stop>, circumstances: Circumstances<'_>) -> Conclusion {
    match stop {
        Some(stop) => stopped(stop, circumstances),
        None => ended(end, circumstances),
    }
}

fn stopped(stop: Stop, circumstances: Circumstances<'_>) -> Conclusion {
    match stop {
        Stop::Blocked { reason } => Conclusion::Block(StepError::new(Code::Unknown, &reason)),
        Stop::Resend { reason, retry_after_ms } => {
            let error = StepError::new(Code::Unknown, &reason);
            retry(error.clone(), retry_after_ms, circumstances).unwrap_or(Conclusion::Block(error))
        }
        Stop::Failed { code, message } => Conclusion::Fail(StepError::new(code, &message)),
        Stop::Stale | Stop::Queued => Conclusion::Leave,
        Stop::Rerun => {
            Conclusion::HandBack { delay_ms: 0, why: "the journal moved while the step ran".into() }
        }
        Stop::NoRoom { wait_ms } => Conclusion::Wait { delay_ms: wait_ms },
        Stop::Database { message } => Conclusion::HandBack { delay_ms: HAND_BACK_DELAY_MS, why: message },
    }
}

fn ended(end: StepEnd, circumstances: Circumstances<'_>) -> Conclusion {
    match end {
        StepEnd::Output(text) => match output(&text) {
            Ok(value) => Conclusion::Succeed(value),
            Err(error) => Conclusion::Fail(error),
        },
        StepEnd::Failed { retry_after_ms, code, message } => {
            let mut error = StepError::new(Code::BlockFailed, &message);
            error.block_code = Some(bounded_text(&code, ERROR_TEXT_BYTES_MAX));
            match retry_after_ms {
                Some(after_ms) => {
                    retry(error.clone(), Some(after_ms), circumstances).unwrap_or(Conclusion::Fail(error))
                }
                None => Conclusion::Fail(error),
            }
        }
        StepEnd::Trapped { code, message } => Conclusion::Fail(StepError::new(code, &message)),
        StepEnd::Stopped => Conclusion::HandBack {
            delay_ms: HAND_BACK_DELAY_MS,
            why: "the sandbox stopped at the effect port and the guard does not know why".into(),
        },
        StepEnd::Unavailable { message } => {
            Conclusion::HandBack { delay_ms: HAND_BACK_DELAY_MS, why: message }
        }
        StepEnd::Lost { message } => Conclusion::Lose { why: message },
    }
}

/// A retry, if one is left. The provider's wish is a lower bound on the wait.
pub fn retry(
    error: StepError,
    after_ms: Option<u64>,
    circumstances: Circumstances<'_>,
) -> Option<Conclusion> {
    let Circumstances { run, node, attempt, retry } = circumstances;
    if attempt > retry.retries_max {
        return None;
    }
    let delay_ms = retry.delay_ms(run, node, attempt).max(after_ms.unwrap_or(0));
    Some(Conclusion::Retry { delay_ms, error })
}

/// Reads a block's output: JSON of any kind, within the limit, without the NUL character that the database cannot keep.
fn output(text: &str) -> Result<Value, StepError> {
    if text.len() as u64 > PAYLOAD_BYTES_MAX {
        let message = format!("the output has {} bytes; at most {PAYLOAD_BYTES_MAX} are kept", text.len());
        return Err(StepError::new(Code::OutputTooLarge, &message));
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|error| StepError::new(Code::OutputInvalid, &format!("the output is not JSON: {error}")))?;
    if holds_nul(&value) {
        return Err(StepError::new(
            Code::OutputInvalid,
            "the output holds a NUL character, which no text in the database can hold",
        ));
    }
    Ok(value)
}

/// Whether any string or key in `value` holds a NUL character.
pub fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(uuid::Uuid::from_u128(5));

    fn at(attempt: u32) -> Circumstances<'static> {
        Circumstances { run: RUN, node: "n", attempt, retry: &RetryPolicy::DEFAULT }
    }

    #[test]
    fn the_wait_grows_from_one_minute_to_fifteen_and_is_the_same_everywhere() {
        let policy = RetryPolicy::DEFAULT;
        for run in (0..200).map(|n| RunId(uuid::Uuid::from_u128(n))) {
            let delays: Vec<u64> = (1..=4).map(|attempt| policy.delay_ms(run, "n", attempt)).collect();
            assert_eq!(delays, (1..=4).map(|attempt| policy.delay_ms(run, "n", attempt)).collect::<Vec<_>>());
            assert!(delays.iter().all(|delay| (60_000..=900_000).contains(delay)), "{delays:?}");
            assert!(delays[..3].is_sorted(), "{delays:?}");
        }
        let distinct: std::collections::BTreeSet<u64> =
            (0..200).map(|n| policy.delay_ms(RunId(uuid::Uuid::from_u128(n)), "n", 2)).collect();
        assert!(distinct.len() > 50, "runs that failed together come back apart");
        assert!(policy.delay_ms(RUN, "n", u32::MAX) <= 900_000);
    }

    /// What a guest may return to confuse its host; each ends the step.
    #[test]
    fn whatever_a_guest_returns_ends_its_step() {
        let large = format!("\"{}\"", "x".repeat(10 << 20));
        let deep = "[".repeat(100_000);
        let cases = [
            ("[1]", "succeeds"),
            ("null", "succeeds"),
            ("7", "succeeds"),
            ("\"\\u0000\"", "output_invalid"),
            ("{\"a\\u0000\":1}", "output_invalid"),
            ("", "output_invalid"),
            ("{", "output_invalid"),
            (deep.as_str(), "output_invalid"),
            (large.as_str(), "output_too_large"),
        ];
        for (text, expected) in cases {
            let conclusion = conclude(StepEnd::Output(text.into()), None, at(1));
            let found = match &conclusion {
                Conclusion::Succeed(_) => "succeeds",
                Conclusion::Fail(error) => error.code.name(),
                other => panic!("{other:?}"),
            };
            assert_eq!(found, expected, "{text:.40}");
        }
    }

    #[test]
    fn retries_run_out_and_an_open_outcome_blocks_instead_of_failing() {
        let transient = |attempt| {
            let end =
                StepEnd::Failed { retry_after_ms: Some(0), code: "busy".into(), message: "later".into() };
            conclude(end, None, at(attempt))
        };
        assert!(matches!(transient(3), Conclusion::Retry { .. }));
        assert!(matches!(transient(4), Conclusion::Fail(_)));
        let resend = |attempt| {
            let stop = Stop::Resend { reason: "reset".into(), retry_after_ms: Some(5_000_000) };
            conclude(StepEnd::Stopped, Some(stop), at(attempt))
        };
        assert!(
            matches!(resend(1), Conclusion::Retry { delay_ms: 5_000_000, .. }),
            "the provider's bound is a lower one"
        );
        assert!(matches!(resend(4), Conclusion::Block(_)));
        let full = conclude(StepEnd::Stopped, Some(Stop::NoRoom { wait_ms: 70 }), at(4));
        assert_eq!(full, Conclusion::Wait { delay_ms: 70 }, "waiting for room uses no attempt");
    }
}
