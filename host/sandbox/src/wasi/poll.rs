//! Waiting. What is ready follows from the guest's own clock; a guest that waits for it waits as long in earnest.

use std::time::Duration;

use wasmtime::component::Resource;

use super::bindings::wasi::io::{error, poll};
use super::http::Exchange;
use super::{Wasi, absent};
use crate::host::{Abort, HostState};

/// What can be waited for.
#[derive(Clone)]
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub enum Pollable {
    /// Streams never keep anybody waiting.
    Ready,
    /// The monotonic clock has come so far.
    At(u64),
    /// A request has its answer.
    Answered(Exchange),
}

impl Wasi {
    fn is_ready(&self, pollable: &Pollable) -> bool {
        match pollable {
            Pollable::Ready => true,
            Pollable::At(ns) => *ns <= self.clock.now_ns(),
            Pollable::Answered(exchange) => exchange.is_answered(),
        }
    }

    /// Which of them are ready, once at least one is.
    async fn wait(&mut self, pollables: &[Pollable]) -> Result<Vec<u32>, Abort> {
        let ready = |wasi: &Self| -> Vec<u32> {
            let ready = (0_u32..).zip(pollables).filter(|(_, pollable)| wasi.is_ready(pollable));
            ready.map(|(index, _)| index).collect()
        };
        let already = ready(self);
        if !already.is_empty() {
            return Ok(already);
        }
        let timers = pollables.iter().filter_map(|pollable| match pollable {
            Pollable::At(ns) => Some(*ns),
            Pollable::Ready | Pollable::Answered(_) => None,
        });
        // A call is made while the guest hands it over: what is not answered by now was never finished.
        let first = timers.min().ok_or(Abort::WaitsForNothing)?;
        // The step's own deadline ends what would take longer.
        tokio::time::sleep(Duration::from_nanos(first - self.clock.now_ns())).await;
        self.clock.reach(first);
        Ok(ready(self))
    }
}

impl poll::Host for HostState {
    async fn poll(&mut self, pollables: Vec<Resource<Pollable>>) -> wasmtime::Result<Vec<u32>> {
        if pollables.is_empty() {
            return Err(Abort::WaitsForNothing.into());
        }
        let pollables: Vec<Pollable> = pollables
            .iter()
            .map(|pollable| self.wasi.table.get(pollable).cloned())
            .collect::<Result<_, _>>()?;
        Ok(self.wasi.wait(&pollables).await?)
    }
}

impl poll::HostPollable for HostState {
    fn ready(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<bool> {
        // A guest that asks again and again looks at the clock each time.
        self.wasi.clock.look();
        Ok(self.wasi.is_ready(self.wasi.table.get(&pollable)?))
    }

    async fn block(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<()> {
        let pollable = self.wasi.table.get(&pollable)?.clone();
        self.wasi.wait(&[pollable]).await?;
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<()> {
        self.wasi.table.delete(pollable)?;
        Ok(())
    }
}

impl error::Host for HostState {}

/// Streams end or go on; none ever fails, so that there is no error to ask about.
impl error::HostError for HostState {
    fn to_debug_string(&mut self, _error: Resource<error::Error>) -> wasmtime::Result<String> {
        absent("an error of a stream")
    }

    fn drop(&mut self, _error: Resource<error::Error>) -> wasmtime::Result<()> {
        absent("an error of a stream")
    }
}
