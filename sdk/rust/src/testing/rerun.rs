//! The block is run again from each beginning of its journal: it must make the same calls.

use super::effect::{Facts, Recorded, Slot};
use super::world::Stop;

/// A call that was made, and what the block was told; nothing where the execution ended there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) slot: Slot,
    pub(super) facts: Facts,
    pub(super) recorded: Option<Recorded>,
}

/// What the block did the first time.
#[derive(Debug, Clone)]
pub(super) struct Rerun {
    pub(super) told: Vec<Told>,
    /// Calls that the journal answers; the others are made, and answered as they were.
    pub(super) recorded: usize,
}

impl Rerun {
    /// # Errors
    ///
    /// The call is not the one that was made there, in words.
    pub(super) fn compare(&self, position: usize, slot: &Slot, facts: &Facts) -> Result<(), String> {
        let made = format!("`{}` of `{slot}`", facts.request);
        let Some(told) = self.told.get(position) else {
            return Err(self.words(position, &made, "no call"));
        };
        let is_same =
            told.slot == *slot && told.facts.safety == facts.safety && told.facts.content == facts.content;
        if is_same {
            return Ok(());
        }
        let before = format!("`{}` of `{}`", told.facts.request, told.slot);
        if before == made {
            return Err(self.words(position, &made, "the same with another content"));
        }
        Err(self.words(position, &made, &before))
    }

    /// The answer that the call got.
    ///
    /// # Errors
    ///
    /// The execution ended there.
    pub(super) fn answer(&self, position: usize) -> Result<Recorded, Stop> {
        let recorded = self.told.get(position).and_then(|told| told.recorded.clone());
        recorded.ok_or_else(|| Stop::Blocked { reason: "it ended here".into() })
    }

    /// How a difference reads.
    pub(super) fn words(&self, position: usize, now: &str, before: &str) -> String {
        let (recorded, nth) = (self.recorded, position + 1);
        format!(
            "the block is not deterministic: run again with {recorded} answers from its journal, call {nth} was {now}, and \
             had been {before}"
        )
    }
}
