//! From a component's bytes to machine code, in a process of its own.
//!
//! A compiler takes whatever a stranger sends, and needs seconds and gigabytes for what is small. So it works in a child
//! of this process, which has nothing but two pipes and may not use more than its [`Budget`].

mod child;
mod parent;
mod request;

use std::sync::Arc;

use async_trait::async_trait;
use wasmtime::Engine;

pub(crate) use self::child::main;
pub(crate) use self::parent::ChildCompiler;
pub use self::request::Budget;
pub(crate) use self::request::COMMAND;

use crate::engine::compiling_engine;

/// Why there is no machine code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompileError {
    /// The validator refuses the component.
    #[error("the component is not valid: {0}")]
    Invalid(String),
    /// The compiler did not come to an end within its budget.
    #[error("compiling it takes more than it may: {0}")]
    OverBudget(String),
    /// This host cannot compile anything now.
    #[error("the compiler cannot be used: {0}")]
    Failed(String),
}

/// Compiles what the scan has let through.
#[async_trait]
pub(crate) trait Compiler: Send + Sync {
    /// Whoever goes away before the answer has asked for nothing.
    async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError>;
}

/// How much the compiler does for the speed of what it makes. What it means is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    Optimised,
    Unoptimised,
}

/// Makes machine code on this thread.
///
/// # Errors
/// What the validator has against the component.
pub(crate) fn machine_code(component: &[u8], effort: Effort) -> wasmtime::Result<Vec<u8>> {
    let engine: Engine = compiling_engine(effort)?;
    engine.precompile_component(component)
}
