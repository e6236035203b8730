//! The blocks that this process can run: compiled at most once each, and kept ready while there is room.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{RECONCILE_INTERFACE, Refused};
use moka::future::Cache;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Engine, Store};

use crate::artifact::{Artifact, ArtifactStore, CacheError, EngineId, Evicted};
use crate::bindings::exports::counterfoil::block::{reconcile, step};
use crate::compile::{CompileError, Compiler};
use crate::host::HostState;
use crate::refusal::{refused, shown};
use crate::{imports, offers, scan};

/// Machine code kept ready: some thousand Rust blocks, or a handful of Python ones.
const READY_BYTES_MAX: u64 = 512 << 20;

/// A component with everything looked up that does not differ between its executions.
pub(crate) struct ReadyBlock {
    instances: InstancePre<HostState>,
    step: step::GuestIndices,
    /// `None` if the block cannot be asked what became of its effects.
    reconcile: Option<reconcile::GuestIndices>,
    bytes_len: usize,
}

impl ReadyBlock {
    /// Brings a fresh instance into being. Start functions of the guest run here.
    pub(crate) async fn instantiate(
        &self,
        store: &mut Store<HostState>,
    ) -> wasmtime::Result<wasmtime::component::Instance> {
        self.instances.instantiate_async(store).await
    }

    /// # Errors
    /// If `describe` or `run` has other parameters or results than the contract says.
    pub(crate) fn step(
        &self,
        store: &mut Store<HostState>,
        instance: &wasmtime::component::Instance,
    ) -> wasmtime::Result<step::Guest> {
        self.step.load(store, instance)
    }

    /// `None` if the block has no `verify`.
    ///
    /// # Errors
    /// If it has other parameters or results than the contract says.
    pub(crate) fn reconcile(
        &self,
        store: &mut Store<HostState>,
        instance: &wasmtime::component::Instance,
    ) -> wasmtime::Result<Option<reconcile::Guest>> {
        self.reconcile.as_ref().map(|reconcile| reconcile.load(store, instance)).transpose()
    }
}

/// Why a block is not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    /// No host will ever run it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Compiling it takes more than this host, as busy as it is, gives to it.
    #[error(transparent)]
    TooCostly(Refused),
    /// This host cannot now.
    #[error("{0}")]
    Unavailable(String),
    /// It was never compiled here.
    #[error("the component was not compiled on this host")]
    Absent,
}

impl From<CompileError> for NotReady {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Invalid(_) => refused(Code::ComponentInvalid, error.to_string()).into(),
            CompileError::OverBudget(_) => {
                Self::TooCostly(refused(Code::CompileBudgetExceeded, error.to_string()))
            }
            CompileError::Failed(_) => Self::Unavailable(error.to_string()),
        }
    }
}

pub(crate) struct Blocks {
    engine: Engine,
    linker: Linker<HostState>,
    artifacts: Arc<ArtifactStore>,
    compiler: Arc<dyn Compiler>,
    limits: StepLimits,
    ready: Cache<Digest, Arc<ReadyBlock>>,
}

impl Blocks {
    pub(crate) fn new(
        engine: &Engine,
        compiler: Arc<dyn Compiler>,
        cache: (&Path, u64),
        limits: StepLimits,
    ) -> Result<Self, BlocksError> {
        let (cache_dir, cache_bytes_max) = cache;
        Ok(Self {
            linker: offers::linker(engine).map_err(BlocksError::Linker)?,
            artifacts: Arc::new(ArtifactStore::open(cache_dir, EngineId::of(engine), cache_bytes_max)?),
            compiler,
            limits,
            ready: Cache::builder()
                .max_capacity(READY_BYTES_MAX)
                .weigher(|_, block: &Arc<ReadyBlock>| u32::try_from(block.bytes_len).unwrap_or(u32::MAX))
                .build(),
            engine: engine.clone(),
        })
    }

    /// A block that is ready, or can be made so without compiling.
    pub(crate) async fn find(&self, component: Digest) -> Result<Arc<ReadyBlock>, Arc<NotReady>> {
        if let Some(block) = self.ready.get(&component).await {
            return Ok(block);
        }
        self.ready
            .try_get_with(component, async { self.read(component).await?.ok_or(NotReady::Absent) })
            .await
    }

    /// Makes a block ready. Several callers with one component compile it once.
    pub(crate) async fn prepare(
        &self,
        component: Digest,
        bytes: Arc<[u8]>,
    ) -> Result<Arc<ReadyBlock>, Arc<NotReady>> {
        loop {
            let bytes = Arc::clone(&bytes);
            let prepared = self.ready.try_get_with(component, async {
                match self.read(component).await? {
                    Some(block) => Ok(block),
                    None => self.compile(component, bytes).await,
                }
            });
            match prepared.await {
                // Somebody else was only looking; now it is our turn.
                Err(error) if matches!(*error, NotReady::Absent) => {}
                prepared => return prepared,
            }
        }
    }

