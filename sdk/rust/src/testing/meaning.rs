//! What an answer means: committed, rejected or unknown. The host's own table in miniature, held to it like the journal.

use std::time::Duration;

use serde_json::Value;

use super::effect::{Given, Recorded};
use super::journal::Standing;
use crate::effect::{EffectError, Safety};
use crate::http::Answer;

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Exchanged {
    NotSent(String),
    Answered(Answer),
    /// A mail server's reply.
    Replied {
        code: u16,
        text: String,
    },
    Lost(String),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    Committed(Recorded),
    Rejected {
        recorded: Recorded,
        then: AfterRefusal,
    },
    Unknown {
        reason: String,
        /// Sent again under the same key, in another attempt.
        resend: bool,
        retry_after: Option<Duration>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    HandOver,
    /// An older dispatch is unknown, so the block must not learn of this refusal: the step waits for retry.
    Wait(Option<Duration>),
    /// The same, and trying again will not help.
    Block,
}

pub(super) fn meaning(exchanged: Exchanged, safety: Safety, older_unknown: bool) -> Meaning {
    match exchanged {
        Exchanged::NotSent(why) => Meaning::Rejected {
            recorded: Err(EffectError::NotSent(why)),
            then: after(older_unknown, true, None),
        },
        Exchanged::Replied { code: code @ 200..=299, text } => {
            Meaning::Committed(Ok(Given::Mailed(format!("{code} {text}"))))
        }
        Exchanged::Replied { code, text } if code < 400 => Meaning::Unknown {
            reason: format!("the server answered the message with {code} {text}"),
            resend: false,
            retry_after: None,
        },
        Exchanged::Replied { code, text } => Meaning::Rejected {
            recorded: Err(EffectError::MailRefused { code, reply: text }),
            then: after(older_unknown, code < 500, None),
        },
        Exchanged::Lost(reason) if safety == Safety::ReadOnly => {
            Meaning::Rejected { recorded: Err(EffectError::NoAnswer(reason)), then: AfterRefusal::HandOver }
        }
        Exchanged::Lost(reason) => {
            Meaning::Unknown { reason, resend: safety == Safety::Idempotent, retry_after: None }
        }
        Exchanged::Answered(answer) => answered(answer, safety, older_unknown),
    }
}

/// What a worker said of its work, or that it said nothing: the receipt stands so when the block is run again.
pub(super) fn worked(exchanged: Exchanged, absence_known_at: Duration) -> Result<Standing, String> {
    let unknown = Standing::Unknown { absence_known_at };
    Ok(match exchanged {
        Exchanged::NotSent(_) => {
            Standing::Rejected(Err(EffectError::NotSent("no worker took it in time".into())))
        }
        Exchanged::Lost(_) => unknown,
        Exchanged::Answered(answer) => match answer.status() {
            200..=399 => Standing::Committed(Ok(Given::Worked(output(&answer)))),
            400..=499 => Standing::Rejected(Err(EffectError::worker_failed(answer.body()))),
            _ => unknown,
        },
        Exchanged::Replied { .. } => return Err("a mail server's reply is scripted for a worker".into()),
    })
}

/// JSON, whatever the test gave.
fn output(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    serde_json::from_str(&text).unwrap_or(Value::String(text)).to_string()
}

fn answered(answer: Answer, safety: Safety, older_unknown: bool) -> Meaning {
    let status = answer.status();
    let retry_after = retry_after(&answer);
    let unknown = |resend, retry_after| Meaning::Unknown {
        reason: format!("status {status} means that it may have been applied"),
        resend,
        retry_after,
    };
    let refused = |answer: Answer, worth_waiting| Meaning::Rejected {
        recorded: Err(EffectError::Rejected(answer)),
        then: after(older_unknown, worth_waiting, retry_after),
    };
    match (status, safety) {
        (200..=399, _) if answer.is_truncated() => {
            Meaning::Committed(Err(EffectError::ResponseTooLarge(answer)))
        }
        (200..=399, _) => Meaning::Committed(Ok(Given::Http(answer))),
        (425 | 429, _) => refused(answer, true),
        (503, _) if retry_after.is_some() => refused(answer, true),
        (408 | 500..=599, Safety::AtMostOnce) => unknown(false, None),
        (408 | 500..=599, Safety::Idempotent) => unknown(true, retry_after),
        // 409 is how a provider says that the first request with this key is still being worked on.
        (400..=599, _) => refused(answer, status == 409),
        (_, Safety::ReadOnly) => refused(answer, false),
        (_, Safety::AtMostOnce | Safety::Idempotent) => unknown(false, None),
    }
}

fn after(older_unknown: bool, worth_waiting: bool, retry_after: Option<Duration>) -> AfterRefusal {
    match (older_unknown, worth_waiting) {
        (false, _) => AfterRefusal::HandOver,
        (true, true) => AfterRefusal::Wait(retry_after),
        (true, false) => AfterRefusal::Block,
    }
}

/// `Retry-After` in seconds, at most a day; a date is taken as no bound.
fn retry_after(answer: &Answer) -> Option<Duration> {
    const DAY_SECONDS: u64 = 86_400;
    let seconds = answer.header("retry-after")?.trim().parse().unwrap_or(0);
    Some(Duration::from_secs(DAY_SECONDS.min(seconds)))
}
