//! How long an answer waits for its step's end, which takes it along in a write of its own.
//!
//! Most steps end right behind their last answer. On a busy host that end takes a while to come round although nothing
//! computes, and to write each answer by itself would cost the busiest most. So the wait follows what is usual.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Inner;
use crate::execution::Progress;

/// An answer that is taken along waits for less than this many times what is usual.
const USUAL_TIMES: u64 = 4;
/// However slow the steps of a host are, no answer waits for more than this many times the least.
const LEAST_TIMES: u32 = 256;
/// Of how many answers the mean is, as a power of two: enough that one slow step moves it little.
const MEAN_OF_LOG2: u32 = 4;

/// What is usual on this host.
#[derive(Debug)]
pub(super) struct Patience {
    least: Duration,
    usual_micros: AtomicU64,
}

impl Patience {
    pub(super) fn new(least: Duration) -> Self {
        Self { least, usual_micros: AtomicU64::new(0) }
    }

    /// How long the next answer waits; not at all, if the least is nothing.
    pub(super) fn wait(&self) -> Duration {
        let usual = Duration::from_micros(self.usual_micros.load(Ordering::Relaxed) * USUAL_TIMES);
        usual.clamp(self.least, self.least.saturating_mul(LEAST_TIMES))
    }

    /// A step ended, or sent again, this long after an answer.
    pub(super) fn took(&self, time: Duration) {
        let longest = self.least.saturating_mul(LEAST_TIMES);
        let micros = u64::try_from(time.min(longest).as_micros()).unwrap_or(u64::MAX >> MEAN_OF_LOG2);
        let usual = self.usual_micros.load(Ordering::Relaxed);
        // Of two that come at once one may be lost, which the mean does not feel.
        let next = usual - (usual >> MEAN_OF_LOG2) + (micros >> MEAN_OF_LOG2);
        self.usual_micros.store(next, Ordering::Relaxed);
    }
}

impl Inner {
    /// An execution has come to its next write.
    pub(super) fn went_on(&self, progress: &mut Progress) {
        if let Some(at) = progress.answered_at.take() {
            self.patience.took(at.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_waits_as_long_as_is_usual_and_not_for_ever() {
        let patience = Patience::new(MS);
        assert_eq!(patience.wait(), MS);
        for (took, expected) in [(MS * 5, 15..=20), (MS * 100_000, 256..=256), (MS / 100, 1..=1)] {
            for _ in 0..200 {
                patience.took(took);
            }
            assert!(expected.contains(&patience.wait().as_millis()), "{took:?}: {:?}", patience.wait());
        }
        let one = Patience::new(MS);
        one.took(MS * 4);
        assert_eq!(one.wait(), MS, "one slow step moves nothing");
    }

    #[test]
    fn no_patience_stays_none() {
        let none = Patience::new(Duration::ZERO);
        none.took(MS * 1_000);
        assert_eq!(none.wait(), Duration::ZERO);
    }
}
