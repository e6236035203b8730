//! The program that is started for what must not happen in the host's own process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::compile;
#[cfg(target_os = "linux")]
use crate::runner;

/// A program whose `main` begins with [`child`].
#[derive(Debug, Clone)]
pub struct Program {
    /// Absolute: it is started in another directory.
    pub path: PathBuf,
}

impl Program {
    /// This very program.
    ///
    /// # Errors
    /// If the system does not say which it is.
    pub fn this() -> io::Result<Self> {
        // Also once another version was installed over it, with which this process would not agree.
        let path = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        Ok(Self { path })
    }
}

/// What this process does if a sandbox has started it, for which its first argument is the sign; it does it to the end.
///
/// Is to be called first thing, by the only thread: it closes what was inherited and limits the process.
pub fn child(first: &OsStr, others: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    if first == compile::COMMAND {
        return Some(compile::main(others));
    }
    #[cfg(target_os = "linux")]
    if first == runner::COMMAND {
        return Some(runner::main(others));
    }
    None
}
