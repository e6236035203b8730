//! How one host shares its room among those that have work due: tenants, and the workflows of each.
//!
//! A place goes to whoever has least in flight for its weight, so that a tenant that comes late gets the next place that is
//! free, however much the others have due. Among those that have equally little it goes to whoever is furthest behind what
//! its weight entitles it to: deficits are kept from one round to the next, so that they take turns by weight even where
//! there is one place at a time. Workflows share the places of their tenant by the same rule. Nobody goes beyond its cap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::Hash;

use crate::id::{TenantId, WorkflowId};

/// Largest weight: so much more than another that nobody needs more.
pub const WEIGHT_MAX: u32 = 1_000;

/// One place of a contender whose weight is 1, in units that every weight divides finely enough.
const PLACE: u64 = 1 << 32;

/// What waits in one line: the steps of one workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    /// Whose.
    pub tenant: TenantId,
    /// Which workflow's.
    pub workflow: WorkflowId,
}

/// What a tenant or a workflow may have of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How much of the room, compared with others; at least 1.
    pub weight: u32,
    /// Steps in flight at most, on one host; as many as there is room for, if none is given.
    pub in_flight_max: Option<u32>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, in_flight_max: None }
    }
}

impl Share {
    /// How much so many places are for this weight. Only compared with each other.
    pub fn load(&self, in_flight: u32) -> u64 {
        u64::from(in_flight) * (PLACE / u64::from(self.weight.clamp(1, WEIGHT_MAX)))
    }

    /// Places that may be taken beside those in flight.
    pub fn room(&self, in_flight: u32) -> u32 {
        self.in_flight_max.map_or(u32::MAX, |most| most.saturating_sub(in_flight))
    }
}

/// Somebody who has work due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender<K> {
    /// Who.
    pub key: K,
    /// Its steps that this host has in flight.
    pub in_flight: u32,
    /// What it may have.
    pub share: Share,
}

/// A tenant that has work due, and in which workflows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The tenant.
    pub tenant: Contender<TenantId>,
    /// Its workflows that have work due.
    pub workflows: Vec<Contender<WorkflowId>>,
}

/// Whose turn it is, from one round to the next.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    tenants: Served<TenantId>,
    queues: HashMap<TenantId, Served<WorkflowId>>,
}

/// What each contender has been given for its weight: whoever has least is furthest behind.
#[derive(Debug, Clone)]
struct Served<K> {
    /// Where those stand that have nothing to catch up on.
    now: u64,
    so_far: HashMap<K, u64>,
}

impl<K> Default for Served<K> {
    fn default() -> Self {
        Self { now: 0, so_far: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash + Ord> Served<K> {
    /// Who had nothing due meanwhile is owed nothing for it.
    fn begin(&mut self, due: impl IntoIterator<Item = K>) {
        let due: HashSet<K> = due.into_iter().collect();
        self.so_far.retain(|key, _| due.contains(key));
        for key in due {
            self.so_far.entry(key).or_insert(self.now);
        }
    }

    fn of(&self, key: K) -> u64 {
        self.so_far.get(&key).copied().unwrap_or(self.now)
    }

    fn serve(&mut self, key: K, share: &Share) {
        let so_far = self.of(key);
        self.now = self.now.max(so_far);
        self.so_far.insert(key, so_far + share.load(1));
    }
}

/// Contenders in the order of their turns.
struct Line<K> {
    order: BinaryHeap<Reverse<(u64, u64, K, usize)>>,
}

impl<K: Copy + Eq + Hash + Ord> Line<K> {
    fn new(contenders: impl IntoIterator<Item = (usize, Contender<K>)>, served: &Served<K>) -> Self {
        let entry = |(index, one): (usize, Contender<K>)| {
            (one.share.room(one.in_flight) > 0)
                .then(|| Reverse((one.share.load(one.in_flight), served.of(one.key), one.key, index)))
        };
        Self { order: contenders.into_iter().filter_map(entry).collect() }
    }

    fn first(&mut self) -> Option<usize> {
        self.order.pop().map(|Reverse((.., index))| index)
    }

    fn again(&mut self, index: usize, one: &Contender<K>, served: &Served<K>) {
        if one.share.room(one.in_flight) > 0 {
            self.order.push(Reverse((one.share.load(one.in_flight), served.of(one.key), one.key, index)));
        }
    }
}

impl Turns {
    /// Grants at most `room` places, one after the other; fewer where caps leave some free. In the order of `due`.
    ///
    /// A workflow may be granted more places than it has work; they are free again at the next look.
    pub fn grant(&mut self, mut due: Vec<Due>, room: u32) -> Vec<(Queue, u32)> {
        self.tenants.begin(due.iter().map(|due| due.tenant.key));
        let present: HashSet<TenantId> = due.iter().map(|due| due.tenant.key).collect();
        self.queues.retain(|tenant, _| present.contains(tenant));
        let mut lines: Vec<Line<WorkflowId>> = due
            .iter()
            .map(|due| {
                let served = self.queues.entry(due.tenant.key).or_default();
                served.begin(due.workflows.iter().map(|one| one.key));
                Line::new(due.workflows.iter().copied().enumerate(), served)
            })
            .collect();
        let mut granted: Vec<Vec<u32>> = due.iter().map(|due| vec![0; due.workflows.len()]).collect();
        let mut tenants = Line::new(due.iter().map(|due| due.tenant).enumerate(), &self.tenants);
        let mut left = room;
        while left > 0 {
            let Some(n) = tenants.first() else { break };
            let Due { tenant, workflows } = &mut due[n];
            // One whose workflows are all at their caps has no turn.
            let Some(index) = lines[n].first() else { continue };
            let served = self.queues.entry(tenant.key).or_default();
            served.serve(workflows[index].key, &workflows[index].share);
            workflows[index].in_flight += 1;
            granted[n][index] += 1;
            lines[n].again(index, &workflows[index], served);
            self.tenants.serve(tenant.key, &tenant.share);
            tenant.in_flight += 1;
            tenants.again(n, tenant, &self.tenants);
            left -= 1;
        }
        let places = |(due, granted): (&Due, Vec<u32>)| {
            let tenant = due.tenant.key;
            let of =
                |(one, places): (&Contender<WorkflowId>, u32)| (Queue { tenant, workflow: one.key }, places);
            due.workflows.iter().zip(granted).map(of).collect::<Vec<_>>()
        };
        due.iter().zip(granted).flat_map(places).filter(|(_, places)| *places > 0).collect()
    }
}

#[cfg(test)]
mod tests;
