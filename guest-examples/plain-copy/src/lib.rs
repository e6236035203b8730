//! Answers with its input, byte for byte.

use wasip2::cli::{stdin, stdout};

wasip2::cli::command::export!(Program);

struct Program;

impl wasip2::exports::cli::run::Guest for Program {
    fn run() -> Result<(), ()> {
        std::io::copy(&mut stdin::get_stdin(), &mut stdout::get_stdout()).map(drop).map_err(drop)
    }
}
