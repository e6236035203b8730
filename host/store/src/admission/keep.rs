//! The first step of a run, leased with its admission to the host that admits it: where there is room for it, nothing has
//! to be claimed and nothing read again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::{Digest, HostId};

use super::{Admission, is_one_statement};
use crate::Store;
use crate::run::RunContext;
use crate::settle::first_ready;
use crate::step::Claimed;

/// A place for the first step of a run.
pub struct Keep {
    /// Who has it.
    pub host: HostId,
    /// How long the step is leased for.
    pub lease: Duration,
    /// Begins the step, once it is leased and durable. Dropped where there is no such step.
    pub take: Box<dyn FnOnce(Claimed, RunContext) + Send>,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Says whether a host takes on a step of this line, with this block, as soon as it is admitted.
pub type Keeper = dyn Fn(Queue, Option<Digest>) -> Option<Keep> + Send + Sync;

/// Who is asked; nobody at first.
#[derive(Default)]
pub(crate) struct Keeping(Mutex<Option<Arc<Keeper>>>);

impl Store {
    /// Has `keeper` asked from now on, before a run is admitted through this store.
    pub fn keep_first_steps(&self, keeper: Arc<Keeper>) {
        *self.inner.keeping.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    }

    /// A place for the first step of a run that is admitted in one statement.
    pub(super) fn place_for(&self, admission: &Admission) -> Option<Keep> {
        if !is_one_statement(admission) {
            return None;
        }
        let (_, first) = first_ready(&admission.open)?;
        let keeper = self.inner.keeping.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        keeper(Queue { tenant: admission.tenant, workflow: admission.workflow }, first.block)
    }
}
