//! What a host knows of the lines of steps: which have some due, and when others will.
//!
//! It learns from wake-ups and from what it claims, and looks at everything only now and then: so a look costs what there
//! is to do, and not what waits.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_domain::fair_share::Queue;
use counterfoil_store::step::{Claimed, Line, Take};
use tokio::time::Instant;

/// A step may become visible so much later than it became due, and still be found by the next claim; one that is later
/// still, by the next look at everything.
const LATE_COMMIT: TimeDelta = TimeDelta::milliseconds(500);

#[derive(Debug, Default)]
pub(crate) struct Known {
    lines: HashMap<Queue, Standing>,
    timers: BTreeSet<(Instant, Queue)>,
    due: BTreeSet<Queue>,
}

/// Where a line stands.
#[derive(Debug, Default, Clone, Copy)]
struct Standing {
    /// When the next of its steps becomes due.
    next: Option<Instant>,
    /// What was due before is gone.
    since: Option<DateTime<Utc>>,
}

impl Known {
    /// There is something due in a line, or may be.
    pub(crate) fn mark(&mut self, queue: Queue) {
        self.lines.entry(queue).or_default();
        self.due.insert(queue);
    }

    /// What a look at some lines found.
    pub(crate) fn learn(&mut self, lines: &[Line], now: Instant) {
        for line in lines {
            let standing = self.lines.entry(line.queue).or_default();
            if let Some(since) = line.due_since {
                standing.since = standing.since.filter(|known| *known <= since);
                self.due.insert(line.queue);
            }
            self.foresee(line.queue, line.next_in, now);
        }
    }

    /// What a look at all lines found: the others have nothing open.
    pub(crate) fn learn_all(&mut self, lines: &[Line], now: Instant) {
        let present: BTreeSet<Queue> = lines.iter().map(|line| line.queue).collect();
        self.lines.retain(|queue, _| present.contains(queue));
        self.due.retain(|queue| present.contains(queue));
        self.timers.retain(|(_, queue)| present.contains(queue));
        self.learn(lines, now);
    }

    /// The next step of a line becomes due in this time; never by itself, if none is given.
    pub(crate) fn foresee(&mut self, queue: Queue, next_in: Option<Duration>, now: Instant) {
        let standing = self.lines.entry(queue).or_default();
        if let Some(next) = standing.next.take() {
            self.timers.remove(&(next, queue));
        }
        standing.next = next_in.and_then(|next_in| now.checked_add(next_in));
        if let Some(next) = standing.next {
            self.timers.insert((next, queue));
        }
    }

    /// Lines whose time has come are due.
    pub(crate) fn ripen(&mut self, now: Instant) {
        while let Some((next, queue)) = self.timers.first().copied().filter(|(next, _)| *next <= now) {
            self.timers.remove(&(next, queue));
            self.mark(queue);
            if let Some(standing) = self.lines.get_mut(&queue) {
                standing.next = None;
            }
        }
    }

    /// Lines with something due, those of a tenant one after the other.
    pub(crate) fn due(&self) -> impl Iterator<Item = Queue> + '_ {
        self.due.iter().copied()
    }

    /// When the next line becomes due that is not yet.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(next, _)| *next)
    }

    /// What to ask for.
    pub(crate) fn take(&self, queue: Queue, places: u32) -> Take {
        Take { queue, places, since: self.lines.get(&queue).and_then(|standing| standing.since) }
    }

    /// What was asked for, and what came of it. Returns the lines that gave less than was asked for: they have nothing due any
    /// more, and when they will is to be found out.
    pub(crate) fn taken(&mut self, takes: &[Take], claimed: &[Claimed]) -> Vec<Queue> {
        let mut given: HashMap<Queue, (u32, DateTime<Utc>)> = HashMap::new();
        for step in claimed {
            let (count, last) = given.entry(step.queue()).or_insert((0, step.due_at));
            *count += 1;
            *last = (*last).max(step.due_at);
        }
        let mut exhausted = vec![];
        for take in takes {
            let given = given.get(&take.queue).copied();
            if let Some((_, last)) = given {
                self.lines.entry(take.queue).or_default().since = Some(last - LATE_COMMIT);
            }
            if given.map_or(0, |(count, _)| count) < take.places {
                self.due.remove(&take.queue);
                exhausted.push(take.queue);
            }
        }
        exhausted
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn queue(n: u128) -> Queue {
        Queue { tenant: Uuid::from_u128(n).into(), workflow: Uuid::from_u128(n).into() }
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).expect("in the calendar")
    }

    fn line(n: u128, due_since: Option<i64>, next_s: Option<u64>) -> Line {
        Line { queue: queue(n), due_since: due_since.map(at), next_in: next_s.map(Duration::from_secs) }
    }

    fn due(known: &Known) -> Vec<Queue> {
        known.due().collect()
    }

    #[test]
    fn a_line_is_due_when_it_is_marked_or_its_time_has_come() {
        let (mut known, start) = (Known::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        known.mark(queue(1));
        known.learn(&[line(2, None, Some(5)), line(3, Some(1), Some(2)), line(4, None, None)], start);
        assert_eq!((due(&known), known.next()), (vec![queue(1), queue(3)], Some(after(2))));

        let takes: Vec<_> = [1, 3].map(|n| known.take(queue(n), 1)).into();
        assert_eq!(known.taken(&takes, &[]), [queue(1), queue(3)]);
        assert_eq!((due(&known), known.next()), (vec![], Some(after(2))));
        known.ripen(after(4));
        assert_eq!((due(&known), known.next()), (vec![queue(3)], Some(after(5))));

        // A nearer time takes the place of one that is further away, and the other way round.
        known.foresee(queue(2), Some(Duration::from_secs(1)), start);
        assert_eq!(known.next(), Some(after(1)));
        known.foresee(queue(2), None, start);
        assert_eq!(known.next(), None);

        // Whoever has nothing open is forgotten.
        known.learn_all(&[line(4, None, Some(9))], start);
        assert_eq!((due(&known), known.next(), known.lines.len()), (vec![], Some(after(9)), 1));
    }

    #[test]
    fn what_comes_late_lowers_what_is_known_to_be_gone() {
        let (mut known, now) = (Known::default(), Instant::now());
        known.learn(&[line(1, Some(100), None)], now);
        assert_eq!(known.take(queue(1), 1).since, None);
        known.lines.entry(queue(1)).or_default().since = Some(at(200));
        for (found, expected) in [(300, Some(at(200))), (200, Some(at(200))), (150, None)] {
            known.learn(&[line(1, Some(found), None)], now);
            assert_eq!(known.take(queue(1), 1).since, expected, "{found}");
        }
    }
}
