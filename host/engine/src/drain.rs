//! Turns recorded events into runs and refusals: takes a batch under a hold, admits every binding, marks it published.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_store::StoreError;
use counterfoil_store::event::HeldEvent;
use tokio_util::sync::CancellationToken;

use crate::context::LoadError;
use crate::{Inner, admit};

/// Events taken at once.
const BATCH: u32 = 64;
/// Time for a batch: when its host dies, others take it after that.
const HOLD: Duration = Duration::from_secs(15);

/// Drains until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let mut wakes = inner.store.wakes();
    while !stop.is_cancelled() {
        match batch(&inner).await {
            Ok(0) => {}
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "recorded events could not be drained"
                );
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = wakes.changed() => {}
            () = tokio::time::sleep(inner.config.poll_every) => {}
        }
    }
}

/// Number of events that were published.
async fn batch(inner: &Inner) -> Result<usize, StoreError> {
    let events = inner.store.hold_events(BATCH, HOLD).await?;
    let mut published = Vec::with_capacity(events.len());
    let Some(hold) = events.first().map(|event| event.hold) else { return Ok(0) };
    for event in &events {
        // An event that cannot be admitted now stays held, and is tried again when the hold has run out.
        match admit_all(inner, event).await {
            Ok(()) => published.push((event.tenant, event.id)),
            Err(error) => {
                tracing::warn!(event = %event.id, error = &error as &dyn std::error::Error, "an event could not be admitted");
            }
        }
    }
    if !published.is_empty() {
        inner.store.publish_events(hold, &published).await?;
    }
    Ok(published.len())
}

async fn admit_all(inner: &Inner, event: &HeldEvent) -> Result<(), LoadError> {
    let bindings = inner.store.bindings(event.tenant, &event.event_type).await?;
    for of_one_workflow in bindings.chunk_by(|one, next| one.workflow == next.workflow) {
        admit::event(inner, event, of_one_workflow).await?;
    }
    Ok(())
}
