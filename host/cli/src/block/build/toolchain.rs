//! Finds a way to compile for [`TARGET`] on this machine.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use super::process::{self, Line};

/// The target of a block: no WASI, so that it can do nothing but what the contract offers.
pub(super) const TARGET: &str = "wasm32-unknown-unknown";

/// Set to anything to leave `rustup` alone.
const NO_RUSTUP: &str = "COUNTERFOIL_NO_RUSTUP";

/// A download of 20 MB over a slow line; a machine without a network is told so much earlier.
const RUSTUP_TIME_MAX: Duration = Duration::from_mins(2);

/// A question to a compiler; with `rustup` in front it may have to fetch a toolchain that a file asks for.
const ASK_TIME_MAX: Duration = Duration::from_mins(10);

/// The oldest compiler that knows the edition of a block.
const DEBIAN_RUSTC_MINOR_MIN: u32 = 85;

/// The packages that together compile for the target.
const DEBIAN_PACKAGES: &str = "rustc-web cargo-web rust-web-src rust-web-llvm lld-22";

/// A way to compile for the target.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Toolchain {
    /// The active toolchain has the target.
    Active,
    /// Debian's compiler under this prefix, which compiles the standard library from its source first.
    Debian(PathBuf),
}

impl Toolchain {
    /// A release build for the target.
    pub(super) fn cargo_build(&self) -> Command {
        const BUILD: [&str; 4] = ["build", "--release", "--target", TARGET];
        match self {
            Self::Active => {
                let mut command = Command::new("cargo");
                command.args(BUILD);
                command
            }
            Self::Debian(prefix) => {
                let mut command = Command::new(prefix.join("bin/cargo"));
                command.args(BUILD).arg("-Zbuild-std=std,panic_abort");
                // Debian ships no compiled library for the target, and building one is not stable yet.
                command.env("RUSTC", prefix.join("bin/rustc")).env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }

    /// What it is, for people.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Active => "the active toolchain",
            Self::Debian(_) => "Debian's toolchain",
        }
    }
}

/// Where compilers are looked for.
#[derive(Debug)]
pub(super) struct Machine {
    rustc: PathBuf,
    rustup: PathBuf,
    rustup_allowed: bool,
    debian: PathBuf,
}

impl Machine {
    /// This machine, as its environment describes it.
    pub(super) fn this() -> Self {
        Self {
            rustc: env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()).into(),
            rustup: "rustup".into(),
            rustup_allowed: env::var_os(NO_RUSTUP).is_none_or(|value| value.is_empty()),
            debian: "/usr".into(),
        }
    }

    /// The first of the ways that works for a crate in `dir`: the target that is there, the target that
    /// `rustup` can add, Debian's packages.
    ///
    /// # Errors
    ///
    /// None does: why, and what to install.
    pub(super) fn toolchain(&self, dir: &Path, progress: &dyn Fn(&str)) -> anyhow::Result<Toolchain> {
        let Err(active) = self.active(dir) else { return Ok(Toolchain::Active) };
        let added = self.add_target(dir, progress).and_then(|()| self.active(dir));
        let Err(rustup) = added else { return Ok(Toolchain::Active) };
        let Err(debian) = self.debian() else { return Ok(Toolchain::Debian(self.debian.clone())) };
        bail!(
            "nothing here compiles for {TARGET}: {active}; {rustup}; {debian}. \
             Run `rustup target add {TARGET}`, \
             or `apt-get install --no-install-recommends {DEBIAN_PACKAGES}`"
        )
    }

    /// Whether the compiler that is in force in `dir` has the target's library.
    fn active(&self, dir: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.rustc);
        command.current_dir(dir).args(["--print", "target-libdir", "--target", TARGET]);
        let libraries = ask(&mut command).ok_or("there is no rustc")?;
        let has_std = fs::read_dir(libraries).into_iter().flatten().flatten().any(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("libstd-")
        });
        if has_std { Ok(()) } else { Err("rustc has not that target".into()) }
    }

    fn add_target(&self, dir: &Path, progress: &dyn Fn(&str)) -> Result<(), String> {
        if !self.rustup_allowed {
            return Err(format!("rustup is left alone, since {NO_RUSTUP} is set"));
        }
        let mut command = Command::new(&self.rustup);
        command.current_dir(dir).args(["target", "add", TARGET]);
        let mut last = String::new();
        let status = process::run(&mut command, RUSTUP_TIME_MAX, |line| {
            let (Line::Out(text) | Line::Err(text)) = line;
            progress(&text);
            last = text;
        });
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(format!("rustup could not add it ({})", last.trim())),
            Err(error) if is_not_found(&error) => Err("there is no rustup".into()),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    /// Whether Debian's packages are all there, and new enough.
    fn debian(&self) -> Result<(), String> {
        const PARTS: [&str; 4] =
            ["bin/rustc", "bin/cargo", "bin/rust-lld", "lib/rustlib/src/rust/library/Cargo.lock"];
        if let Some(missing) = PARTS.map(|part| self.debian.join(part)).iter().find(|p| !p.exists()) {
            return Err(format!("Debian's packages lack {}", missing.display()));
        }
        let rustc = self.debian.join("bin/rustc");
        let version = ask(Command::new(&rustc).arg("--version")).unwrap_or_default();
        match minor(&version) {
            Some(minor) if minor >= DEBIAN_RUSTC_MINOR_MIN => Ok(()),
            _ => Err(format!("{} is {version:?}, and 1.{DEBIAN_RUSTC_MINOR_MIN} is needed", rustc.display())),
        }
    }
}

/// The first line of the answer of a program that succeeds.
fn ask(command: &mut Command) -> Option<String> {
    let mut answer = None;
    let status = process::run(command, ASK_TIME_MAX, |line| {
        if let Line::Out(text) = line {
            answer.get_or_insert(text);
        }
    });
    answer.filter(|_| status.is_ok_and(|status| status.success()))
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The minor version in the answer of `rustc --version`.
fn minor(version: &str) -> Option<u32> {
    version.split(' ').nth(1)?.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
