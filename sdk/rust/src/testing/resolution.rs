//! What a person may say of an effect whose outcome is unknown, and when the host believes it.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::effect::{Given, Recorded, Slot};
use super::journal::{Entry, Journal, Standing, is_open};
use super::receipt::State;
use crate::http::Answer;

/// What happened, and how that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution {
    state: State,
    answer: Option<Answer>,
    evidence: String,
}

impl Resolution {
    /// It took place; the block is handed this answer.
    pub fn committed(answer: impl Into<Answer>, evidence: impl Into<String>) -> Self {
        Self { state: State::Committed, answer: Some(answer.into()), evidence: evidence.into() }
    }

    /// It took place, as the receiver's own records show; the block is handed this answer.
    pub fn verified(answer: impl Into<Answer>, evidence: impl Into<String>) -> Self {
        Self { state: State::Verified, answer: Some(answer.into()), evidence: evidence.into() }
    }

    /// It did not take place, and is sent again.
    pub fn abandoned(evidence: impl Into<String>) -> Self {
        Self { state: State::Abandoned, answer: None, evidence: evidence.into() }
    }

    /// It took place and has been undone; it is done anew.
    pub fn compensated(evidence: impl Into<String>) -> Self {
        Self { state: State::Compensated, answer: None, evidence: evidence.into() }
    }
}

impl From<(u16, Value)> for Answer {
    fn from((status, body): (u16, Value)) -> Self {
        Self::new_json(status, &body)
    }
}

/// Why a resolution is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unresolvable {
    /// There is no such effect, or its outcome is not unknown.
    NotUnknown,
    /// The request may still arrive for this long; before that, nobody can know that it did not take place.
    TooEarly(Duration),
    /// Another dispatch of the effect is under way.
    UnderWay,
    /// Nothing says how it is known.
    NoEvidence,
    /// An effect that took place is answered with a status of 200 to 399.
    NotSuccess(u16),
    /// The answer says that its body is JSON, and it is not.
    NotJson,
}

impl fmt::Display for Unresolvable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUnknown => f.write_str("only an effect whose outcome is unknown can be resolved"),
            Self::TooEarly(left) => {
                write!(f, "the request may still arrive for {left:?}; call `advance` before")
            }
            Self::UnderWay => f.write_str("another dispatch of this effect is under way"),
            Self::NoEvidence => f.write_str("say how it is known"),
            Self::NotSuccess(status) => write!(f, "status {status} would be a refusal"),
            Self::NotJson => f.write_str("the answer says that its body is JSON, and it is not"),
        }
    }
}

impl std::error::Error for Unresolvable {}

/// Moves the newest unknown receipt of a slot, and what that means for the others.
pub(super) fn resolve(
    journal: &mut Journal,
    slot: &Slot,
    resolution: Resolution,
    now: Duration,
) -> Result<(), Unresolvable> {
    let Resolution { state, answer, evidence } = resolution;
    let is_unknown = |entry: &Entry| matches!(entry.standing, Standing::Unknown { .. });
    let found = journal.0.iter().rposition(|entry| entry.slot == *slot && is_unknown(entry));
    let index = found.ok_or(Unresolvable::NotUnknown)?;
    if evidence.trim().is_empty() {
        return Err(Unresolvable::NoEvidence);
    }
    let kind = journal.0[index].facts.kind;
    let standing = match (state, answer) {
        (State::Verified, Some(answer)) => Standing::Verified(judge(answer, kind)?),
        (_, Some(answer)) => Standing::Committed(judge(answer, kind)?),
        (_, None) => {
            too_early(&journal.0[index], now)?;
            if state == State::Compensated { Standing::Compensated } else { Standing::Abandoned }
        }
    };
    let others: Vec<usize> = (0..journal.0.len())
        .filter(|other| *other != index && journal.0[*other].slot == *slot && is_open(&journal.0[*other]))
        .collect();
    match &standing {
        Standing::Committed(recorded) | Standing::Verified(recorded) => {
            for other in others {
                journal.0[other].standing = Standing::Verified(recorded.clone());
            }
        }
        Standing::Compensated => {
            for other in &others {
                too_early(&journal.0[*other], now)?;
            }
            for other in others {
                journal.0[other].standing = Standing::Compensated;
            }
        }
        // That it did not take place says nothing of what may still arrive.
        _ => {}
    }
    journal.0[index].standing = standing;
    Ok(())
}

fn too_early(entry: &Entry, now: Duration) -> Result<(), Unresolvable> {
    match entry.standing {
        Standing::Unknown { absence_known_at } if now < absence_known_at => {
            Err(Unresolvable::TooEarly(absence_known_at.saturating_sub(now)))
        }
        Standing::Dispatched { .. } => Err(Unresolvable::UnderWay),
        _ => Ok(()),
    }
}

fn judge(answer: Answer, kind: &str) -> Result<Recorded, Unresolvable> {
    if !(200..400).contains(&answer.status()) {
        return Err(Unresolvable::NotSuccess(answer.status()));
    }
    let says_json =
        answer.header("content-type").is_some_and(|value| value.to_ascii_lowercase().contains("json"));
    if says_json && answer.json::<Value>().is_err() {
        return Err(Unresolvable::NotJson);
    }
    let text = String::from_utf8_lossy(answer.body());
    Ok(Ok(match kind {
        "mail" => Given::Mailed(format!("{} {text}", answer.status()).trim_end().to_owned()),
        "worker" => Given::Worked(text.into_owned()),
        _ => Given::Http(answer),
    }))
}
