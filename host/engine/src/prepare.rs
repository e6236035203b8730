//! Makes blocks runnable here while none of their steps is held: compiling one may take longer than a lease lasts.
//!
//! The first step of a block that is not ready is handed back as soon as that is seen, no further one is claimed, and
//! the block is made ready. One at a time, and the tenants in turn, so that none waits behind all the blocks of another.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_domain::id::{Digest, TenantId};
use counterfoil_domain::ports::Unprepared;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Inner;

/// How long a block that this host could not make ready is left to others.
const LEFT_FOR: Duration = Duration::from_secs(30);
/// Pause before a block whose bytes could not be read is asked for again.
const UNREAD_PAUSE: Duration = Duration::from_secs(2);
/// Refusals that are remembered; one that is forgotten is found again.
const REFUSED_MAX: usize = 1_000;

/// The blocks that cannot be run here now.
#[derive(Default)]
pub(crate) struct Preparations {
    state: Mutex<State>,
    asked: Notify,
    done: Notify,
}

#[derive(Default)]
struct State {
    blocks: HashMap<Digest, Standing>,
    queue: Queue,
}

enum Standing {
    /// In the queue, or being made ready.
    Waiting,
    Left {
        until: Instant,
    },
    /// No host will ever run it.
    Refused(Unprepared),
}

/// What is to be made ready, the tenants in turn.
#[derive(Default)]
struct Queue {
    tenants: VecDeque<(TenantId, VecDeque<Digest>)>,
}

impl Queue {
    fn push(&mut self, tenant: TenantId, component: Digest) {
        match self.tenants.iter_mut().find(|(waiting, _)| *waiting == tenant) {
            Some((_, components)) => components.push_back(component),
            None => self.tenants.push_back((tenant, VecDeque::from([component]))),
        }
    }

    fn pop(&mut self) -> Option<(TenantId, Digest)> {
        let (tenant, mut components) = self.tenants.pop_front()?;
        let component = components.pop_front()?;
        if !components.is_empty() {
            self.tenants.push_back((tenant, components));
        }
        Some((tenant, component))
    }
}

impl Preparations {
    /// Has a block made ready that the runner does not have, and says why it cannot be run now.
    pub(crate) fn ask(&self, tenant: TenantId, component: Digest) -> Unprepared {
        let mut state = self.state();
        match state.blocks.get(&component) {
            Some(Standing::Refused(refused)) => return refused.clone(),
            Some(standing) if standing.keeps_from_claiming() => {}
            _ => {
                state.blocks.insert(component, Standing::Waiting);
                state.queue.push(tenant, component);
                self.asked.notify_one();
            }
        }
        Unprepared::Unavailable { message: "the block is not ready on this host".into() }
    }

    /// Blocks whose steps this host does not claim now.
    pub(crate) fn unrunnable(&self) -> Vec<Digest> {
        let mut state = self.state();
        state
            .blocks
            .retain(|_, standing| standing.keeps_from_claiming() || matches!(standing, Standing::Refused(_)));
        let blocks = state.blocks.iter().filter(|(_, standing)| standing.keeps_from_claiming());
        blocks.map(|(component, _)| *component).collect()
    }

    /// Waits until a block can be run that could not.
    pub(crate) async fn done(&self) {
        self.done.notified().await;
    }

    fn set(&self, component: Digest, standing: Option<Standing>) {
        let mut state = self.state();
        let State { blocks, .. } = &mut *state;
        let refused = blocks.values().filter(|standing| matches!(standing, Standing::Refused(_)));
        if refused.count() >= REFUSED_MAX {
            blocks.retain(|_, standing| !matches!(standing, Standing::Refused(_)));
        }
        match standing {
            Some(standing) => blocks.insert(component, standing),
            None => blocks.remove(&component),
        };
        self.done.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whole after each statement, whatever panicked beside it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    fn keeps_from_claiming(&self) -> bool {
        match self {
            Self::Waiting => true,
            Self::Left { until } => Instant::now() < *until,
            // So that its steps are claimed, and fail.
            Self::Refused(_) => false,
        }
    }
}

/// Makes ready what is asked for, until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let working = async {
        loop {
            let next = inner.preparations.state().queue.pop();
            match next {
                Some((tenant, component)) => {
                    let standing = prepare(&inner, tenant, component).await;
                    inner.preparations.set(component, standing);
                }
                None => inner.preparations.asked.notified().await,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = working => {}
    }
}

/// Makes one block ready, or says what keeps it.
async fn prepare(inner: &Inner, tenant: TenantId, component: Digest) -> Option<Standing> {
    let left_for = |pause| Some(Standing::Left { until: Instant::now() + pause });
    let bytes = match inner.store.component(tenant, component).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            tracing::error!(%component, "a block that steps wait for is not there");
            return left_for(LEFT_FOR);
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%component, error, "a block could not be read");
            return left_for(UNREAD_PAUSE);
        }
    };
    match inner.runner.prepare(component, bytes).await {
        Ok(()) => None,
        Err(refused @ Unprepared::Refused { .. }) => Some(Standing::Refused(refused)),
        Err(Unprepared::Unavailable { message }) => {
            tracing::warn!(%component, message, "a block cannot be made ready here and is left to other hosts");
            left_for(LEFT_FOR)
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn tenants_have_their_blocks_made_ready_in_turn() {
        let mut queue = Queue::default();
        let (many, few) = (TenantId(Uuid::from_u128(1)), TenantId(Uuid::from_u128(2)));
        for (tenant, component) in [(many, 1), (many, 2), (many, 3), (few, 4), (few, 5)] {
            queue.push(tenant, Digest([component; 32]));
        }
        let order: Vec<u8> =
            std::iter::from_fn(|| queue.pop()).map(|(_, component)| component.0[0]).collect();
        assert_eq!(order, [1, 4, 2, 5, 3]);
    }
}
