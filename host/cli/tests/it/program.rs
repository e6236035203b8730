//! Runs the program.

use std::path::Path;
use std::process::{Command, Output};

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program, in a directory and with an environment in which nothing is set.
pub(crate) fn counterfoil(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
    command.env_clear().env("HOME", home).current_dir(home);
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Said {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
    Said { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

impl Said {
    /// All of it, as it reads, with paths under `home` shortened.
    pub(crate) fn text(&self, home: &Path) -> String {
        let Self { code, stdout, stderr } = self;
        let code = code.map_or_else(|| "killed".to_owned(), |code| code.to_string());
        format!("{stdout}--- stderr\n{stderr}--- exit {code}").replace(&*home.to_string_lossy(), "HOME")
    }

    /// The one JSON document that was printed.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
