//! Takes due steps, as many as this host has room for, shared evenly among the tenants that have any.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::id::TenantId;
use counterfoil_domain::ports::Site;
use counterfoil_store::StoreError;
use counterfoil_store::step::{ClaimRequest, Claimed};
use tokio_util::sync::CancellationToken;

use crate::{Inner, execute};

/// Pause after a failed look, so that a database that is down is not hammered.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// Claims and executes until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let mut wakes = inner.store.wakes();
    while !stop.is_cancelled() {
        // Only the wait for room is given up: a claim that was begun must be known of, or its steps count as lost.
        let room = tokio::select! {
            () = stop.cancelled() => return,
            room = wait_for_room(&inner) => room,
        };
        let wait = match look(&inner, room).await {
            Ok(Looked { took_all: false, .. }) => continue,
            Ok(Looked { next_in, .. }) => {
                next_in.unwrap_or(inner.config.poll_every).min(inner.config.poll_every)
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due steps could not be claimed");
                PAUSE_AFTER_ERROR
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = wakes.changed() => {}
            () = inner.preparations.done() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

struct Looked {
    /// Nothing that is due was left behind.
    took_all: bool,
    /// Until something is due that is not yet.
    next_in: Option<Duration>,
}

async fn look(inner: &Arc<Inner>, room: u32) -> Result<Looked, StoreError> {
    let due = inner.store.due().await?;
    if due.tenants.is_empty() {
        return Ok(Looked { took_all: true, next_in: due.next_in });
    }
    inner.faults.reach(Site::BeforeClaim);
    let request = ClaimRequest {
        host: inner.config.host,
        lease: inner.config.lease,
        tenants: quotas(&due.tenants, room),
        without: inner.preparations.unrunnable(),
    };
    let claimed = inner.store.claim(&request).await?;
    let took_all = claimed.is_empty();
    for step in claimed {
        spawn(inner, step);
    }
    // What is due and not claimable here (a block that only other hosts can run) must not spin this loop.
    Ok(Looked { took_all, next_in: if took_all { None } else { due.next_in } })
}

/// Waits until there is room for at least one more step.
async fn wait_for_room(inner: &Inner) -> u32 {
    loop {
        let change = inner.held.change();
        let held = u32::try_from(inner.held.len()).unwrap_or(u32::MAX);
        let room = inner.config.in_flight_max.saturating_sub(held);
        if room > 0 {
            return room;
        }
        change.await;
    }
}

/// The same share for every tenant, at least one step each.
fn quotas(tenants: &[TenantId], room: u32) -> Vec<(TenantId, u32)> {
    let count = u32::try_from(tenants.len()).unwrap_or(u32::MAX).max(1);
    let share = (room / count).max(1);
    tenants.iter().take(room as usize).map(|tenant| (*tenant, share)).collect()
}

fn spawn(inner: &Arc<Inner>, step: Claimed) {
    // Held before the task runs, so that the next look counts it and the next renewal covers it.
    let lost = inner.held.add(step.fence);
    let inner = Arc::clone(inner);
    tokio::spawn(async move { execute::run(&inner, step, lost).await });
}
