//! Compiles, checks and runs one component within bounds.
//!
//! The only way out of a component is the effect port that the sandbox is made with. Everything else that a guest can
//! call stays inside: its place, its clock, its random source and its log, by the block contract or by WASI.

#![warn(missing_docs)]

mod artifact;
mod bindings;
mod blocks;
mod compile;
mod confine;
mod descriptor;
mod engine;
mod epoch;
mod execution;
mod executor;
mod host;
mod imports;
mod inspect;
mod limiter;
mod loaded;
mod local;
mod log;
mod machine_code;
mod offers;
mod program;
mod refusal;
mod report;
#[cfg(target_os = "linux")]
mod runner;
mod sandbox;
mod scan;
mod trap;
mod wasi;
mod wit;

pub use artifact::CacheError;
pub use compile::Budget;
pub use confine::can_forbid_system_calls;
pub use engine::{Allocation, pooled_slots_max};
pub use offers::is_offered;
pub use program::{Program, child};
pub use sandbox::{Guests, Sandbox, SandboxConfig, SandboxError};
