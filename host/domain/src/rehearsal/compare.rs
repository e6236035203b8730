//! A block is run again from each beginning of its journal: it must make the same calls and end the same way.

use super::{Halt, Rehearsal};
use crate::effect::{EffectFailure, EffectReply, Safety};
use crate::ports::StepEnd;
use crate::receipt::journal::Journal;
use crate::receipt::{RequestFacts, SlotKey};
use crate::step::Stop;

/// A call that was made, and what the block was told; nothing where the execution ended there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    slot: SlotKey,
    safety: Safety,
    request_hash: [u8; 32],
    request: String,
    pub(super) reply: Option<EffectReply>,
}

impl Told {
    pub(super) fn new(slot: &SlotKey, facts: &RequestFacts, request: String) -> Self {
        let RequestFacts { safety, request_hash, .. } = facts;
        Self { slot: slot.clone(), safety: *safety, request_hash: *request_hash, request, reply: None }
    }

    fn is_call(&self, other: &Self) -> bool {
        (&self.slot, self.safety, &self.request_hash) == (&other.slot, other.safety, &other.request_hash)
    }
}

/// A block that did something else when it was run again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not deterministic: run again with {recorded} answers from its journal, {what}")]
pub struct Difference {
    recorded: usize,
    what: String,
}

/// What the block did the first time.
#[derive(Debug, Clone)]
pub struct Rerun {
    told: Vec<Told>,
    end: Option<StepEnd>,
    /// Calls that the journal answers; the others are made, and answered as they were.
    recorded: usize,
    difference: Option<String>,
}

impl Rerun {
    /// # Errors
    /// The call is not the one that was made there.
    pub(super) fn compare(&mut self, position: u32, now: &Told) -> Result<(), String> {
        let before = usize::try_from(position).ok().and_then(|position| self.told.get(position));
        let before = match before {
            Some(before) if before.is_call(now) => return Ok(()),
            Some(before) if (&before.slot, &before.request) == (&now.slot, &now.request) => {
                "the same with another content".into()
            }
            Some(before) => format!("`{}` of `{}`", before.request, before.slot),
            None => "no call".into(),
        };
        let (nth, Told { slot, request, .. }) = (u64::from(position) + 1, now);
        let what = format!("call {nth} was `{request}` of `{slot}`, and had been {before}");
        self.difference = Some(what.clone());
        Err(what)
    }

    /// The answer that the call got.
    pub(super) fn reply(&self, position: u32) -> Result<EffectReply, Halt> {
        let told = usize::try_from(position).ok().and_then(|position| self.told.get(position));
        told.and_then(|told| told.reply.clone())
            .ok_or_else(|| Halt::Guard(Stop::Blocked { reason: "it ended here".into() }))
    }
}

impl Rehearsal {
    /// What the block was told of calls that did not take place, in its last execution.
    pub fn refusals(&self) -> Vec<String> {
        let refusal = |told: &Told| {
            let Some(EffectReply::Failed(failure)) = &told.reply else { return None };
            let why = match failure {
                EffectFailure::Denied(why)
                | EffectFailure::NotSent(why)
                | EffectFailure::NoAnswer(why)
                | EffectFailure::Limit(why) => why.clone(),
                EffectFailure::Rejected(response) => {
                    format!("the receiver refused it with {}", response.status)
                }
                EffectFailure::ResponseTooLarge(_) => "its answer is longer than is kept".into(),
            };
            Some(format!("`{}` of `{}`: {why}", told.request, told.slot))
        };
        self.execution.told.iter().filter_map(refusal).collect()
    }

    /// The same step as it was before each of its last execution's calls, and after the last of them: to be run once more,
    /// and then to be asked for its [`difference`](Self::difference). None after a trap, which may fall anywhere.
    pub fn reruns(&self) -> Vec<Self> {
        let told = &self.execution.told;
        if matches!(self.execution.end, None | Some(StepEnd::Trapped { .. })) {
            return vec![];
        }
        let rerun = |recorded| {
            let rerun =
                Rerun { told: told.clone(), end: self.execution.end.clone(), recorded, difference: None };
            let mut again = Self { rerun: Some(rerun), ..self.clone() };
            let receipts = self.journal.receipts().iter();
            let is_before =
                |position: u32| usize::try_from(position).is_ok_and(|position| position < recorded);
            again.journal =
                Journal::new(receipts.filter(|receipt| is_before(receipt.position)).cloned().collect());
            again
        };
        (0..=told.len()).map(rerun).collect()
    }

    /// What the block did otherwise when it was run again.
    pub fn difference(&self) -> Option<Difference> {
        let Rerun { told, end, recorded, difference } = self.rerun.as_ref()?;
        let calls = self.execution.told.len();
        let what = match difference {
            Some(what) => what.clone(),
            None if calls < told.len() => {
                let Told { slot, request, .. } = &told[calls];
                format!("call {} was not made, and had been `{request}` of `{slot}`", calls + 1)
            }
            None if self.execution.end != *end => {
                let shown = |end: &Option<StepEnd>| end.as_ref().map_or_else(String::new, ended);
                format!("it ended with {}, and had ended with {}", shown(&self.execution.end), shown(end))
            }
            None => return None,
        };
        Some(Difference { recorded: *recorded, what })
    }
}

fn ended(end: &StepEnd) -> String {
    match end {
        StepEnd::Output(output) => format!("the output {output}"),
        StepEnd::Failed { code, message, .. } => format!("the failure {code}: {message}"),
        StepEnd::Trapped { code, message } => format!("{code}: {message}"),
        StepEnd::Stopped => "the call".into(),
        StepEnd::Unavailable { message } | StepEnd::Lost { message } => message.clone(),
    }
}
