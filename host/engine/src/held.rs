//! The steps that this host holds, and the renewal of their leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_domain::id::{LeaseId, TenantId};
use counterfoil_store::step::Fence;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Inner;

/// Leases held, with the switch that ends their executions.
#[derive(Debug)]
pub(crate) struct Held {
    leases: Mutex<HashMap<LeaseId, (Fence, CancellationToken)>>,
    changed: Notify,
    /// Fewest steps that a tenant holds of those whose work waits for room; the largest number if none waits.
    fewest_waiting: AtomicU32,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            leases: Mutex::default(),
            changed: Notify::default(),
            fewest_waiting: AtomicU32::new(u32::MAX),
        }
    }
}

impl Held {
    fn leases(&self) -> MutexGuard<'_, HashMap<LeaseId, (Fence, CancellationToken)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a lease; the token is cancelled when it is found lost.
    pub(crate) fn add(&self, fence: Fence) -> CancellationToken {
        let lost = CancellationToken::new();
        self.leases().insert(fence.lease, (fence, lost.clone()));
        lost
    }

    /// Lets a lease go, and whoever waits for room know.
    pub(crate) fn remove(&self, fence: &Fence) {
        self.leases().remove(&fence.lease);
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.leases().values().map(|(fence, _)| *fence).collect()
    }

    /// How many each tenant has.
    pub(crate) fn by_tenant(&self) -> HashMap<TenantId, u32> {
        let mut counts = HashMap::new();
        for (fence, _) in self.leases().values() {
            *counts.entry(fence.tenant).or_default() += 1;
        }
        counts
    }

    /// Says what the tenant holds that has fewest of those whose work waits for room; none if there was room for all.
    pub(crate) fn wait_with(&self, fewest: Option<u32>) {
        self.fewest_waiting.store(fewest.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Whether a tenant has its share, and another one waits that has less: then its next step has to wait its turn.
    pub(crate) fn has_its_share(&self, tenant: TenantId) -> bool {
        let fewest = self.fewest_waiting.load(Ordering::Relaxed);
        fewest < u32::MAX
            && self.by_tenant().get(&tenant).is_some_and(|held| *held > fewest.saturating_add(1))
    }

    pub(crate) fn len(&self) -> usize {
        self.leases().len()
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
        let mut leases = self.leases();
        for fence in asked.iter().filter(|fence| !still_held.contains(&fence.lease)) {
            if let Some((fence, lost)) = leases.remove(&fence.lease) {
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
