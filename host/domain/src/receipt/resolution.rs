//! What somebody outside the engine may say of an unknown receipt, and what follows from it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::answer::Recorded;
use super::state::{Actor, IllegalMove, Move, ReceiptState, Transition};
use super::{Receipt, Standing};
use crate::effect::{Answer, HttpResponse};
use crate::limits::{ANSWER_BODY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, bounded_text};

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
    /// The same effect is under way again, under the same key, and its answer is still to come.
    #[error("another dispatch of this effect is under way; once its outcome is known, both can be resolved")]
    UnderWay,
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
    let recorded = resolution.recorded.map(|recorded| in_terms_of(&receipt.request.kind, recorded));
    let resolution = Resolution { recorded, ..resolution };
    Transition::new(receipt.tenant, receipt.id, ReceiptState::Unknown, by, Move::Resolve(resolution))
        .map_err(|IllegalMove { from, .. }| Unresolvable::NotUnknown(from))
}

/// What the end of one receipt means for the other receipts of its slot, judged at `now`: those whose outcome is open went
/// under the same key, so that to the receiver they are the same effect. If it took place, they have its answer; if it was
/// undone, it is undone for all of them. That it did not take place says nothing of what may still arrive.
///
/// # Errors
/// [`Unresolvable`] if the effect was undone while another dispatch of it can still be answered.
pub fn siblings<'a>(
    end: &Transition,
    slot: impl IntoIterator<Item = &'a Receipt>,
    now: DateTime<Utc>,
) -> Result<Vec<Transition>, Unresolvable> {
    let open = slot.into_iter().filter(|receipt| {
        let state = receipt.standing.state();
        receipt.id != end.receipt() && matches!(state, ReceiptState::Dispatched | ReceiptState::Unknown)
    });
    match (end.to(), end.recorded(), end.what()) {
        (ReceiptState::Committed | ReceiptState::Verified, Some(recorded), _) => open
            .map(|receipt| {
                let what = Move::VerifyBySibling { sibling: end.receipt(), recorded: recorded.clone() };
                planned(receipt, end.by(), what)
            })
            .collect(),
        (ReceiptState::Compensated, _, Move::Resolve(resolution)) => open
            .map(|receipt| match &receipt.standing {
                Standing::Unknown { absence_known_at, .. } if now < *absence_known_at => {
                    Err(Unresolvable::TooEarly(*absence_known_at))
                }
                Standing::Unknown { .. } => planned(receipt, end.by(), Move::Resolve(resolution.clone())),
                _ => Err(Unresolvable::UnderWay),
            })
            .collect(),
        _ => Ok(vec![]),
    }
}

fn planned(receipt: &Receipt, by: &Actor, what: Move) -> Result<Transition, Unresolvable> {
    Transition::new(receipt.tenant, receipt.id, receipt.standing.state(), by.clone(), what)
        .map_err(|IllegalMove { from, .. }| Unresolvable::NotUnknown(from))
}

/// A person gives a status and a body; a block that sent mail waits for a mail server's reply, and who gave work to a worker
/// for what came of it.
fn in_terms_of(kind: &str, recorded: Recorded) -> Recorded {
    match recorded {
        Recorded::Answer(Answer::Http(HttpResponse { status, body, .. })) if kind == "mail" => {
            let text = bounded_text(&String::from_utf8_lossy(&body), ERROR_TEXT_BYTES_MAX);
            Recorded::Answer(Answer::Mailed(format!("{status} {text}").trim_end().to_owned()))
        }
        Recorded::Answer(Answer::Http(HttpResponse { body, .. })) if kind == "worker" => {
            Recorded::Answer(Answer::Worker(String::from_utf8_lossy(&body).into_owned()))
        }
        other => other,
    }
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
    use uuid::Uuid;

    use super::*;
    use crate::effect::Safety;
    use crate::id::{EffectId, LeaseId, LineageId, Place, RunId, StepId, TenantId};
    use crate::receipt::{RequestFacts, SlotKey};

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
        let reply = HttpResponse { status: 250, headers: vec![], body: b"queued".to_vec(), truncated: false };
        let told = |kind| in_terms_of(kind, Recorded::Answer(Answer::Http(reply.clone())));
        assert_eq!(told("http"), Recorded::Answer(Answer::Http(reply.clone())));
        assert_eq!(told("mail"), Recorded::Answer(Answer::Mailed("250 queued".into())));
        assert_eq!(told("worker"), Recorded::Answer(Answer::Worker("queued".into())));
        let broken = HttpResponse { status: 200, headers: json, body: b"{\"a\":".to_vec(), truncated: false };
        assert!(matches!(judge_answer(&broken), Err(Unresolvable::NotJson(_))));
    }

    #[test]
    fn what_settles_one_dispatch_settles_the_others_of_its_key() {
        let answer = Recorded::Answer(Answer::Emitted);
        let unknown = |absence_known_at| Standing::Unknown {
            reason: String::new(),
            dispatched_at: DateTime::UNIX_EPOCH,
            absence_known_at,
        };
        let (now, later) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::Duration::seconds(1));
        let under_way = Standing::Dispatched { lease: LeaseId(Uuid::nil()), at: now };
        let cases = [
            (Outcome::Committed, unknown(later), Ok(vec![ReceiptState::Verified])),
            (Outcome::Verified, under_way.clone(), Ok(vec![ReceiptState::Verified])),
            (Outcome::Verified, Standing::Abandoned, Ok(vec![])),
            (Outcome::Abandoned, unknown(now), Ok(vec![])),
            (Outcome::Compensated, unknown(now), Ok(vec![ReceiptState::Compensated])),
            (Outcome::Compensated, unknown(later), Err(Unresolvable::TooEarly(later))),
            (Outcome::Compensated, under_way, Err(Unresolvable::UnderWay)),
            (Outcome::Compensated, Standing::Rejected(answer.clone()), Ok(vec![])),
        ];
        for (outcome, other, expected) in cases {
            let recorded = outcome.needs_answer().then(|| answer.clone());
            let resolution =
                Resolution { outcome, evidence: "seen".into(), recorded, provider_receipt_id: None };
            let slot = [receipt(0, unknown(now)), receipt(1, other.clone())];
            let end = resolve(&slot[0], resolution, Actor::Verifier, now).expect("it is unknown");
            let found = siblings(&end, &slot, now)
                .map(|siblings| siblings.iter().map(Transition::to).collect::<Vec<_>>());
            assert_eq!(found, expected, "{outcome:?} {other:?}");
        }
    }

    fn receipt(dispatch_number: u64, standing: Standing) -> Receipt {
        Receipt {
            id: EffectId(Uuid::from_u128(dispatch_number.into())),
            tenant: TenantId(Uuid::nil()),
            run: RunId(Uuid::nil()),
            step: StepId(Uuid::nil()),
            place: Place { lineage: LineageId(Uuid::nil()), node: "n".into(), iteration: vec![] },
            slot: SlotKey::Ordinal(0),
            dispatch_number,
            position: 0,
            attempt: 1,
            request: RequestFacts {
                kind: "http".into(),
                safety: Safety::Idempotent,
                connection: None,
                destination: [0; 32],
                request_hash: [0; 32],
                content_key: [0; 16],
                idempotency_key: "k".into(),
                preview: serde_json::Value::Null,
            },
            standing,
        }
    }
}
