//! The loops: drain, admit, claim, prepare, execute, settle, wake, sweep, verify, forget.
//!
//! They share nothing in memory that the database does not also know: any host may die at any line.

mod admit;
mod child;
mod claim;
mod container;
mod context;
mod drain;
mod emit_node;
mod execute;
mod held;
mod homes;
mod http_node;
mod keep;
mod known;
mod listen;
mod prepare;
mod retention;
mod settle;
mod verify;
mod worker_node;

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::id::HostId;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{Faults, StepRunner};
use counterfoil_effects::Guard;
use counterfoil_store::Store;
use counterfoil_store::retention::KeepFor;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::context::Plans;
use crate::held::Held;
use crate::homes::Homes;
use crate::prepare::Preparations;

/// How a host works.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// This process; a new id at every start, so that it never meets its dead predecessor's leases as its own.
    pub host: HostId,
    /// How long a lease lasts without renewal.
    pub lease: Duration,
    /// How often leases are renewed: often enough that two renewals may be lost.
    pub renew_every: Duration,
    /// Most steps in flight at once.
    pub in_flight_max: u32,
    /// Longest time between two looks for due work when nothing announces any.
    pub poll_every: Duration,
    /// How long everything that is under way may take to end when the host stops.
    pub drain_for: Duration,
    /// Bounds that the operator grants to a block.
    pub limits: StepLimits,
    /// How long what is over is kept.
    pub keep: KeepFor,
    /// A runtime that has little to do: for steps of tenants that have little in flight, which there wait for no others.
    pub quick: Option<Handle>,
}

/// One host's loops.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    guard: Arc<Guard>,
    runner: Arc<dyn StepRunner>,
    faults: Arc<dyn Faults>,
    config: EngineConfig,
    plans: Plans,
    held: Held,
    homes: Homes,
    preparations: Preparations,
    /// One at a time, so that inputs which are costly to check take no more than one of a host's cores.
    costly_checks: Semaphore,
    /// Steps end, and none begin: not even the next one of a chain.
    stopping: CancellationToken,
}

impl Engine {
    /// An engine over these ports.
    pub fn new(
        store: Store,
        guard: Arc<Guard>,
        runner: Arc<dyn StepRunner>,
        faults: Arc<dyn Faults>,
        config: EngineConfig,
    ) -> Self {
        let plans = Plans::new(store.clone());
        let (held, preparations) = (Held::default(), Preparations::default());
        let homes = Homes::new(config.quick.clone());
        let (costly_checks, stopping) = (Semaphore::new(1), CancellationToken::new());
        Self {
            inner: Arc::new(Inner {
                store,
                guard,
                runner,
                faults,
                config,
                plans,
                held,
                homes,
                preparations,
                costly_checks,
                stopping,
            }),
        }
    }

    /// Runs until `stop`, then waits for what is under way, at most as long as configured. Whether all of it has ended: if not,
    /// others take it over when its leases run out.
    pub async fn run(&self, stop: CancellationToken) -> bool {
        let inner = &self.inner;
        let _stopping = tokio::spawn({
            let (stop, stopping) = (stop.clone(), inner.stopping.clone());
            async move {
                stop.cancelled().await;
                stopping.cancel();
            }
        });
        inner.store.keep_first_steps(keep::keeper(inner));
        let renewing = CancellationToken::new();
        // What was claimed and not begun when this future is dropped must not be kept from others.
        let _renewing = renewing.clone().drop_guard();
        let renewal = tokio::spawn(held::renew(Arc::clone(inner), renewing.clone()));
        let working = async {
            let ((), (), (), (), (), asking) = tokio::join!(
                claim::run(Arc::clone(inner), stop.clone()),
                drain::run(Arc::clone(inner), stop.clone()),
                prepare::run(Arc::clone(inner), stop.clone()),
                child::cancel(Arc::clone(inner), stop.clone()),
                retention::run(Arc::clone(inner), stop.clone()),
                verify::run(Arc::clone(inner), stop.clone())
            );
            tokio::join!(inner.held.empty(), verify::end(asking));
        };
        // A loop may be in the middle of a statement that a database never answers.
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(inner.config.drain_for).await;
        };
        let has_ended = tokio::select! {
            () = working => true,
            () = too_late => false,
        };
        if !has_ended {
            tracing::warn!(
                steps = inner.held.fences().len(),
                "work was still in flight when the host stopped; others take it over when its leases run out"
            );
        }
        renewing.cancel();
        if let Err(error) = renewal.await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the renewal of leases ended by itself"
            );
        }
        has_ended
    }
}
