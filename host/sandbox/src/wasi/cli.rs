//! What a program finds around it: no arguments, no variables, nothing to read, and two streams into the step's log.

use wasmtime::component::Resource;

use super::bindings::wasi::cli::{environment, exit, stderr, stdin, stdout};
use super::streams::{InputStream, OutputStream};
use crate::host::{Abort, HostState};

impl environment::Host for HostState {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

impl exit::Host for HostState {
    fn exit(&mut self, status: Result<(), ()>) -> wasmtime::Result<()> {
        Err(Abort::Exit(status.map_or(1, |()| 0)).into())
    }

    fn exit_with_code(&mut self, status_code: u8) -> wasmtime::Result<()> {
        Err(Abort::Exit(status_code).into())
    }
}

impl stdin::Host for HostState {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<InputStream>> {
        Ok(self.wasi.table.push(InputStream::Stdin)?)
    }
}

impl stdout::Host for HostState {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<OutputStream>> {
        Ok(self.wasi.table.push(OutputStream::Stdout)?)
    }
}

impl stderr::Host for HostState {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<OutputStream>> {
        Ok(self.wasi.table.push(OutputStream::Stderr)?)
    }
}
