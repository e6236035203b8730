//! Where executions run: those of tenants that have little in flight beside little else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use counterfoil_store::run::RunContext;
use counterfoil_store::step::Claimed;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{Inner, execute};

/// A tenant that has no more in flight has little.
const LITTLE: u32 = 4;
/// However many tenants have little, so few executions are beside little else.
const QUICK_MAX: u32 = 32;

/// The runtimes of a host's executions.
#[derive(Debug)]
pub(crate) struct Homes {
    usual: Handle,
    quick: Option<Handle>,
    /// Executions on the quick one.
    quick_taken: Arc<AtomicU32>,
}

/// A place among the quick.
struct Quick(Arc<AtomicU32>);

impl Drop for Quick {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Homes {
    /// With the runtime that this is called on as the usual one.
    pub(crate) fn new(quick: Option<Handle>) -> Self {
        Self { usual: Handle::current(), quick, quick_taken: Arc::default() }
    }

    fn quick(&self) -> Option<(&Handle, Quick)> {
        let runtime = self.quick.as_ref()?;
        let place = Quick(Arc::clone(&self.quick_taken));
        let taken = self.quick_taken.fetch_add(1, Ordering::Relaxed);
        (taken < QUICK_MAX).then_some((runtime, place))
    }
}

/// Begins to execute a step that is held.
pub(crate) fn begin(inner: &Arc<Inner>, step: Claimed, run: Option<RunContext>, lost: CancellationToken) {
    let has_little = inner.held.of_tenant(step.fence.tenant) <= LITTLE;
    let quick = if has_little { inner.homes.quick() } else { None };
    let (runtime, place) = quick.map_or((&inner.homes.usual, None), |(quick, place)| (quick, Some(place)));
    let execution = {
        let inner = Arc::clone(inner);
        async move {
            let _place = place;
            execute::run(&inner, step, run, lost).await;
        }
    };
    runtime.spawn(execution);
}
