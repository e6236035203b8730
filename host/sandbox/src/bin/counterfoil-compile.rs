//! A program that compiles components and does nothing else: what the tests of this room start.

use std::process::ExitCode;

use counterfoil_sandbox::compile;

fn main() -> ExitCode {
    // The first is the command's name.
    compile::main(std::env::args_os().skip(2))
}
