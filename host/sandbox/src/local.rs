//! Runs blocks in this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::id::{Digest, LeaseId, LineageId, Place};
use counterfoil_domain::limits::{PAYLOAD_BYTES_MAX, StepLimits};
use counterfoil_domain::ports::{
    EffectPort, Refused, StepEnd, StepJob, StepReport, VerifyEnd, VerifyJob, VerifyReport,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;
use wasmtime::Engine;

use crate::blocks::NotReady;
use crate::epoch::Ticker;
use crate::execution::{Call, Describe, Finished, Run, Verify, execute};
use crate::executor::Executor;
use crate::host::{EffectDoor, HostState};
use crate::loaded::{Loaded, ReadyBlock};
use crate::machine_code::MachineCode;
use crate::report::{described, narrowest, report, unready, verdict};

/// Uploads that are described at once. They have slots of their own, so that a full pool does not delay an author.
pub(crate) const INSPECTIONS_MAX: u32 = 2;
/// A description is a constant in most blocks; a scripting runtime must start first.
const DESCRIBE_CPU_MS_MAX: u64 = 500;
/// Nothing in `describe` waits, so this only bounds a machine that is far behind.
pub(crate) const DESCRIBE_WALL_MS_MAX: u64 = 10_000;

/// Runs blocks in this process.
pub(crate) struct Local {
    engine: Engine,
    ticker: Ticker,
    loaded: Loaded,
    limits: StepLimits,
    inspections: Semaphore,
    slots: Semaphore,
    effects: Arc<dyn EffectPort>,
}

/// Why blocks cannot be run in this process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error("the WebAssembly engine cannot be built")]
    Engine(#[source] wasmtime::Error),
    #[error("the epoch thread cannot be started")]
    Ticker(#[source] std::io::Error),
}

/// What every execution of a block is given, whatever is asked of it.
struct Guest {
    execution: LeaseId,
    place: Place,
    started_at_ms: u64,
    seed: [u8; 32],
    limits: StepLimits,
}

impl Local {
    /// On an engine with room for `slots` steps and [`INSPECTIONS_MAX`] more. No step gets more than `limits`.
    pub(crate) fn new(
        engine: Engine,
        slots: u32,
        limits: StepLimits,
        effects: Arc<dyn EffectPort>,
    ) -> Result<Self, LocalError> {
        Ok(Self {
            loaded: Loaded::new(&engine).map_err(LocalError::Engine)?,
            ticker: Ticker::start(&engine).map_err(LocalError::Ticker)?,
            limits,
            inspections: Semaphore::new(INSPECTIONS_MAX as usize),
            slots: Semaphore::new(slots as usize),
            effects,
            engine,
        })
    }

    /// A block that needs no code to be run.
    pub(crate) async fn find(&self, component: Digest) -> Option<Arc<ReadyBlock>> {
        self.loaded.find(component).await
    }

    /// Sees whether the code can be run, by running nothing of it.
    pub(crate) async fn load(&self, component: Digest, code: &Arc<MachineCode>) -> Result<(), NotReady> {
        self.block(component, code).await.map(drop).map_err(|error| (*error).clone())
    }

    pub(crate) async fn describe(&self, block: &ReadyBlock) -> Result<String, Refused> {
        let slot = self.inspections.acquire().await;
        let _slot = slot.map_err(|closed| unready(&closed.to_string()))?;
        let limits = StepLimits {
            cpu_ms_max: self.limits.cpu_ms_max.min(DESCRIBE_CPU_MS_MAX),
            wall_ms_max: DESCRIBE_WALL_MS_MAX,
            output_bytes_max: PAYLOAD_BYTES_MAX,
            log_lines_max: 0,
            ..self.limits
        };
        let deadline = Instant::now() + Duration::from_millis(limits.wall_ms_max);
        // The same for every upload, so that a description says the same everywhere.
        let nowhere = Place { lineage: LineageId(Uuid::nil()), node: String::new(), iteration: Vec::new() };
        let state = HostState::new(None, nowhere, 0, [0; 32], &limits);
        let finished = execute(&self.engine, &self.ticker, block, Describe, state, &limits, deadline).await;
        described(finished, &limits)
    }

    pub(crate) async fn run(&self, block: &ReadyBlock, job: StepJob) -> StepReport {
        let StepJob { execution, input, place, started_at_ms, seed, limits, .. } = job;
        let limits = narrowest(limits, self.limits);
        let guest = Guest { execution, place, started_at_ms, seed, limits };
        match self.execute(Run(input), block, guest).await {
            Ok(finished) => report(finished, &limits),
            Err(message) => StepReport::nothing(StepEnd::Unavailable { message }),
        }
    }

    pub(crate) async fn verify(&self, block: &ReadyBlock, job: VerifyJob) -> VerifyReport {
        let VerifyJob { execution, receipt, place, started_at_ms, seed, limits, .. } = job;
        let limits = narrowest(limits, self.limits);
        let guest = Guest { execution, place, started_at_ms, seed, limits };
        match self.execute(Verify(receipt.into()), block, guest).await {
            Ok(finished) => verdict(finished, &limits),
            Err(message) => VerifyReport::nothing(VerifyEnd::Unavailable { message }),
        }
    }

    async fn block(
        &self,
        component: Digest,
        code: &Arc<MachineCode>,
    ) -> Result<Arc<ReadyBlock>, Arc<NotReady>> {
        match self.loaded.find(component).await {
            Some(block) => Ok(block),
            None => self.loaded.load(component, code).await,
        }
    }

    async fn execute<C: Call>(
        &self,
        call: C,
        block: &ReadyBlock,
        guest: Guest,
    ) -> Result<Finished<C::Answer>, String> {
        let Guest { execution, place, started_at_ms, seed, limits } = guest;
        let deadline = Instant::now() + Duration::from_millis(limits.wall_ms_max);
        let _slot = match timeout_at(deadline, self.slots.acquire()).await {
            Ok(slot) => slot.map_err(|closed| closed.to_string())?,
            Err(_) => return Err(format!("no slot came free within {} ms", limits.wall_ms_max)),
        };
        let door = EffectDoor { port: Arc::clone(&self.effects), execution };
        let state = HostState::new(Some(door), place, started_at_ms, seed, &limits);
        Ok(execute(&self.engine, &self.ticker, block, call, state, &limits, deadline).await)
    }
}

#[async_trait]
impl Executor for Local {
    async fn load(&self, component: Digest, code: &Arc<MachineCode>) -> Result<(), NotReady> {
        Self::load(self, component, code).await
    }

    async fn describe(&self, component: Digest, code: &Arc<MachineCode>) -> Result<String, Refused> {
        match self.block(component, code).await {
            Ok(block) => Self::describe(self, &block).await,
            Err(error) => Err(error.refusal()),
        }
    }

    async fn run(&self, code: &Arc<MachineCode>, job: StepJob) -> StepReport {
        match self.block(job.component, code).await {
            Ok(block) => Self::run(self, &block, job).await,
            Err(error) => StepReport::nothing(StepEnd::Unavailable { message: error.to_string() }),
        }
    }

    async fn verify(&self, code: &Arc<MachineCode>, job: VerifyJob) -> VerifyReport {
        match self.block(job.component, code).await {
            Ok(block) => Self::verify(self, &block, job).await,
            Err(error) => VerifyReport::nothing(VerifyEnd::Unavailable { message: error.to_string() }),
        }
    }
}
