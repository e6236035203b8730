//! Clocks that show what they are told: the wall clock stands where the step first started, and the monotonic one moves
//! when it is looked at or waited for.

use wasmtime::component::Resource;

use super::Pollable;
use super::bindings::wasi::clocks::{monotonic_clock, wall_clock};
use crate::host::HostState;

/// What one look at the monotonic clock takes: a loop that waits for a second ends after a thousand.
const LOOK_NS: u64 = 1_000_000;
const MS_PER_S: u64 = 1_000;
const NS_PER_MS: u32 = 1_000_000;

/// Nanoseconds since the execution began, as its guest is told.
#[derive(Debug, Default)]
pub(super) struct Clock {
    now_ns: u64,
}

impl Clock {
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What was waited for is over; what is over already moves nothing.
    pub(super) fn reach(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
    }

    pub(super) fn look(&mut self) -> u64 {
        self.now_ns = self.now_ns.saturating_add(LOOK_NS);
        self.now_ns
    }
}

impl monotonic_clock::Host for HostState {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.wasi.clock.look())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(LOOK_NS)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<Pollable>> {
        Ok(self.wasi.table.push(Pollable::At(when))?)
    }

    fn subscribe_duration(&mut self, when: u64) -> wasmtime::Result<Resource<Pollable>> {
        let at = self.wasi.clock.now_ns().saturating_add(when);
        Ok(self.wasi.table.push(Pollable::At(at))?)
    }
}

impl wall_clock::Host for HostState {
    fn now(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        let (seconds, ms) = (self.started_at_ms / MS_PER_S, self.started_at_ms % MS_PER_S);
        // Below a thousand.
        let nanoseconds = u32::try_from(ms).unwrap_or_default() * NS_PER_MS;
        Ok(wall_clock::Datetime { seconds, nanoseconds })
    }

    fn resolution(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        Ok(wall_clock::Datetime { seconds: 0, nanoseconds: NS_PER_MS })
    }
}
