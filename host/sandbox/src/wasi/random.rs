//! Random bytes that follow from the step's seed: the same on every re-run.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::RngCore;

use super::bindings::wasi::random::{insecure, insecure_seed, random};
use crate::host::{Abort, HostState, RANDOM_BYTES_MAX};

fn bytes(random: &mut ChaCha20Rng, len: u64) -> wasmtime::Result<Vec<u8>> {
    match usize::try_from(len) {
        Ok(bytes_len) if len <= u64::from(RANDOM_BYTES_MAX) => {
            let mut bytes = vec![0; bytes_len];
            random.fill_bytes(&mut bytes);
            Ok(bytes)
        }
        _ => Err(Abort::RandomTooLong(len).into()),
    }
}

impl random::Host for HostState {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        bytes(&mut self.wasi.secure, len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.wasi.secure.next_u64())
    }
}

impl insecure::Host for HostState {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        bytes(&mut self.wasi.insecure, len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.wasi.insecure.next_u64())
    }
}

impl insecure_seed::Host for HostState {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok(self.wasi.hash_seed)
    }
}
