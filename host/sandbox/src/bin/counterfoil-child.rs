//! A program that is nothing but the children of a sandbox: what the tests of this room start.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    arguments
        .next()
        .and_then(|first| counterfoil_sandbox::child(&first, arguments))
        // Nobody else has a use for it.
        .unwrap_or(ExitCode::FAILURE)
}
