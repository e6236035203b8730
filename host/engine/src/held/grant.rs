//! Who gets the next places of this host.

use counterfoil_domain::fair_share::{Queue, Turns};

use super::{Held, take};

/// What a look at those who have work due came to.
pub(crate) enum Grant<'a> {
    Places(Granted<'a>),
    /// Nobody has work that is due.
    NobodyIsDue,
    /// All have what they may have.
    Capped,
}

/// Places that a claim is about to fill. Given back when it is dropped, by when those that it filled have leases.
pub(crate) struct Granted<'a> {
    held: &'a Held,
    pub(crate) places: Vec<(Queue, u32)>,
    /// Places that there were.
    room: u32,
}

impl Granted<'_> {
    /// Whether somebody may still wait for room when so many steps were claimed.
    pub(crate) fn is_filled_by(&self, claimed: usize) -> bool {
        claimed >= self.room as usize
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
    pub(crate) fn reserve(&self, queue: Queue, in_flight_max: u32) -> bool {
        let mut state = self.state();
        let (of_tenant, of_queue) = state.in_flight(&queue);
        let may = state.shares.of_tenant(queue.tenant).room(of_tenant) > 0
            && state.shares.of_workflow(&queue).room(of_queue) > 0;
        let is_turn = of_tenant == 0 || state.waiting.workflows.is_empty();
        let is_free = may && is_turn && state.room(in_flight_max) > 0;
        if is_free {
            state.count(queue);
            state.reserved += 1;
        }
        is_free
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

    /// Takes the places that a claim is about to fill, so that nobody else does meanwhile.
    pub(crate) fn grant(
        &self,
        due: impl Iterator<Item = Queue>,
        turns: &mut Turns,
        in_flight_max: u32,
    ) -> Grant<'_> {
        let mut state = self.state();
        let due = state.contenders(due);
        if due.is_empty() {
            return Grant::NobodyIsDue;
        }
        let room = state.room(in_flight_max);
        let places = turns.grant(due, room);
        if places.is_empty() {
            return Grant::Capped;
        }
        for (queue, places) in &places {
            *state.tenants.entry(queue.tenant).or_default() += places;
            *state.queues.entry(*queue).or_default() += places;
            state.reserved += places;
        }
        drop(state);
        Grant::Places(Granted { held: self, places, room })
    }

    /// Waits until there is a free place.
    pub(crate) async fn room(&self, in_flight_max: u32) {
        loop {
            let change = self.changed.notified();
            if self.state().room(in_flight_max) > 0 {
                return;
            }
            change.await;
        }
    }
}
