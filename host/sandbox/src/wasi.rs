//! WASI 0.2 without a system behind it: whatever a guest sees follows from its job, and nothing leaves the host.
//!
//! An implementation of our own, so that there is no clock, no file and no socket that a wrong switch could let in.

mod bindings;
mod cli;
mod clocks;
mod command;
mod held;
mod http;
mod poll;
mod random;
mod refusing;
mod streams;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use wasmtime::component::ResourceTable;

use crate::host::Abort;

pub(crate) use self::bindings::exports::wasi::cli::run;
pub(crate) use self::bindings::wasi as interfaces;
use self::poll::Pollable;
pub(crate) use self::refusing::{Refusing, Says, link as link_refusing};

/// Streams, pollables and the like that a guest may hold at once, as many as handles.
const RESOURCES_MAX: usize = crate::execution::HANDLES_MAX;

/// Which of the streams that one seed gives. The block contract's own is 0; none may depend on how much of another was
/// drawn.
const SECURE: u64 = 1;
const INSECURE: u64 = 2;
const HASH_SEED: u64 = 3;

/// What one store holds for programs that were written for WASI.
pub(crate) struct Wasi {
    table: ResourceTable,
    clock: clocks::Clock,
    secure: ChaCha20Rng,
    insecure: ChaCha20Rng,
    hash_seed: (u64, u64),
    budget: held::Budget,
    stdin: streams::Bytes,
    /// What a command writes to its standard output, where that is not a log.
    output: Option<command::Output>,
}

impl Wasi {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let stream = |number| {
            let mut random = ChaCha20Rng::from_seed(seed);
            random.set_stream(number);
            random
        };
        let mut hash_seed = stream(HASH_SEED);
        let budget = held::Budget::new();
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        Self {
            table,
            clock: clocks::Clock::default(),
            secure: stream(SECURE),
            insecure: stream(INSECURE),
            hash_seed: (hash_seed.next_u64(), hash_seed.next_u64()),
            stdin: streams::Bytes::new(Vec::new(), budget.held()),
            output: None,
            budget,
        }
    }
}

/// A guest used something of which it can have none.
fn absent<T>(what: &'static str) -> wasmtime::Result<T> {
    Err(Abort::Absent(what).into())
}
