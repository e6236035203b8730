//! Calls under way at once through a connection, on this host.
//!
//! Whoever finds no place comes back when its turn is likely to be: turns are spread by how long calls take, so that those
//! who wait do not come back all at once, and hold no sandbox meanwhile. The count lives in this process and dies with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_domain::id::TenantId;

/// What a call is taken to last as long as none has ended.
const FIRST_GUESS: Duration = Duration::from_millis(100);

/// A turn is not sooner: coming back costs a claim and an instance.
const TURN_MIN: Duration = Duration::from_millis(10);

/// The newest call counts for one part in so many of what calls are taken to last.
const MEMORY: u32 = 8;

type Key = (TenantId, String);

/// The places of every connection that has a limit.
#[derive(Debug, Default, Clone)]
pub(super) struct Places {
    busy: Arc<Mutex<HashMap<Key, Busy>>>,
}

#[derive(Debug)]
struct Busy {
    calls: u32,
    lasts: Duration,
    /// Where the queue of those that were sent away ends.
    tail: Instant,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    key: Key,
    since: Instant,
}

impl Places {
    fn busy(&self) -> MutexGuard<'_, HashMap<Key, Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of `most` places, or says when to come back.
    pub(super) fn take(
        &self,
        tenant: TenantId,
        connection: &str,
        most: u32,
        now: Instant,
    ) -> Result<Place, Duration> {
        let key = (tenant, connection.to_owned());
        let mut all = self.busy();
        let busy = all.entry(key.clone()).or_insert_with(|| Busy { calls: 0, lasts: FIRST_GUESS, tail: now });
        if busy.calls < most {
            busy.calls += 1;
            return Ok(Place { places: self.clone(), key, since: now });
        }
        busy.tail = busy.tail.max(now) + (busy.lasts / most.max(1)).max(TURN_MIN / most.max(1));
        Err((busy.tail - now).max(TURN_MIN))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.busy();
        let Some(busy) = all.get_mut(&self.key) else { return };
        busy.calls = busy.calls.saturating_sub(1);
        busy.lasts = busy.lasts * (MEMORY - 1) / MEMORY + self.since.elapsed() / MEMORY;
        // Whoever has nobody waiting and no call under way needs not be remembered.
        if busy.calls == 0 && busy.tail <= Instant::now() {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped() {
        let (places, now, tenant) = (Places::default(), Instant::now(), TenantId(Uuid::from_u128(1)));
        let take = |tenant, name| places.take(tenant, name, 2, now);
        let first = take(tenant, "c").expect("room");
        let second = take(tenant, "c").expect("room");
        let waits: Vec<_> = (0..4).map(|_| take(tenant, "c").expect_err("no room").as_millis()).collect();
        assert_eq!(waits, [50, 100, 150, 200], "turns are spread by what calls last");
        // Others have places of their own.
        let others =
            (take(tenant, "d").expect("room"), take(TenantId(Uuid::from_u128(2)), "c").expect("room"));
        assert_eq!(places.busy().len(), 3);
        drop(second);
        let third = take(tenant, "c").expect("room");
        drop((first, third, others));
        assert_eq!(places.busy().len(), 1, "the one whose queue has not passed");
    }
}
