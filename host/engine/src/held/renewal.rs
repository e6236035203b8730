//! The renewal of leases, and what becomes of those that were lost.

use std::sync::Arc;

use counterfoil_domain::id::LeaseId;
use counterfoil_store::step::Fence;
use tokio_util::sync::CancellationToken;

use super::{Held, Lease};
use crate::Inner;

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
        let renewing = inner.store.renew(&fences, inner.config.lease);
        match stop.run_until_cancelled(renewing).await {
            None => return,
            Some(Ok(still_held)) => inner.held.lose_all_but(&fences, &still_held),
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "leases could not be renewed");
            }
        }
    }
}

impl Held {
    pub(super) fn lose_all_but(&self, asked: &[Fence], still_held: &[LeaseId]) {
        let mut state = self.state();
        for fence in asked.iter().filter(|fence| !still_held.contains(&fence.lease)) {
            if state.leases.get(&fence.lease).is_none_or(|lease| lease.ends) {
                continue;
            }
            if let Some(Lease { fence, lost, .. }) = state.let_go(fence.lease) {
                tracing::warn!(step = %fence.step, "the lease of a step was lost while it ran");
                lost.cancel();
            }
        }
    }
}
