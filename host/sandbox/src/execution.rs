//! One execution of a guest function: a fresh store, a fresh instance, one call, and the store is gone.

use std::sync::Arc;

use counterfoil_domain::limits::StepLimits;
use tokio::time::{Instant, timeout_at};
use wasmtime::component::Instance;
use wasmtime::{Engine, Store, UpdateDeadline};

use crate::bindings::exports::counterfoil::block::{reconcile, step};
use crate::epoch::{Meter, Metered, Ticker};
use crate::host::{Abort, HostState};
use crate::loaded::{Callee, ReadyBlock};
use crate::trap::{Ended, Phase};

/// What one call may copy out of the guest: an effect's body of a megabyte and all around it, several times.
const HOST_CALL_BYTES_MAX: usize = 8 << 20;
/// Resources that a guest may hold at once.
pub(crate) const HANDLES_MAX: usize = 1_000;

/// A call of one function that a block exports.
pub(crate) trait Call: Send {
    type Answer: Send;

    fn make(
        self,
        block: &ReadyBlock,
        instance: &Instance,
        store: &mut Store<HostState>,
    ) -> impl Future<Output = Result<Self::Answer, Ended>> + Send;
}

/// Asks a block what it is.
pub(crate) struct Describe;

impl Call for Describe {
    /// Nothing of a program that cannot be asked.
    type Answer = String;

    async fn make(
        self,
        block: &ReadyBlock,
        instance: &Instance,
        store: &mut Store<HostState>,
    ) -> Result<Self::Answer, Ended> {
        let callee = block.callee(store, instance).map_err(at(Phase::Linking))?;
        // Not called here, and wrong all the same.
        block.reconcile(store, instance).map_err(at(Phase::Linking))?;
        match callee {
            Callee::Step(step) => step.call_describe(store).await.map_err(at(Phase::Calling)),
            Callee::Command(_) => Ok(String::new()),
        }
    }
}

/// Runs a block on this input.
pub(crate) struct Run(pub(crate) String);

impl Call for Run {
    type Answer = Result<String, step::Failure>;

    async fn make(
        self,
        block: &ReadyBlock,
        instance: &Instance,
        store: &mut Store<HostState>,
    ) -> Result<Self::Answer, Ended> {
        match block.callee(store, instance).map_err(at(Phase::Linking))? {
            Callee::Step(step) => step.call_run(store, &self.0).await.map_err(at(Phase::Calling)),
            Callee::Command(program) => {
                store.data_mut().begin_command(self.0);
                let ended = program.call_run(&mut *store).await;
                command_output(ended, store.data_mut()).map(Ok).map_err(at(Phase::Calling))
            }
        }
    }
}

/// A program may return, or exit with the status that says that all is well.
fn command_output(
    ended: wasmtime::Result<Result<(), ()>>,
    state: &mut HostState,
) -> wasmtime::Result<String> {
    match ended {
        Ok(Ok(())) => Ok(state.end_command()?),
        Ok(Err(())) => Err(Abort::Exit(1).into()),
        Err(error) if error.downcast_ref() == Some(&Abort::Exit(0)) => Ok(state.end_command()?),
        Err(error) => Err(error),
    }
}

/// Asks a block what became of this effect. `None` if it cannot be asked.
pub(crate) struct Verify(pub(crate) reconcile::Receipt);

impl Call for Verify {
    type Answer = Option<reconcile::Verdict>;

    async fn make(
        self,
        block: &ReadyBlock,
        instance: &Instance,
        store: &mut Store<HostState>,
    ) -> Result<Self::Answer, Ended> {
        match block.reconcile(store, instance).map_err(at(Phase::Linking))? {
            Some(reconcile) => {
                reconcile.call_verify(store, &self.0).await.map(Some).map_err(at(Phase::Calling))
            }
            None => Ok(None),
        }
    }
}

/// What is left of an execution.
pub(crate) struct Finished<A> {
    pub(crate) result: Result<A, Ended>,
    pub(crate) state: HostState,
    pub(crate) cpu_ms: u64,
}

/// Runs one call to its end, a limit, or `deadline`, whichever comes first.
pub(crate) async fn execute<C: Call>(
    engine: &Engine,
    ticker: &Ticker,
    block: &ReadyBlock,
    call: C,
    state: HostState,
    limits: &StepLimits,
    deadline: Instant,
) -> Finished<C::Answer> {
    let meter = ticker.meter(limits.cpu_ms_max);
    let mut store = fresh_store(engine, state, Arc::clone(&meter));
    let future = Box::pin(drive(block, call, &mut store));
    // Dropping the future unwinds the guest, wherever it stands.
    let result = timeout_at(deadline, Metered { meter: Arc::clone(&meter), future }).await;
    Finished {
        result: result.unwrap_or(Err(Ended::Wall)),
        state: store.into_data(),
        cpu_ms: meter.spent_ms(),
    }
}

fn fresh_store(engine: &Engine, state: HostState, meter: Arc<Meter>) -> Store<HostState> {
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(HOST_CALL_BYTES_MAX);
    store.set_max_component_handles(HANDLES_MAX);
    store.epoch_deadline_callback(move |_| {
        if meter.is_exhausted() {
            return Ok(UpdateDeadline::Interrupt);
        }
        // Lets timers fire and other steps have their turn.
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
    store.set_epoch_deadline(1);
    store
}

async fn drive<C: Call>(
    block: &ReadyBlock,
    call: C,
    store: &mut Store<HostState>,
) -> Result<C::Answer, Ended> {
    let instance = block.instantiate(store).await.map_err(at(Phase::Instantiating))?;
    call.make(block, &instance, store).await
}

fn at(phase: Phase) -> impl Fn(wasmtime::Error) -> Ended {
    move |error| Ended::Error { phase, error }
}
