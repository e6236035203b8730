//! Whether an execution keeps its host busy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How it is written that an execution waits.
const AWAY: u64 = u64::MAX;

/// Whether an execution is at work here, or waits for an answer from outside. Shared by whoever counts it and the guard.
#[derive(Debug)]
pub struct Occupation {
    begun: Instant,
    /// When it last went on by itself, in microseconds since it was begun.
    moved_us: AtomicU64,
}

impl Occupation {
    /// Of an execution that begins now.
    pub fn new(now: Instant) -> Self {
        Self { begun: now, moved_us: AtomicU64::new(0) }
    }

    /// Whether it went on less than `lately` ago, and does not wait for an answer. What is at work for longer computes, or
    /// waits for something within its sandbox: it has its turns beside others.
    pub fn is_at_work(&self, now: Instant, lately: Duration) -> bool {
        let moved_us = self.moved_us.load(Ordering::Relaxed);
        moved_us != AWAY && now < self.begun + Duration::from_micros(moved_us) + lately
    }

    /// It waits for an answer until this is dropped.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.moved_us.store(AWAY, Ordering::Relaxed);
        Waits(self)
    }
}

pub(crate) struct Waits<'a>(&'a Occupation);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let moved = u64::try_from(self.0.begun.elapsed().as_micros()).unwrap_or(AWAY - 1);
        self.0.moved_us.store(moved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_at_work_from_when_it_went_on_until_it_waits_or_has_not_moved_lately() {
        const LATELY: Duration = Duration::from_secs(50);
        let begun = Instant::now();
        let occupation = Occupation::new(begun);
        let is_at_work = |after| occupation.is_at_work(begun + after, LATELY);
        assert!(is_at_work(Duration::ZERO) && !is_at_work(LATELY));
        let waits = occupation.wait();
        assert!(!is_at_work(Duration::ZERO));
        drop(waits);
        assert!(is_at_work(LATELY), "an answer came a moment later");
        assert!(!is_at_work(LATELY * 2));
    }
}
