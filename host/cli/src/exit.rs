//! How a command ends: its code, and what a person reads when it fails.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use anstyle::{AnsiColor, Style};

/// Exit codes, one meaning each in every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Not done, for a reason that is none of the following.
    Error = 1,
    /// The command line, or what was sent, has not the form it must have.
    Usage = 2,
    /// The run failed, or was cancelled.
    RunFailed = 3,
    /// The run is blocked: an outcome is unknown, and a person must say what happened.
    NeedsPerson = 4,
    /// What was waited for did not come in time.
    TimedOut = 5,
    /// Understood, and refused by a rule.
    Refused = 6,
}

impl Exit {
    /// Of a command to whose call the host answered with this status, other than success. The guide has the same table.
    pub(crate) const fn of_status(status: u16) -> Self {
        match status {
            400 | 405 | 415 => Self::Usage,
            401 | 403 | 409 | 413 | 422 => Self::Refused,
            // What is asked for is not there, as a file may not be; or the host, or one before it, cannot answer now.
            _ => Self::Error,
        }
    }
}

/// What they mean, for help. `docs/application-developer.md` has the same words.
pub(crate) const CODES: &str = "\
Exit codes:
  0  done
  1  not done, for a reason that is none of the following
  2  the command line, or what was sent, has not the form it must have
  3  the run failed, or was cancelled
  4  the run is blocked: an outcome is unknown, and a person must say what happened
  5  what was waited for did not come in time
  6  understood, and refused by a rule";

/// An error that says what, where, why, and what to type next.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    what: String,
    details: Vec<String>,
    next: Option<String>,
}

impl Failure {
    /// A failure that ends the command with `exit`.
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), details: vec![], next: None }
    }

    /// Where it is wrong.
    pub(crate) fn at(mut self, place: &Path) -> Self {
        self.what = format!("{}: {}", place.display(), self.what);
        self
    }

    /// Each part of what is wrong, a line or more.
    pub(crate) fn details(mut self, details: impl IntoIterator<Item = String>) -> Self {
        self.details.extend(details);
        self
    }

    /// All of it but what to type next, in one line.
    pub(crate) fn in_a_line(&self) -> String {
        let parts: Vec<&str> = std::iter::once(&self.what).chain(&self.details).map(String::as_str).collect();
        parts.join("; ")
    }

    /// What to type next.
    pub(crate) fn next(mut self, command: impl Into<String>) -> Self {
        self.next = Some(command.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

/// Tells a person of the error, and returns the code that goes with it.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    // Whoever reads our output has read enough, as `head` does.
    let is_closed = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(is_closed) {
        return Exit::Ok;
    }
    let (red, cyan) =
        (Style::new().bold().fg_color(Some(AnsiColor::Red.into())), AnsiColor::Cyan.on_default());
    anstream::eprintln!("{red}error:{red:#} {error:#}");
    let Some(failure) = error.downcast_ref::<Failure>() else { return Exit::Error };
    for line in failure.details.iter().flat_map(|detail| detail.lines()) {
        anstream::eprintln!("  {line}");
    }
    if let Some(next) = &failure.next {
        anstream::eprintln!("{cyan}next:{cyan:#} {next}");
    }
    failure.exit
}