    /// What was compiled before, or `None` where it must be compiled.
    async fn read(&self, component: Digest) -> Result<Option<Arc<ReadyBlock>>, NotReady> {
        let artifacts = Arc::clone(&self.artifacts);
        match blocking(move || artifacts.read(component)).await? {
            Ok(None) => Ok(None),
            Ok(Some(artifact)) => self.load(Arc::new(artifact)).await.map(Some),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%component, error, "a compiled component in the cache is not used; it is compiled again");
                Ok(None)
            }
        }
    }

    async fn compile(&self, component: Digest, bytes: Arc<[u8]>) -> Result<Arc<ReadyBlock>, NotReady> {
        let (limits, scanned) = (self.limits, Arc::clone(&bytes));
        blocking(move || {
            if Digest::of(&scanned) != component {
                return Err(NotReady::Unavailable(format!("the bytes are not those of {component}")));
            }
            Ok(imports::check_names(&scan::scan(&scanned, &limits)?)?)
        })
        .await??;
        let started = Instant::now();
        let artifact = Arc::new(Artifact::compiled(self.compiler.compile(bytes).await?));
        let (ms, bytes_len) = (started.elapsed().as_millis(), artifact.bytes_len());
        tracing::info!(%component, ms, bytes_len, "a component was compiled");
        let block = self.load(Arc::clone(&artifact)).await?;
        // Only what can be linked is kept. What cannot be kept runs all the same, and is compiled once more another day.
        if let Err(error) = self.keep(component, artifact).await? {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(%component, error, "a compiled component could not be kept");
        }
        Ok(block)
    }

    async fn keep(
        &self,
        component: Digest,
        artifact: Arc<Artifact>,
    ) -> Result<Result<(), CacheError>, NotReady> {
        let in_use: Vec<Digest> =
            self.ready.iter().map(|(ready, _)| *ready).chain(std::iter::once(component)).collect();
        let artifacts = Arc::clone(&self.artifacts);
        blocking(move || {
            artifacts.write(component, &artifact)?;
            let Evicted { artifacts, bytes_len } = artifacts.make_room(&in_use)?;
            if artifacts > 0 {
                tracing::info!(artifacts, bytes_len, "compiled components made room for others");
            }
            Ok(())
        })
        .await
    }

    async fn load(&self, artifact: Arc<Artifact>) -> Result<Arc<ReadyBlock>, NotReady> {
        let (engine, bytes_len) = (self.engine.clone(), artifact.bytes_len());
        // Made for this engine and within the scan's counts, so that what fails here is the machine.
        let component = blocking(move || artifact.load(&engine)).await?.map_err(|error| {
            NotReady::Unavailable(format!(
                "a compiled component cannot be loaded: {}",
                shown(&format!("{error:#}"))
            ))
        })?;
        Ok(Arc::new(self.link(&component, bytes_len)?))
    }

    fn link(&self, component: &Component, bytes_len: usize) -> Result<ReadyBlock, Refused> {
        imports::check_functions(&self.engine, component)?;
        let instances =
            self.linker.instantiate_pre(component).map_err(|error| imports::wrong_types(&error))?;
        let lacks = |interface: &str, error: &wasmtime::Error| {
            let reason = shown(&error.to_string());
            refused(
                Code::ExportMissing,
                format!("the component lacks a function of the {interface} interface: {reason}"),
            )
        };
        let step = step::GuestIndices::new(&instances).map_err(|error| lacks("step", &error))?;
        let reconcile = match component.get_export_index(None, RECONCILE_INTERFACE) {
            Some(_) => {
                let found = reconcile::GuestIndices::new(&instances);
                Some(found.map_err(|error| lacks("reconcile", &error))?)
            }
            None => None,
        };
        Ok(ReadyBlock { instances, step, reconcile, bytes_len })
    }
}

/// Why there is no place for blocks at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlocksError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("the host's own interfaces cannot be linked")]
    Linker(#[source] wasmtime::Error),
}

/// Runs what reads, hashes or maps much, away from the threads that serve.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotReady> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| NotReady::Unavailable(panic.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::compile::{Effort, machine_code};
    use crate::engine::{Allocation, engine};

    /// Counts what it compiles.
    struct Counting(AtomicUsize);

    #[async_trait]
    impl Compiler for Counting {
        async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            // Lets the others come.
            tokio::task::yield_now().await;
            machine_code(&component, Effort::Optimised)
                .map_err(|error| CompileError::Invalid(error.to_string()))
        }
    }

    #[tokio::test]
    async fn many_who_prepare_one_block_compile_it_once() {
        let component: Arc<[u8]> = wat::parse_str(
            "(component
               (core module $m (func (export \"f\")))
               (core instance $m (instantiate $m))
               (func $f (canon lift (core func $m \"f\")))
               (instance $step (export \"describe\" (func $f)) (export \"run\" (func $f)))
               (export \"counterfoil:block/step@0.1.0\" (instance $step)))",
        )
        .expect("well formed")
        .into();
        let digest = Digest::of(&component);
        let cache = tempfile::tempdir().expect("a directory");
        let limits = StepLimits::DEFAULT;
        let engine = engine(Allocation::OnDemand, 1, &limits).expect("an engine");
        let compiler = Arc::new(Counting(AtomicUsize::new(0)));
        let blocks = Blocks::new(
            &engine,
            Arc::clone(&compiler) as Arc<dyn Compiler>,
            (cache.path(), u64::MAX),
            limits,
        )
        .expect("opens");
        let prepare = || blocks.prepare(digest, Arc::clone(&component));
        // A look at a block that is not there must not fail those who are about to bring it.
        let (absent, first, second, third) =
            tokio::join!(blocks.find(digest), prepare(), prepare(), prepare());
        assert!(matches!(absent.err().as_deref(), None | Some(NotReady::Absent)));
        for prepared in [first, second, third, prepare().await, blocks.find(digest).await] {
            assert!(prepared.is_ok());
        }
        assert_eq!(compiler.0.load(Ordering::Relaxed), 1);
    }
}
