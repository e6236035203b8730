//! Who gets the next places of this host.

use std::time::Instant;

use counterfoil_domain::fair_share::{Contender, Queue, Turns};

use super::{Held, take};

/// How many steps a host takes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub(crate) in_flight: u32,
    /// Of those that keep it busy: more would make each of them, and whoever comes next, wait longer for nothing.
    pub(crate) at_work: u32,
}

impl Most {
    /// More are taken on when there is room for a batch of them.
    fn is_busy(self, at_work: u32) -> bool {
        at_work.saturating_add(self.at_work / 4) > self.at_work
    }
}

/// What a look at those who have work due came to.
pub(crate) enum Grant<'a> {
    Places(Granted<'a>),
    /// Nobody has work that is due.
    NobodyIsDue,
    /// All have what they may have.
    Capped,
    /// This host has as much at work as it should.
    Busy,
}

/// Places that a claim is about to fill. Given back when it is dropped, by when those that it filled have leases.
pub(crate) struct Granted<'a> {
    held: &'a Held,
    pub(crate) places: Vec<(Queue, u32)>,
    /// Places that there were; none for those who have something in flight, if the host is busy.
    room: Option<u32>,
}

impl Granted<'_> {
    /// Whether somebody may still wait for room when so many steps were claimed.
    pub(crate) fn is_filled_by(&self, claimed: usize) -> bool {
        self.room.is_none_or(|room| claimed >= room as usize)
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        let mut state = self.held.state();
        for (queue, places) in &self.places {
            take(&mut state.tenants, queue.tenant, *places);
            take(&mut state.queues, *queue, *places);
            state.reserved -= places;
        }
    }
}

impl Held {
    /// Takes a place for a step that is not leased yet. False if there is none, or its line has all that it may have, or it is
    /// somebody else's turn: whose tenant has nothing in flight comes first, others when nobody waits.
    pub(crate) fn reserve(&self, queue: Queue, most: Most, now: Instant) -> bool {
        let mut state = self.state();
        let (of_tenant, of_queue) = state.in_flight(&queue);
        let may = state.shares.of_tenant(queue.tenant).room(of_tenant) > 0
            && state.shares.of_workflow(&queue).room(of_queue) > 0;
        if !may || state.room(most) == 0 {
            return false;
        }
        let at_work = state.at_work(now);
        let is_turn = if of_tenant == 0 {
            at_work < most.at_work.saturating_mul(2)
        } else {
            at_work < most.at_work && state.waiting.workflows.is_empty()
        };
        if is_turn {
            state.count(queue);
            state.reserved += 1;
        }
        is_turn
    }

    /// Gives a reserved place back.
    pub(crate) fn give_back(&self, queue: Queue) {
        {
            let mut state = self.state();
            state.uncount(queue);
            state.reserved -= 1;
        }
        self.tell();
    }

    /// Takes the places that a claim is about to fill, so that nobody else does meanwhile. A host that has enough at work takes
    /// on more of those tenants only that have nothing in flight.
    pub(crate) fn grant(
        &self,
        due: impl Iterator<Item = Queue>,
        turns: &mut Turns,
        most: Most,
        now: Instant,
    ) -> Grant<'_> {
        let mut state = self.state();
        let mut due = state.contenders(due);
        if due.is_empty() {
            return Grant::NobodyIsDue;
        }
        let at_work = state.at_work(now);
        let is_busy = most.is_busy(at_work);
        let most_at_work = if is_busy {
            for Contender { in_flight, share, .. } in due.iter_mut().map(|due| &mut due.tenant) {
                let more = u32::from(*in_flight == 0).min(share.room(0));
                share.in_flight_max = Some(*in_flight + more);
            }
            most.at_work.saturating_mul(2)
        } else {
            most.at_work
        };
        let room = state.room(most).min(most_at_work.saturating_sub(at_work));
        let places = turns.grant(due, room);
        if places.is_empty() {
            return if is_busy { Grant::Busy } else { Grant::Capped };
        }
        for (queue, places) in &places {
            *state.tenants.entry(queue.tenant).or_default() += places;
            *state.queues.entry(*queue).or_default() += places;
            state.reserved += places;
        }
        drop(state);
        Grant::Places(Granted { held: self, places, room: (!is_busy).then_some(room) })
    }

    /// Whether this host has as much at work as it should.
    pub(crate) fn is_busy(&self, most: Most, now: Instant) -> bool {
        most.is_busy(self.state().at_work(now))
    }

    /// Waits until there is a free place.
    pub(crate) async fn room(&self, most: Most) {
        loop {
            let change = self.changed.notified();
            if self.state().room(most) > 0 {
                return;
            }
            change.await;
        }
    }
}
