//! The steps that this host holds, whose they are, and the renewal of their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_domain::fair_share::{Contender, Due, Queue};
use counterfoil_domain::id::{LeaseId, TenantId};
use counterfoil_store::share::Shares;
use counterfoil_store::step::Fence;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Inner;

/// Leases held, with the switch that ends their executions.
///
/// What is in flight is counted here and nowhere else: a host that dies takes its count with it, and holds nobody's place.
#[derive(Debug, Default)]
pub(crate) struct Held {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    leases: HashMap<LeaseId, Lease>,
    /// Places of steps that are about to be leased.
    reserved: u32,
    tenants: HashMap<TenantId, u32>,
    queues: HashMap<Queue, u32>,
    shares: Arc<Shares>,
    waiting: Waiting,
}

#[derive(Debug)]
struct Lease {
    fence: Fence,
    queue: Queue,
    lost: CancellationToken,
}

/// What those would have with one place more who wait for room: the least of them.
#[derive(Debug, Default)]
struct Waiting {
    tenants: Option<u64>,
    workflows: HashMap<TenantId, u64>,
}

impl State {
    fn let_go(&mut self, lease: LeaseId) -> Option<Lease> {
        let gone = self.leases.remove(&lease)?;
        self.uncount(gone.queue);
        Some(gone)
    }

    fn count(&mut self, queue: Queue) {
        *self.tenants.entry(queue.tenant).or_default() += 1;
        *self.queues.entry(queue).or_default() += 1;
    }

    fn uncount(&mut self, queue: Queue) {
        take(&mut self.tenants, queue.tenant, 1);
        take(&mut self.queues, queue, 1);
    }

    fn len(&self) -> usize {
        self.leases.len() + self.reserved as usize
    }

    fn in_flight(&self, queue: &Queue) -> (u32, u32) {
        let tenant = self.tenants.get(&queue.tenant).copied().unwrap_or(0);
        (tenant, self.queues.get(queue).copied().unwrap_or(0))
    }

    /// Tenants and workflows as contenders; those of one tenant are one after the other.
    fn contenders(&self, due: impl Iterator<Item = Queue>) -> Vec<Due> {
        let mut contenders: Vec<Due> = vec![];
        for queue in due {
            let Queue { tenant, workflow } = queue;
            let (of_tenant, of_queue) = self.in_flight(&queue);
            if contenders.last().is_none_or(|last| last.tenant.key != tenant) {
                let share = self.shares.of_tenant(tenant);
                let tenant = Contender { key: tenant, in_flight: of_tenant, share };
                contenders.push(Due { tenant, workflows: vec![] });
            }
            let share = self.shares.of_workflow(&queue);
            let workflow = Contender { key: workflow, in_flight: of_queue, share };
            if let Some(last) = contenders.last_mut() {
                last.workflows.push(workflow);
            }
        }
        contenders
    }
}

