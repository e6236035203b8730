//! What somebody outside the engine may say of an unknown receipt, and what follows from it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::answer::Recorded;
use super::state::{Actor, IllegalMove, Move, ReceiptState, Transition};
use super::{Receipt, Standing};
use crate::effect::{Answer, HttpResponse};
use crate::limits::{ANSWER_BODY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX};

/// What is said to have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It took place, and here is the answer.
    Committed,
    /// It took place, as a verifier or the receiver's own records show.
    Verified,
    /// It took place and has been undone.
    Compensated,
    /// It did not take place.
    Abandoned,
}

impl Outcome {
    /// The state that it leads to.
    pub const fn state(self) -> ReceiptState {
        match self {
            Self::Committed => ReceiptState::Committed,
            Self::Verified => ReceiptState::Verified,
            Self::Compensated => ReceiptState::Compensated,
            Self::Abandoned => ReceiptState::Abandoned,
        }
    }

    /// Whether the guest will be handed an answer, which must then be given.
    pub const fn needs_answer(self) -> bool {
        matches!(self, Self::Committed | Self::Verified)
    }

    /// What follows for the run, in words for the person who decides.
    pub const fn consequence(self, sequel: Sequel) -> &'static str {
        match (sequel, self) {
            (Sequel::Resumes, Self::Committed | Self::Verified) => {
                "The step resumes and the block is handed this answer. Nothing is sent again."
            }
            (Sequel::Resumes, Self::Compensated | Self::Abandoned) => {
                "The step resumes and the effect is sent again, once."
            }
            (Sequel::Waits, _) => {
                "The record changes. The step stays blocked until somebody resumes the run."
            }
            (Sequel::RunEnded, _) => {
                "The record changes, and nothing else: the run has ended. Nothing is sent."
            }
        }
    }
}

/// What a resolution leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequel {
    /// The blocked step goes on.
    Resumes,
    /// The step stays blocked, as the person asked.
    Waits,
    /// The run has ended, so that no step is left to go on.
    RunEnded,
}

/// A resolution, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// What happened.
    pub outcome: Outcome,
    /// How that is known; never empty.
    pub evidence: String,
    /// The answer that the block is handed.
    pub recorded: Option<Recorded>,
    /// The receiver's own name for what it did.
    pub provider_receipt_id: Option<String>,
}

/// Why a resolution is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolvable {
    /// Only an unknown receipt is open to resolution.
    #[error("only an unknown effect can be resolved; this one is {0}")]
    NotUnknown(ReceiptState),
    /// The request may still arrive.
    #[error(
        "the request may still arrive until {0}; before that, nobody can know that it did not take place"
    )]
    TooEarly(DateTime<Utc>),
    /// Evidence is what makes a resolution.
    #[error("say how it is known (evidence), in at most {ERROR_TEXT_BYTES_MAX} bytes")]
    NoEvidence,
    /// The block waits for an answer.
    #[error("the block will be handed an answer, so give one (status and body)")]
    NoAnswer,
    /// An answer that no provider gives when it acted.
    #[error("an effect that took place is answered with a status of 200 to 399; {0} would be a refusal")]
    NotSuccess(u16),
    /// The block would fail on it, for good.
    #[error("the answer says that its body is JSON, and it is not: {0}")]
    NotJson(String),
    /// There is nothing to hand over.
    #[error("an effect that did not take place, or was undone, has no answer to hand over")]
    NeedlessAnswer,
    /// Too large to keep.
    #[error(
        "the answer's body is over {ANSWER_BODY_BYTES_MAX} bytes, or the provider's receipt id over {NAME_BYTES_MAX}"
    )]
    TooLarge,
}

/// Judges a resolution of `receipt`, at `now` by the database's clock.
///
/// # Errors
/// [`Unresolvable`] with the first thing that stands against it.
pub fn resolve(
    receipt: &Receipt,
    resolution: Resolution,
    by: Actor,
    now: DateTime<Utc>,
) -> Result<Transition, Unresolvable> {
    let Standing::Unknown { absence_known_at, .. } = &receipt.standing else {
        return Err(Unresolvable::NotUnknown(receipt.standing.state()));
    };
    if resolution.evidence.trim().is_empty() || resolution.evidence.len() > ERROR_TEXT_BYTES_MAX {
        return Err(Unresolvable::NoEvidence);
    }
    match (resolution.outcome.needs_answer(), &resolution.recorded) {
        (true, None) => return Err(Unresolvable::NoAnswer),
        (false, Some(_)) => return Err(Unresolvable::NeedlessAnswer),
        _ => {}
    }
    if let Some(Recorded::Answer(Answer::Http(response))) = &resolution.recorded {
        judge_answer(response)?;
    }
    let too_long = resolution.provider_receipt_id.as_ref().is_some_and(|id| id.len() > NAME_BYTES_MAX);
    let too_large = resolution
        .recorded
        .as_ref()
        .is_some_and(|recorded| recorded.body_bytes_len() > ANSWER_BODY_BYTES_MAX);
    if too_long || too_large {
        return Err(Unresolvable::TooLarge);
    }
    if !resolution.outcome.needs_answer() && now < *absence_known_at {
        return Err(Unresolvable::TooEarly(*absence_known_at));
    }
    Transition::new(receipt.tenant, receipt.id, ReceiptState::Unknown, by, Move::Resolve(resolution))
        .map_err(|IllegalMove { from, .. }| Unresolvable::NotUnknown(from))
}

/// What is handed over cannot be taken back, so it must be what an acting provider could have answered.
fn judge_answer(response: &HttpResponse) -> Result<(), Unresolvable> {
    if !(200..400).contains(&response.status) {
        return Err(Unresolvable::NotSuccess(response.status));
    }
    let says_json = response.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("content-type") && value.to_ascii_lowercase().contains("json")
    });
    if says_json {
        serde_json::from_slice::<serde_json::Value>(&response.body)
            .map_err(|error| Unresolvable::NotJson(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_that_an_acting_provider_could_give() {
        let json = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        for (status, headers, body, expected) in [
            (200, vec![], "anything", Ok(())),
            (201, json.clone(), "{}", Ok(())),
            (302, vec![], "", Ok(())),
            (404, json.clone(), "{}", Err(Unresolvable::NotSuccess(404))),
            (402, vec![], "", Err(Unresolvable::NotSuccess(402))),
        ] {
            let response = HttpResponse { status, headers, body: body.into(), truncated: false };
            assert_eq!(judge_answer(&response), expected, "{status} {body}");
        }
        let broken = HttpResponse { status: 200, headers: json, body: b"{\"a\":".to_vec(), truncated: false };
        assert!(matches!(judge_answer(&broken), Err(Unresolvable::NotJson(_))));
    }
}
