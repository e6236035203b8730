//! Turns recorded events into runs and refusals: takes a batch under a hold, admits every binding, marks it published.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::id::TenantId;
use counterfoil_store::StoreError;
use counterfoil_store::event::{Binding, HeldEvent};
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::context::LoadError;
use crate::{Inner, admit};

/// Events taken at once, and admitted together.
const BATCH: u32 = 256;
/// Time for a batch: when its host dies, others take it after that.
const HOLD: Duration = Duration::from_secs(15);

/// Drains until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let mut wakes = inner.store.wakes();
    // Whose turn it was last.
    let mut after = None;
    while !stop.is_cancelled() {
        match batch(&inner, &mut after).await {
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
async fn batch(inner: &Inner, after: &mut Option<TenantId>) -> Result<usize, StoreError> {
    let events = inner.store.hold_events(BATCH, HOLD, *after).await?;
    let ahead = |tenant: &TenantId| (after.is_none_or(|after| tenant.0 <= after.0), tenant.0);
    *after = events.iter().map(|event| event.tenant).max_by_key(ahead);
    let Some(hold) = events.first().map(|event| event.hold) else { return Ok(0) };
    let bindings = bindings(inner, &events).await?;
    // Side by side, so that what they start is admitted together; those about one record one after the other.
    let admitted = join_all(in_turns(&events).into_iter().map(|turn| {
        let bindings = &bindings;
        async move {
            let mut admitted = vec![];
            for event in turn {
                match admit_all(inner, event, &bindings[&type_of(event)]).await {
                    Ok(()) => admitted.push((event.tenant, event.id)),
                    // It stays held, and is tried again when the hold has run out.
                    Err(error) => {
                        tracing::warn!(event = %event.id, error = &error as &dyn std::error::Error, "an event could not be admitted");
                    }
                }
            }
            admitted
        }
    }));
    let handed = inner.store.hand_to_runs(&events);
    let (published, handed) =
        held_until(inner, &events, hold, async { tokio::join!(admitted, handed) }).await;
    // What could not be handed to those who wait for it stays held, and is tried again when the hold has run out.
    handed?;
    let published = published.concat();
    if !published.is_empty() {
        inner.store.publish_events(hold, &published).await?;
    }
    Ok(published.len())
}

/// Waits for the end of `work`, and keeps the events held meanwhile: what takes long is begun by nobody else.
async fn held_until<T>(inner: &Inner, events: &[HeldEvent], hold: Uuid, work: impl Future<Output = T>) -> T {
    let ids: Vec<_> = events.iter().map(|event| (event.tenant, event.id)).collect();
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(HOLD / 3) => {
                // A hold that is lost all the same is met again: what was admitted stays.
                if let Err(error) = inner.store.extend_hold(hold, &ids, HOLD).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the hold of events that are being admitted could not be extended");
                }
            }
        }
    }
}

type EventType<'a> = (TenantId, &'a str);

fn type_of(event: &HeldEvent) -> EventType<'_> {
    (event.tenant, &event.event_type)
}

/// What each type among the events may start.
async fn bindings<'a>(
    inner: &Inner,
    events: &'a [HeldEvent],
) -> Result<HashMap<EventType<'a>, Vec<Binding>>, StoreError> {
    let mut bindings = HashMap::new();
    for event in events {
        if let Entry::Vacant(vacant) = bindings.entry(type_of(event)) {
            vacant.insert(inner.store.bindings(event.tenant, &event.event_type).await?);
        }
    }
    Ok(bindings)
}

/// The events about each record, in their order; what is about none is by itself.
fn in_turns(events: &[HeldEvent]) -> Vec<Vec<&HeldEvent>> {
    let mut turns: Vec<Vec<&HeldEvent>> = vec![];
    let mut by_record = HashMap::new();
    for event in events {
        let turn = match &event.record {
            Some(record) => *by_record.entry((event.tenant, record)).or_insert(turns.len()),
            None => turns.len(),
        };
        match turns.get_mut(turn) {
            Some(turn) => turn.push(event),
            None => turns.push(vec![event]),
        }
    }
    turns
}

async fn admit_all(inner: &Inner, event: &HeldEvent, bindings: &[Binding]) -> Result<(), LoadError> {
    let mut refused = vec![];
    for of_one_workflow in bindings.chunk_by(|one, next| one.workflow == next.workflow) {
        refused.extend(admit::event(inner, event, of_one_workflow).await?);
    }
    Ok(inner.store.refuse(refused).await?)
}