fn take<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: K, places: u32) {
    if let std::collections::hash_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= places;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Places that a claim is about to fill. Given back when it is dropped, by when those that it filled have leases.
pub(crate) struct Granted<'a> {
    held: &'a Held,
    places: Vec<(Queue, u32)>,
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a lease; the token is cancelled when it is found lost.
    pub(crate) fn add(&self, fence: Fence, queue: Queue) -> CancellationToken {
        let lost = CancellationToken::new();
        let mut state = self.state();
        state.count(queue);
        state.leases.insert(fence.lease, Lease { fence, queue, lost: lost.clone() });
        lost
    }

    /// Lets a lease go, and whoever waits for room know.
    pub(crate) fn remove(&self, fence: &Fence) {
        self.state().let_go(fence.lease);
        self.tell();
    }

    /// Takes a place for a step that is not leased yet. False if there is none, or somebody waits for it, or its line has all
    /// that it may have.
    pub(crate) fn reserve(&self, queue: Queue, in_flight_max: u32) -> bool {
        let mut state = self.state();
        let (of_tenant, of_queue) = state.in_flight(&queue);
        let may = state.shares.of_tenant(queue.tenant).room(of_tenant) > 0
            && state.shares.of_workflow(&queue).room(of_queue) > 0;
        let is_free = may && state.waiting.workflows.is_empty() && state.len() < in_flight_max as usize;
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
    pub(crate) fn grant(&self, places: Vec<(Queue, u32)>) -> Granted<'_> {
        let mut state = self.state();
        for (queue, places) in &places {
            *state.tenants.entry(queue.tenant).or_default() += places;
            *state.queues.entry(*queue).or_default() += places;
            state.reserved += places;
        }
        drop(state);
        Granted { held: self, places }
    }

    fn tell(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.state().leases.values().map(|lease| lease.fence).collect()
    }

    /// What tenants and workflows may have, from now on.
    pub(crate) fn share_by(&self, shares: Arc<Shares>) {
        self.state().shares = shares;
    }

    /// Who has something due, with what each has in flight and may have.
    pub(crate) fn contenders(&self, due: impl Iterator<Item = Queue>) -> Vec<Due> {
        self.state().contenders(due)
    }

    /// Says whose work waits for room; nobody's if there was room for all.
    pub(crate) fn wait_with(&self, due: impl Iterator<Item = Queue>) {
        let mut state = self.state();
        let mut waiting = Waiting::default();
        for Due { tenant, workflows } in state.contenders(due) {
            let least = |one: &Contender<_>| one.share.load(one.in_flight + 1);
            let may = workflows.iter().filter(|one| one.share.room(one.in_flight) > 0);
            let Some(workflow) = may.map(least).min() else { continue };
            waiting.workflows.insert(tenant.key, workflow);
            if tenant.share.room(tenant.in_flight) > 0 {
                let load = tenant.share.load(tenant.in_flight + 1);
                waiting.tenants = Some(waiting.tenants.map_or(load, |least| least.min(load)));
            }
        }
        state.waiting = waiting;
    }

    /// Whether a step's line has its share, and another one waits that has less: then the next step of its run has to wait
    /// its turn. So it does where the line is beyond its cap.
    pub(crate) fn has_its_share(&self, queue: &Queue) -> bool {
        let state = self.state();
        let (of_tenant, of_queue) = state.in_flight(queue);
        let tenant = state.shares.of_tenant(queue.tenant);
        let workflow = state.shares.of_workflow(queue);
        let is_beyond = |most: Option<u32>, held| most.is_some_and(|most| held > most);
        let waits = |least: Option<u64>, load: u64| least.is_some_and(|least| load >= least);
        is_beyond(tenant.in_flight_max, of_tenant)
            || is_beyond(workflow.in_flight_max, of_queue)
            || waits(state.waiting.tenants, tenant.load(of_tenant.saturating_sub(1)))
            || waits(
                state.waiting.workflows.get(&queue.tenant).copied(),
                workflow.load(of_queue.saturating_sub(1)),
            )
    }

    /// Steps that have a place.
    pub(crate) fn len(&self) -> usize {
        self.state().len()
    }

    /// Waits until a lease has been let go.
    pub(crate) async fn change(&self) {
        self.changed.notified().await;
    }

    /// Waits until no lease is held.
    pub(crate) async fn empty(&self) {
        loop {
            let change = self.changed.notified();
            if self.len() == 0 {
                return;
            }
            change.await;
        }
    }

    fn lose_all_but(&self, asked: &[Fence], still_held: &[LeaseId]) {
        let mut state = self.state();
        for fence in asked.iter().filter(|fence| !still_held.contains(&fence.lease)) {
            if let Some(Lease { fence, lost, .. }) = state.let_go(fence.lease) {
                tracing::warn!(step = %fence.step, "the lease of a step was lost while it ran");
                lost.cancel();
            }
        }
    }
}

/// Renews every lease held, until told to stop. A lease that is gone ends its execution.
pub(crate) async fn renew(inner: Arc<Inner>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(inner.config.renew_every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let fences = inner.held.fences();
        if fences.is_empty() {
            continue;
        }
        match inner.store.renew(&fences, inner.config.lease).await {
            Ok(still_held) => inner.held.lose_all_but(&fences, &still_held),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "leases could not be renewed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use counterfoil_domain::id::WorkflowId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_place_that_is_taken_in_any_way_is_nobody_elses() {
        let queue = Queue { tenant: TenantId(Uuid::now_v7()), workflow: WorkflowId(Uuid::now_v7()) };
        let fence = Fence { tenant: queue.tenant, step: Uuid::now_v7().into(), lease: Uuid::now_v7().into() };
        let held = Held::default();
        let is_free = || {
            let is_free = held.reserve(queue, 1);
            if is_free {
                held.give_back(queue);
            }
            is_free
        };
        assert!(is_free());
        let claiming = held.grant(vec![(queue, 1)]);
        assert!(!is_free(), "a claim is about to fill it");
        held.add(fence, queue);
        drop(claiming);
        assert!(!is_free(), "its lease stands for it");
        held.remove(&fence);
        assert!(held.reserve(queue, 1) && !is_free(), "it is reserved");
        held.give_back(queue);
        assert!(is_free() && held.len() == 0);
    }
}
