//! Takes due steps, as many as this host has room for, shared fairly among the tenants that have any.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::fair_share::{Due, grants};
use counterfoil_domain::id::{RunId, TenantId};
use counterfoil_domain::ports::Site;
use counterfoil_store::StoreError;
use counterfoil_store::run::RunContext;
use counterfoil_store::step::{ClaimRequest, Claimed};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::{Inner, execute};

/// Pause after a failed look, so that a database that is down is not hammered.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// Between two looks of a host that has no room: a few short steps.
const LOOK_WHILE_FULL_EVERY: Duration = Duration::from_millis(50);

/// Claims and executes until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let mut wakes = inner.store.wakes();
    // Who was granted the last place.
    let mut after = None;
    while !stop.is_cancelled() {
        // Only the wait for room is given up: a claim that was begun must be known of, or its steps count as lost.
        let room = tokio::select! {
            () = stop.cancelled() => return,
            room = wait_for_room(&inner) => room,
        };
        let wait = match look(&inner, room, &mut after).await {
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

async fn look(inner: &Arc<Inner>, room: u32, after: &mut Option<TenantId>) -> Result<Looked, StoreError> {
    let due = inner.store.due().await?;
    if due.tenants.is_empty() {
        inner.held.wait_with(None);
        return Ok(Looked { took_all: true, next_in: due.next_in });
    }
    inner.faults.reach(Site::BeforeClaim);
    let granted = grants(&shares(inner, &due.tenants), room, *after);
    *after = granted.last;
    let request = ClaimRequest {
        host: inner.config.host,
        lease: inner.config.lease,
        tenants: granted.places,
        without: inner.preparations.unrunnable(),
    };
    let claimed = inner.store.claim(&request).await?;
    let took_all = claimed.is_empty();
    // Held before anything else is waited for, so that the next renewal covers them and the next look counts them.
    let held: Vec<_> = claimed.iter().map(|step| inner.held.add(step.fence)).collect();
    // With what was claimed counted: a tenant that fills the host alone has nobody to make room for.
    let is_full = claimed.len() >= room as usize;
    inner.held.wait_with(fewest(&shares(inner, &due.tenants)).filter(|_| is_full));
    let mut runs = runs(inner, &claimed).await;
    for (step, lost) in claimed.into_iter().zip(held) {
        let key = (step.run, step.place.iteration.clone());
        let (inner, run) = (Arc::clone(inner), runs.remove(&key));
        tokio::spawn(async move { execute::run(&inner, step, run, lost).await });
    }
    // What is due and not claimable here (a block that only other hosts can run) must not spin this loop.
    Ok(Looked { took_all, next_in: if took_all { None } else { due.next_in } })
}

/// What is to be known of the runs of these steps, read at once. What is not here, the execution reads by itself.
async fn runs(inner: &Inner, claimed: &[Claimed]) -> HashMap<(RunId, Vec<u32>), RunContext> {
    if claimed.is_empty() {
        return HashMap::new();
    }
    let wanted: Vec<_> =
        claimed.iter().map(|step| (step.fence.tenant, step.run, step.place.iteration.clone())).collect();
    inner.store.run_contexts(&wanted).await.unwrap_or_else(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the runs of claimed steps could not be read at once"
        );
        HashMap::new()
    })
}

/// Waits until there is room for at least one more step. Meanwhile it looks whose work waits, so that tenants who have their
/// share make room between two steps of a run.
async fn wait_for_room(inner: &Inner) -> u32 {
    let mut looks = interval_at(Instant::now() + LOOK_WHILE_FULL_EVERY, LOOK_WHILE_FULL_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let change = inner.held.change();
        let held = u32::try_from(inner.held.len()).unwrap_or(u32::MAX);
        let room = inner.config.in_flight_max.saturating_sub(held);
        if room > 0 {
            return room;
        }
        tokio::select! {
            () = change => {}
            _ = looks.tick() => match inner.store.due().await {
                Ok(due) => inner.held.wait_with(fewest(&shares(inner, &due.tenants))),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "due steps could not be looked for");
                }
            },
        }
    }
}

fn shares(inner: &Inner, tenants: &[TenantId]) -> Vec<Due> {
    let held = inner.held.by_tenant();
    let share =
        |tenant: &TenantId| Due { tenant: *tenant, in_flight: held.get(tenant).copied().unwrap_or(0) };
    tenants.iter().map(share).collect()
}

fn fewest(shares: &[Due]) -> Option<u32> {
    shares.iter().map(|share| share.in_flight).min()
}
