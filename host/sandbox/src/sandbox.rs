//! The sandbox itself: what the engine of the house runs steps with, and the web checks uploads with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::id::{Digest, LeaseId, Place};
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, StepLimits, bounded_text};
use counterfoil_domain::ports::{
    EffectPort, StepEnd, StepJob, StepReport, StepRunner, Unprepared, VerifyEnd, VerifyJob, VerifyReport,
};
use counterfoil_domain::receipt::verification::Verdict;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use wasmtime::Engine;

use crate::artifact::{CacheError, EngineId};
use crate::bindings::exports::counterfoil::block::{reconcile, step};
use crate::blocks::{Blocks, BlocksError, NotReady, ReadyBlock};
use crate::compile::{Budget, ChildCompiler, Program};
use crate::engine::{Allocation, engine, pooled_slots_max};
use crate::epoch::Ticker;
use crate::execution::{Call, Finished, Run, Verify, execute};
use crate::host::{EffectDoor, HostState};
use crate::trap;

/// Uploads that are described at once. They have slots of their own, so that a full pool does not delay an author.
pub(crate) const INSPECTIONS_MAX: u32 = 2;

/// What a sandbox is made from.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Directory of compiled components; made if it is missing. Hosts may share it.
    pub cache_dir: PathBuf,
    /// Bytes of compiled components kept there; beyond that, those go that were used longest ago.
    pub cache_bytes_max: u64,
    /// Where instances get their memories and stacks from.
    pub allocation: Allocation,
    /// Steps that run or wait for an answer at once; further ones wait for a slot within their wall limit.
    pub slots: u32,
    /// The most that any step may use. A job's own limits can only narrow them.
    pub limits: StepLimits,
    /// What compiles: a program that is started for each component.
    pub compiler: Program,
    /// What compiling one component may take.
    pub compile_budget: Budget,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// More slots than the process can have memory mappings for.
    #[error(
        "{slots} slots need more memory mappings than this machine allows a process; at most {slots_max} fit. \
         Ask for fewer slots, or raise `vm.max_map_count`"
    )]
    TooManySlots {
        /// What was asked for.
        slots: u32,
        /// What fits.
        slots_max: u32,
    },
    /// No slot at all.
    #[error("a sandbox needs at least one slot")]
    NoSlots,
    /// The machine does not give the runtime what it needs.
    #[error("the WebAssembly engine cannot be built")]
    Engine(#[source] wasmtime::Error),
    /// No thread for the clock that counts guest CPU.
    #[error("the epoch thread cannot be started")]
    Ticker(#[source] std::io::Error),
    /// The directory of compiled components cannot be used.
    #[error(transparent)]
    Cache(CacheError),
}

/// Compiles, checks and runs components. One per process.
pub struct Sandbox {
    pub(crate) engine: Engine,
    pub(crate) ticker: Ticker,
    pub(crate) blocks: Blocks,
    pub(crate) limits: StepLimits,
    pub(crate) inspections: Semaphore,
    slots: Semaphore,
    effects: Arc<dyn EffectPort>,
}

impl Sandbox {
    /// Reserves what the slots need and opens the cache.
    ///
    /// # Errors
    /// [`SandboxError`] if this machine cannot hold such a sandbox.
    pub fn new(config: SandboxConfig, effects: Arc<dyn EffectPort>) -> Result<Self, SandboxError> {
        let SandboxConfig { cache_dir, cache_bytes_max, allocation, slots, limits, compiler, compile_budget } =
            config;
        if slots == 0 {
            return Err(SandboxError::NoSlots);
        }
        let instances = slots.saturating_add(INSPECTIONS_MAX);
        match pooled_slots_max() {
            Some(slots_max) if allocation == Allocation::Pooled && instances > slots_max => {
                return Err(SandboxError::TooManySlots {
                    slots,
                    slots_max: slots_max.saturating_sub(INSPECTIONS_MAX),
                });
            }
            _ => {}
        }
        let engine = engine(allocation, instances, &limits).map_err(SandboxError::Engine)?;
        let compiler = Arc::new(ChildCompiler::new(compiler, compile_budget, EngineId::of(&engine)));
        let blocks = Blocks::new(&engine, compiler, (&cache_dir, cache_bytes_max), limits).map_err(
            |error| match error {
                BlocksError::Cache(error) => SandboxError::Cache(error),
                BlocksError::Linker(error) => SandboxError::Engine(error),
            },
        )?;
        Ok(Self {
            ticker: Ticker::start(&engine).map_err(SandboxError::Ticker)?,
            blocks,
            limits,
            inspections: Semaphore::new(INSPECTIONS_MAX as usize),
            slots: Semaphore::new(slots as usize),
            effects,
            engine,
        })
    }

    /// The block and a slot to run it in, or why there is none.
    async fn place(
        &self,
        component: Digest,
        limits: &StepLimits,
        deadline: Instant,
    ) -> Result<(Arc<ReadyBlock>, SemaphorePermit<'_>), String> {
        let ready = timeout_at(deadline, async {
            let block = self.blocks.find(component).await.map_err(|error| error.to_string())?;
            let slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
            Ok((block, slot))
        });
        ready.await.unwrap_or_else(|_| Err(format!("no slot came free within {} ms", limits.wall_ms_max)))
    }

    async fn execute<C: Call>(&self, call: C, guest: Guest) -> Result<Finished<C::Answer>, String> {
        let Guest { execution, component, place, started_at_ms, seed, limits } = guest;
        let deadline = Instant::now() + Duration::from_millis(limits.wall_ms_max);
        let (block, _slot) = self.place(component, &limits, deadline).await?;
        let door = EffectDoor { port: Arc::clone(&self.effects), execution };
        let state = HostState::new(Some(door), place, started_at_ms, seed, &limits);
        Ok(execute(&self.engine, &self.ticker, &block, call, state, &limits, deadline).await)
    }
}

/// What every execution of a block is given, whatever is asked of it.
struct Guest {
    execution: LeaseId,
    component: Digest,
    place: Place,
    started_at_ms: u64,
    seed: [u8; 32],
    limits: StepLimits,
}

#[async_trait]
impl StepRunner for Sandbox {
    async fn is_ready(&self, component: Digest) -> bool {
        self.blocks.find(component).await.is_ok()
    }

    async fn prepare(&self, component: Digest, bytes: Vec<u8>) -> Result<(), Unprepared> {
        match self.blocks.prepare(component, bytes.into()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(match &*error {
                NotReady::Refused(refused) => {
                    Unprepared::Refused { code: refused.code, message: refused.message.clone() }
                }
                // It was within the budget when it was accepted: the machine is at fault, and not the block.
                error => Unprepared::Unavailable { message: error.to_string() },
            }),
        }
    }

    async fn run(&self, job: StepJob) -> StepReport {
        let StepJob { execution, component, input, place, started_at_ms, seed, limits } = job;
        let limits = narrowest(limits, self.limits);
        let guest = Guest { execution, component, place, started_at_ms, seed, limits };
        match self.execute(Run(input), guest).await {
            Ok(finished) => report(finished, &limits),
            Err(message) => unavailable(message),
        }
    }

    async fn verify(&self, job: VerifyJob) -> VerifyReport {
        let VerifyJob { execution, component, receipt, place, started_at_ms, seed, limits } = job;
        let limits = narrowest(limits, self.limits);
        let guest = Guest { execution, component, place, started_at_ms, seed, limits };
        match self.execute(Verify(receipt.into()), guest).await {
            Ok(finished) => verdict(finished, &limits),
            Err(message) => VerifyReport { end: VerifyEnd::Unavailable { message }, logs: Vec::new() },
        }
    }
}

/// A job's limits, none wider than the operator's.
fn narrowest(job: StepLimits, operator: StepLimits) -> StepLimits {
    StepLimits {
        memory_bytes_max: job.memory_bytes_max.min(operator.memory_bytes_max),
        table_elements_max: job.table_elements_max.min(operator.table_elements_max),
        cpu_ms_max: job.cpu_ms_max.min(operator.cpu_ms_max),
        wall_ms_max: job.wall_ms_max.min(operator.wall_ms_max),
        output_bytes_max: job.output_bytes_max.min(operator.output_bytes_max),
        log_bytes_max: job.log_bytes_max.min(operator.log_bytes_max),
        log_lines_max: job.log_lines_max.min(operator.log_lines_max),
    }
}

fn report(finished: Finished<Result<String, step::Failure>>, limits: &StepLimits) -> StepReport {
    let Finished { result, state, cpu_ms } = finished;
    let end = match result {
        Ok(Ok(output)) if output.len() as u64 > limits.output_bytes_max => {
            trap::output_too_large(limits).into()
        }
        Ok(Ok(output)) => StepEnd::Output(output),
        Ok(Err(failure)) => failed(failure),
        Err(ended) => trap::judge(&ended, &state.limiter, limits).into(),
    };
    let memory_bytes_peak = state.limiter.bytes_peak();
    let (logs, logs_truncated) = state.log.into_lines();
    StepReport { end, logs, logs_truncated, cpu_ms, memory_bytes_peak }
}

fn verdict(finished: Finished<Option<reconcile::Verdict>>, limits: &StepLimits) -> VerifyReport {
    let Finished { result, state, .. } = finished;
    let end = match result {
        Ok(Some(verdict)) => VerifyEnd::Said(verdict.into()),
        Ok(None) => VerifyEnd::Said(Verdict::Inconclusive("the block exports no `verify`".into())),
        Err(ended) => trap::judge(&ended, &state.limiter, limits).into(),
    };
    let (logs, _) = state.log.into_lines();
    VerifyReport { end, logs }
}

fn failed(failure: step::Failure) -> StepEnd {
    let (step::Reason { code, message }, retry_after_ms) = match failure {
        step::Failure::Transient((reason, retry_after_ms)) => (reason, Some(retry_after_ms.unwrap_or(0))),
        step::Failure::Permanent(reason) => (reason, None),
    };
    StepEnd::Failed {
        retry_after_ms,
        code: bounded_text(&code, NAME_BYTES_MAX),
        message: bounded_text(&message, ERROR_TEXT_BYTES_MAX),
    }
}

fn unavailable(message: String) -> StepReport {
    StepReport {
        end: StepEnd::Unavailable { message },
        logs: Vec::new(),
        logs_truncated: false,
        cpu_ms: 0,
        memory_bytes_peak: 0,
    }
}
