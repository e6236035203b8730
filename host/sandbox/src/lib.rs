//! Compiles, checks and runs one component within bounds.
//!
//! The only way out of a component is the effect port that the sandbox is made with. Everything else that a guest can
//! call stays inside: its place, its clock, its random source and its log, by the block contract or by WASI.

#![warn(missing_docs)]

mod artifact;
mod bindings;
mod blocks;
pub mod compile;
mod descriptor;
mod engine;
mod epoch;
mod execution;
mod host;
mod imports;
mod inspect;
mod limiter;
mod log;
mod offers;
mod refusal;
mod sandbox;
mod scan;
mod trap;
mod wasi;
mod wit;

pub use artifact::CacheError;
pub use engine::{Allocation, pooled_slots_max};
pub use offers::is_offered;
pub use sandbox::{Sandbox, SandboxConfig, SandboxError};
