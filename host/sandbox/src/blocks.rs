//! The blocks that this host can run: compiled at most once each, and kept ready while there is room.

use std::sync::Arc;
use std::time::Instant;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::Refused;
use moka::future::Cache;
use serde::{Deserialize, Serialize};

use crate::artifact::{Artifact, ArtifactStore, CacheError, Evicted};
use crate::compile::{CompileError, Compiler};
use crate::executor::Executor;
use crate::machine_code::MachineCode;
use crate::refusal::refused;
use crate::report::unready;
use crate::{imports, scan};

/// Machine code kept ready: some thousand Rust blocks, or a handful of Python ones.
pub(crate) const READY_BYTES_MAX: u64 = 512 << 20;

/// Why a block is not ready.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
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

impl NotReady {
    /// What its author is told.
    pub(crate) fn refusal(&self) -> Refused {
        match self {
            Self::Refused(refused) | Self::TooCostly(refused) => refused.clone(),
            error => unready(&error.to_string()),
        }
    }
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

/// What was compiled here, ready to be run by whoever runs it for this host.
pub(crate) struct Blocks {
    artifacts: Arc<ArtifactStore>,
    compiler: Arc<dyn Compiler>,
    executor: Arc<dyn Executor>,
    limits: StepLimits,
    ready: Cache<Digest, Arc<MachineCode>>,
}

impl Blocks {
    pub(crate) fn new(
        artifacts: ArtifactStore,
        compiler: Arc<dyn Compiler>,
        executor: Arc<dyn Executor>,
        limits: StepLimits,
    ) -> Self {
        Self {
            artifacts: Arc::new(artifacts),
            compiler,
            executor,
            limits,
            ready: Cache::builder()
                .max_capacity(READY_BYTES_MAX)
                .weigher(|_, code: &Arc<MachineCode>| u32::try_from(code.bytes_len()).unwrap_or(u32::MAX))
                .build(),
        }
    }

    /// A block that is ready, or can be made so without compiling.
    pub(crate) async fn find(&self, component: Digest) -> Result<Arc<MachineCode>, Arc<NotReady>> {
        if let Some(code) = self.ready.get(&component).await {
            return Ok(code);
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
    ) -> Result<Arc<MachineCode>, Arc<NotReady>> {
        loop {
            let bytes = Arc::clone(&bytes);
            let prepared = self.ready.try_get_with(component, async {
                match self.read(component).await? {
                    Some(code) => Ok(code),
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
    async fn read(&self, component: Digest) -> Result<Option<Arc<MachineCode>>, NotReady> {
        let artifacts = Arc::clone(&self.artifacts);
        match blocking(move || artifacts.read(component)).await? {
            Ok(None) => Ok(None),
            Ok(Some(artifact)) => self.load(component, &artifact).await.map(Some),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%component, error, "a compiled component in the cache is not used; it is compiled again");
                Ok(None)
            }
        }
    }

    async fn compile(&self, component: Digest, bytes: Arc<[u8]>) -> Result<Arc<MachineCode>, NotReady> {
        let (limits, scanned) = (self.limits, Arc::clone(&bytes));
        blocking(move || {
            if Digest::of(&scanned) != component {
                return Err(NotReady::Unavailable(format!("the bytes are not those of {component}")));
            }
            Ok(imports::check_names(&scan::scan(&scanned, &limits)?)?)
        })
        .await??;
        let started = Instant::now();
        let artifact = Artifact::compiled(self.compiler.compile(bytes).await?);
        let (ms, bytes_len) = (started.elapsed().as_millis(), artifact.bytes().len());
        tracing::info!(%component, ms, bytes_len, "a component was compiled");
        let code = self.load(component, &artifact).await?;
        // Only what can be linked is kept. What cannot be kept runs all the same, and is compiled once more another day.
        if let Err(error) = self.keep(component, artifact).await? {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(%component, error, "a compiled component could not be kept");
        }
        Ok(code)
    }

    async fn keep(&self, component: Digest, artifact: Artifact) -> Result<Result<(), CacheError>, NotReady> {
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

    async fn load(&self, component: Digest, artifact: &Artifact) -> Result<Arc<MachineCode>, NotReady> {
        let code = MachineCode::of(artifact).map_err(|error| {
            NotReady::Unavailable(format!("there is no memory for a compiled component: {error}"))
        })?;
        let code = Arc::new(code);
        self.executor.load(component, &code).await?;
        Ok(code)
    }
}

/// Runs what reads, hashes or maps much, away from the threads that serve.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotReady> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| NotReady::Unavailable(panic.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use counterfoil_domain::effect::{EffectCall, EffectReply};
    use counterfoil_domain::id::LeaseId;
    use counterfoil_domain::ports::EffectPort;

    use super::*;
    use crate::artifact::EngineId;
    use crate::compile::{Effort, machine_code};
    use crate::engine::{Allocation, engine};
    use crate::local::Local;

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

    /// No block here asks for an effect.
    struct Nobody;

    #[async_trait]
    impl EffectPort for Nobody {
        async fn perform(&self, _execution: LeaseId, _call: EffectCall) -> EffectReply {
            EffectReply::Stop
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
        let artifacts = ArtifactStore::open(cache.path(), EngineId::of(&engine), u64::MAX).expect("opens");
        let compiling = Arc::clone(&compiler) as Arc<dyn Compiler>;
        let executor = Arc::new(Local::new(engine, 1, limits, Arc::new(Nobody)).expect("an executor"));
        let blocks = Blocks::new(artifacts, compiling, executor, limits);
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
