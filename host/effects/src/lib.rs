//! The only door out: guard, then call.

#![warn(missing_docs)]

pub mod client;
mod execution;
mod guard;
mod kind;
pub mod secrets;

pub use self::execution::{ExecutionContext, Finished};
pub use self::guard::{Guard, GuardConfig};
