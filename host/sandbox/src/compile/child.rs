//! The child: gives up all it can do, reads a component, writes machine code, and ends.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, StepLimits, UPLOAD_BYTES_MAX, bounded_text};

use nix::libc;
use nix::sys::resource::Resource;

use super::machine_code;
use super::request::{COMMAND, Request};
use crate::artifact::EngineId;
use crate::confine::{self, Allowed, ConfineError};
use crate::engine::{Allocation, engine};

/// Descriptors that may be open: the three that there are, and room for what the runtime looks up about the machine.
const DESCRIPTORS_MAX: u64 = 16;
/// Seconds that the child has left once it was told that its CPU is used up.
const CPU_GRACE_S: u64 = 1;
/// Steps that run come first, uploads second.
const NICENESS: i32 = 10;

/// It reads its input, and writes its output and what it has to say about it.
#[cfg(target_os = "linux")]
const ALLOWED: &[Allowed] = &[(libc::SYS_read, 0, 0), (libc::SYS_write, 0, 1), (libc::SYS_write, 0, 2)];
#[cfg(not(target_os = "linux"))]
const ALLOWED: &[Allowed] = &[];

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
    #[error("the priority cannot be lowered: {0}")]
    Niceness(io::Error),
    #[error("the compiler cannot be built: {0:#}")]
    Engine(wasmtime::Error),
    #[error("the component cannot be read: {0}")]
    Read(io::Error),
}

/// Compiles what comes in on the standard input. `args` are what follows [`COMMAND`].
///
/// Is to be called first thing, by the only thread: it closes what was inherited and limits the process.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
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
    limit(&request)?;
    // The engine that will run it, by whose name the parent knows that it would have made the same.
    let runs = engine(Allocation::OnDemand, 1, &StepLimits::DEFAULT).map_err(NotBegun::Engine)?;
    let mut output = EngineId::of(&runs).0.to_vec();
    drop(runs);
    confine::forbid_system_calls_but(&[], ALLOWED)?;
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

fn limit(request: &Request) -> Result<(), NotBegun> {
    let Request { parent, cpu_s, memory_bytes, .. } = *request;
    let cpu_s = u64::from(cpu_s);
    confine::limit(
        parent,
        &[
            ("CPU", Resource::RLIMIT_CPU, cpu_s, cpu_s + CPU_GRACE_S),
            ("memory", Resource::RLIMIT_AS, memory_bytes, memory_bytes),
            ("the size of files", Resource::RLIMIT_FSIZE, 0, 0),
            ("the number of descriptors", Resource::RLIMIT_NOFILE, DESCRIPTORS_MAX, DESCRIPTORS_MAX),
            ("core dumps", Resource::RLIMIT_CORE, 0, 0),
        ],
    )?;
    rustix::process::nice(NICENESS).map_err(|error| NotBegun::Niceness(error.into()))?;
    Ok(())
}
