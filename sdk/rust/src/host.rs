//! The one seam between this crate and what runs the block: the component's imports in Wasm, and on
//! any other machine whatever the thread has been given to stand for a host.

#[cfg(target_family = "wasm")]
pub(crate) mod guest;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod native;

#[cfg(target_family = "wasm")]
pub(crate) use guest::{emit, log, mail, perform, place, random, started_at_ms, storage, worker};
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{emit, log, mail, perform, place, random, started_at_ms, storage, worker};
