//! From a component's bytes to machine code.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
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

/// Compiles on a thread of this process.
pub(crate) struct InProcess {
    pub(crate) engine: Engine,
}

#[async_trait]
impl Compiler for InProcess {
    async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError> {
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || {
            engine.precompile_component(&component).map_err(|error| {
                CompileError::Invalid(bounded_text(&format!("{error:#}"), ERROR_TEXT_BYTES_MAX))
            })
        })
        .await
        .unwrap_or_else(|panic| Err(CompileError::Failed(panic.to_string())))
    }
}
