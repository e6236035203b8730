//! Takes on the first step of a run as it is admitted here, where there is room for it and nobody waits for that room.

use std::sync::{Arc, Weak};

use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::Digest;
use counterfoil_store::admission::{Keep, Keeper};

use crate::{Inner, homes};

/// For runs that are admitted through the store of this engine, as long as it is there and does not stop.
pub(crate) fn keeper(inner: &Arc<Inner>) -> Arc<Keeper> {
    let inner = Arc::downgrade(inner);
    Arc::new(move |queue, block| place(&inner, queue, block))
}

fn place(inner: &Weak<Inner>, queue: Queue, block: Option<Digest>) -> Option<Keep> {
    let inner = inner.upgrade()?;
    let is_unrunnable = block.is_some_and(|block| inner.preparations.unrunnable().contains(&block));
    if inner.stopping.is_cancelled() || is_unrunnable {
        return None;
    }
    let place = Reserved::new(&inner, queue)?;
    Some(Keep {
        host: inner.config.host,
        lease: inner.config.lease,
        take: Box::new(move |step, run| {
            let lost = inner.held.add(step.fence, step.queue());
            // Its lease stands for it from here on.
            drop(place);
            homes::begin(&inner, step, Some(run), lost);
        }),
    })
}

/// A place that is to be had by a step which has no lease yet. Given back when it is dropped.
struct Reserved {
    inner: Arc<Inner>,
    queue: Queue,
}

impl Reserved {
    fn new(inner: &Arc<Inner>, queue: Queue) -> Option<Self> {
        let is_free = inner.held.reserve(queue, inner.config.in_flight_max);
        is_free.then(|| Self { inner: Arc::clone(inner), queue })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.inner.held.give_back(self.queue);
    }
}
