//! States, transitions and decisions, as values and pure functions.
//!
//! Nothing here reads a clock, a random source, the disk, the environment or the network: they are arguments.

#![warn(missing_docs)]

pub mod block;
pub mod code;
pub mod connection;
pub mod effect;
pub mod expression;
pub mod fair_share;
pub mod id;
pub mod key;
pub mod limits;
pub mod outbound;
pub mod ports;
pub mod receipt;
pub mod rehearsal;
pub mod schema;
pub mod step;
pub mod timeline;
pub mod wording;
pub mod workflow;
