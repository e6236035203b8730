//! What a block says when it is asked what became of an effect whose outcome is unknown.

use std::fmt::Display;
use std::time::SystemTime;

use serde_json::Value;

use crate::block::Block;
use crate::http::Answer;

/// An effect that was sent and whose answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownEffect {
    /// The host's name for it, `eff_…`.
    pub id: String,
    /// `http`, or whatever other kind it is of.
    pub kind: String,
    /// The name of its step in the workflow.
    pub node: String,
    /// The label that the block gave it, or `#` and a number.
    pub key: String,
    /// The key that the receiver was sent to recognise a repeat by.
    pub idempotency_key: Option<String>,
    /// The request, as much of it as is kept, without credentials: of an HTTP call its `method`, `url`, `headers`, and the
    /// beginning of its `body`.
    pub request: Value,
    /// When it was sent.
    pub sent_at: SystemTime,
}

/// What became of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It took place. The block is handed this answer in place of the one that was lost.
    Applied(Answer),
    /// It did not take place, and is sent again. The host believes it only once the call can no longer arrive; before
    /// that, it asks again.
    NotApplied,
    /// Nothing can be said now. The host asks again later, a few times, and then a person, who reads this.
    Inconclusive(String),
}

impl Verdict {
    /// It took place, and this is the answer that was lost: what the receiver would have given.
    pub fn applied(answer: Answer) -> Self {
        Self::Applied(answer)
    }

    /// Nothing can be said now, for this reason.
    pub fn inconclusive(why: impl Into<String>) -> Self {
        Self::Inconclusive(why.into())
    }
}

/// Whoever could not find out has nothing to say.
impl<E: Display> From<Result<Verdict, E>> for Verdict {
    fn from(result: Result<Verdict, E>) -> Self {
        result.unwrap_or_else(|error| Self::Inconclusive(error.to_string()))
    }
}

/// What `verify = …` implements.
pub trait Verify: Block {
    /// The named function.
    fn verify(effect: &UnknownEffect) -> Verdict;
}

/// Lets a block say it with or without a `Result`.
pub fn verdict(said: impl Into<Verdict>) -> Verdict {
    said.into()
}
