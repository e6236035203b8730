//! From a component's bytes to machine code.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use tokio::sync::Semaphore;
use wasmtime::Engine;

/// Why there is no machine code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompileError {
    /// The validator refuses the component.
    #[error("the component is not valid: {0}")]
    Invalid(String),
    /// The compiler itself failed.
    #[error("the compiler failed: {0}")]
    Failed(String),
}

/// Compiles what the scan has let through. Bytes in, bytes out: whoever does it may be another process.
#[async_trait]
pub(crate) trait Compiler: Send + Sync {
    async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError>;
}

/// Components compiled at once: each may take a core for seconds and half a gigabyte.
const COMPILATIONS_MAX: usize = 1;

/// Compiles on a thread of this process. Whoever asked may go away: what has begun is compiled to its end.
pub(crate) struct InProcess {
    engine: Engine,
    permits: Arc<Semaphore>,
}

impl InProcess {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), permits: Arc::new(Semaphore::new(COMPILATIONS_MAX)) }
    }
}

#[async_trait]
impl Compiler for InProcess {
    async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|closed| CompileError::Failed(closed.to_string()))?;
        let engine = self.engine.clone();
        let compiling = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            engine.precompile_component(&component)
        });
        let compiled = compiling.await.map_err(|panic| CompileError::Failed(panic.to_string()))?;
        compiled
            .map_err(|error| CompileError::Invalid(bounded_text(&format!("{error:#}"), ERROR_TEXT_BYTES_MAX)))
    }
}
