//! The child: gives up all it can do, reads a component, writes machine code, and ends.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, StepLimits, UPLOAD_BYTES_MAX, bounded_text};

use super::confine::{self, ConfineError};
use super::machine_code;
use super::request::{COMMAND, Request};
use crate::artifact::EngineId;
use crate::engine::{Allocation, engine};

/// The exit code beside which the standard output has machine code: first the engine that it is for.
pub(super) const COMPILED: u8 = 0;
/// The exit code beside which the standard output says what the validator has against the component.
pub(super) const INVALID: u8 = 3;
/// The exit code of a child that could not begin; the standard error says why.
pub(super) const NOT_BEGUN: u8 = 4;

/// Why a child could not begin.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error("usage: {COMMAND} PARENT CPU_SECONDS MEMORY_BYTES optimised|unoptimised")]
    Usage,
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error("the compiler cannot be built: {0:#}")]
    Engine(wasmtime::Error),
    #[error("the component cannot be read: {0}")]
    Read(io::Error),
}

/// Compiles what comes in on the standard input. `args` are what follows [`COMMAND`].
///
/// Is to be called first thing, by the only thread: it closes what was inherited and limits the process.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (code, output) = match work(args) {
        Ok(Ok(output)) => (COMPILED, output),
        Ok(Err(refusal)) => (INVALID, refusal.into_bytes()),
        Err(error) => {
            // Whoever cannot hear it sees the exit code.
            let _ = writeln!(io::stderr(), "{error}");
            return NOT_BEGUN.into();
        }
    };
    match io::stdout().write_all(&output) {
        Ok(()) => code.into(),
        // Nobody is left to read it.
        Err(_) => NOT_BEGUN.into(),
    }
}

fn work(args: impl IntoIterator<Item = OsString>) -> Result<Result<Vec<u8>, String>, NotBegun> {
    let request = Request::parse(args).ok_or(NotBegun::Usage)?;
    confine::limit(&request)?;
    // The engine that will run it, by whose name the parent knows that it would have made the same.
    let runs = engine(Allocation::OnDemand, 1, &StepLimits::DEFAULT).map_err(NotBegun::Engine)?;
    let mut output = EngineId::of(&runs).0.to_vec();
    drop(runs);
    confine::forbid_system_calls()?;
    let mut component = Vec::new();
    io::stdin().take(UPLOAD_BYTES_MAX + 1).read_to_end(&mut component).map_err(NotBegun::Read)?;
    Ok(match machine_code(&component, request.effort) {
        Ok(code) => {
            output.extend(code);
            Ok(output)
        }
        Err(error) => Err(bounded_text(&format!("{error:#}"), ERROR_TEXT_BYTES_MAX)),
    })
}
