//! The sandbox itself: what the engine of the house runs steps with, and the web checks uploads with.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{
    EffectPort, StepEnd, StepJob, StepReport, StepRunner, Unprepared, VerifyEnd, VerifyJob, VerifyReport,
};
use tokio::runtime::Handle;

use crate::artifact::{ArtifactStore, CacheError, EngineId};
use crate::blocks::{Blocks, NotReady};
use crate::compile::{Budget, ChildCompiler};
use crate::engine::{Allocation, engine, pooled_slots_max};
use crate::executor::Executor;
use crate::local::{INSPECTIONS_MAX, Local, LocalError};
use crate::program::Program;
#[cfg(target_os = "linux")]
use crate::runner::{Begin, Runners};

/// What a sandbox is made from.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Directory of compiled components; made if it is missing. Hosts may share it.
    pub cache_dir: PathBuf,
    /// Bytes of compiled components kept there; beyond that, those go that were used longest ago.
    pub cache_bytes_max: u64,
    /// Where instances get their memories and stacks from.
    pub allocation: Allocation,
    /// Steps that run or wait for an answer at once, in all processes; further ones wait for a slot within their wall
    /// limit.
    pub slots: u32,
    /// The most that any step may use. A job's own limits can only narrow them.
    pub limits: StepLimits,
    /// Where guests run.
    pub guests: Guests,
    /// What is started to compile a component, and to run guests.
    pub program: Program,
    /// What compiling one component may take.
    pub compile_budget: Budget,
    /// The runtime that hears what the processes of guests say; each, if none is given, that of whoever asked it first.
    pub heard_on: Option<Handle>,
}

/// Where guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guests {
    /// In this process: what breaks out of a guest, or takes its process down, has the host.
    Here,
    /// In so many processes that can do nothing else, each with one thread. On Linux only.
    Apart(NonZeroU32),
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
    /// Guests cannot run in processes of their own here.
    #[error("guests run in processes of their own on Linux only; run them in the host's: 0 runners")]
    NoRunners,
    /// The directory of compiled components cannot be used.
    #[error(transparent)]
    Cache(CacheError),
}

/// Compiles, checks and runs components. One per process.
pub struct Sandbox {
    pub(crate) blocks: Blocks,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) limits: StepLimits,
}

impl Sandbox {
    /// Reserves what the slots need, opens the cache, and starts what runs guests.
    ///
    /// # Errors
    /// [`SandboxError`] if this machine cannot hold such a sandbox.
    pub fn new(config: SandboxConfig, effects: Arc<dyn EffectPort>) -> Result<Self, SandboxError> {
        let SandboxConfig { cache_dir, cache_bytes_max, limits, program, compile_budget, .. } = &config;
        // It says by what name all engines of this program go, whatever they get their memory from.
        let engine = engine(Allocation::OnDemand, 1, limits).map_err(SandboxError::Engine)?;
        let engine = EngineId::of(&engine);
        let artifacts =
            ArtifactStore::open(cache_dir, engine, *cache_bytes_max).map_err(SandboxError::Cache)?;
        let compiler = Arc::new(ChildCompiler::new(program.clone(), *compile_budget, engine));
        let limits = *limits;
        let executor = executor(config, effects)?;
        Ok(Self { blocks: Blocks::new(artifacts, compiler, Arc::clone(&executor), limits), executor, limits })
    }
}

fn executor(config: SandboxConfig, effects: Arc<dyn EffectPort>) -> Result<Arc<dyn Executor>, SandboxError> {
    let SandboxConfig { allocation, slots, limits, guests, program, heard_on, .. } = config;
    if slots == 0 {
        return Err(SandboxError::NoSlots);
    }
    let processes = match guests {
        Guests::Here => 1,
        Guests::Apart(processes) => processes.get(),
    };
    let each = slots.div_ceil(processes);
    match pooled_slots_max().map(|slots_max| slots_max.saturating_sub(INSPECTIONS_MAX)) {
        Some(slots_max) if allocation == Allocation::Pooled && each > slots_max => {
            return Err(SandboxError::TooManySlots { slots, slots_max: slots_max.saturating_mul(processes) });
        }
        _ => {}
    }
    Ok(match guests {
        Guests::Here => {
            let engine = engine(allocation, each.saturating_add(INSPECTIONS_MAX), &limits);
            let local = Local::new(engine.map_err(SandboxError::Engine)?, each, limits, effects);
            Arc::new(local.map_err(|error| match error {
                LocalError::Engine(error) => SandboxError::Engine(error),
                LocalError::Ticker(error) => SandboxError::Ticker(error),
            })?)
        }
        #[cfg(target_os = "linux")]
        Guests::Apart(processes) => {
            let begin = Begin { allocation, slots: each, limits };
            Arc::new(Runners::new(program, processes, begin, effects, heard_on))
        }
        #[cfg(not(target_os = "linux"))]
        Guests::Apart(_) => return Err(SandboxError::NoRunners),
    })
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
        match self.blocks.find(job.component).await {
            Ok(code) => self.executor.run(&code, job).await,
            Err(error) => StepReport::nothing(StepEnd::Unavailable { message: error.to_string() }),
        }
    }

    async fn verify(&self, job: VerifyJob) -> VerifyReport {
        match self.blocks.find(job.component).await {
            Ok(code) => self.executor.verify(&code, job).await,
            Err(error) => VerifyReport::nothing(VerifyEnd::Unavailable { message: error.to_string() }),
        }
    }
}
