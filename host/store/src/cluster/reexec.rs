//! The hidden subcommand that becomes the server.
//!
//! A change of user clears the parent-death signal, so it is asked for after the change, by the process that then
//! becomes the server; and what can be done before an `exec` without unsafe code is done by a program of its own.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::errno::Errno;
use nix::unistd::{Gid, Pid, Uid, getppid, setgid, setuid};

/// The first argument of a program that shall call [`main`].
pub const COMMAND: &str = "__postgres";

/// Why the process did not become a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReexecError {
    /// Called by a person, or by another version.
    #[error("usage: {COMMAND} --parent PID [--uid UID --gid GID] -- PROGRAM [ARG]…")]
    Usage,
    /// The user could not be changed.
    #[error("cannot become user {uid}, group {gid}")]
    Account {
        /// User id.
        uid: Uid,
        /// Group id.
        gid: Gid,
        /// What the system said.
        source: Errno,
    },
    /// The parent is gone already.
    #[error("the host that started this is gone")]
    Orphaned,
    /// The process could not be tied to its parent.
    #[error("cannot ask for the end of this process with its parent")]
    Tie(#[source] Errno),
    /// The server's program does not run.
    #[error("cannot run {}", program.display())]
    Exec {
        /// Which.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Changes user, ties this process to its parent and becomes the server. `args` are what follows [`COMMAND`].
///
/// Returns only if that fails.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ReexecError {
    match Request::parse(args) {
        Some(request) => match request.prepare() {
            Ok(mut command) => {
                let source = command.exec();
                ReexecError::Exec { program: command.get_program().into(), source }
            }
            Err(error) => error,
        },
        None => ReexecError::Usage,
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    parent: Pid,
    account: Option<(Uid, Gid)>,
    command: Vec<OsString>,
}

impl Request {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut args = args.into_iter();
        let (mut parent, mut uid, mut gid) = (None, None, None);
        loop {
            match args.next()?.to_str()? {
                "--parent" => parent = Some(Pid::from_raw(number(args.next()?)?)),
                "--uid" => uid = Some(Uid::from_raw(number(args.next()?)?)),
                "--gid" => gid = Some(Gid::from_raw(number(args.next()?)?)),
                "--" => break,
                _ => return None,
            }
        }
        let account = match (uid, gid) {
            (Some(uid), Some(gid)) => Some((uid, gid)),
            (None, None) => None,
            _ => return None,
        };
        let command: Vec<OsString> = args.collect();
        (!command.is_empty()).then_some(Self { parent: parent?, account, command })
    }

    fn prepare(&self) -> Result<Command, ReexecError> {
        if let Some((uid, gid)) = self.account {
            become_user(uid, gid).map_err(|source| ReexecError::Account { uid, gid, source })?;
        }
        tie_to_parent().map_err(ReexecError::Tie)?;
        // A parent that died before the line above sends no signal any more.
        if getppid() != self.parent {
            return Err(ReexecError::Orphaned);
        }
        let (program, args) = self.command.split_first().ok_or(ReexecError::Usage)?;
        let mut command = Command::new(program);
        command.args(args);
        Ok(command)
    }
}

/// Groups first: once the user has changed, they cannot be.
fn become_user(uid: Uid, gid: Gid) -> Result<(), Errno> {
    set_groups(gid)?;
    setgid(gid)?;
    setuid(uid)
}

#[cfg(not(target_vendor = "apple"))]
fn set_groups(gid: Gid) -> Result<(), Errno> {
    nix::unistd::setgroups(&[gid])
}

/// There, groups belong to the directory service and not to the process.
#[cfg(target_vendor = "apple")]
fn set_groups(_gid: Gid) -> Result<(), Errno> {
    Ok(())
}

/// Fast shutdown. The host that comes next waits for this server to be gone and for its own to be ready; after 200 MB
/// of writes that took 0.7 s, and 6 to 8 s after an immediate shutdown, whose recovery reads all of it again.
#[cfg(target_os = "linux")]
fn tie_to_parent() -> Result<(), Errno> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGINT)
}

/// Only Linux has such a signal. Elsewhere a server outlives a host that was killed, and the next start says so.
#[cfg(not(target_os = "linux"))]
fn tie_to_parent() -> Result<(), Errno> {
    Ok(())
}

fn number<T: std::str::FromStr>(arg: impl AsRef<OsStr>) -> Option<T> {
    arg.as_ref().to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Request> {
        Request::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_request_is_whole_or_refused() {
        let request = |account| Request {
            parent: Pid::from_raw(7),
            account,
            command: ["postgres", "-D", "x"].map(OsString::from).to_vec(),
        };
        let postgres = Some((Uid::from_raw(101), Gid::from_raw(104)));
        for (line, expected) in [
            ("--parent 7 -- postgres -D x", Some(request(None))),
            ("--parent 7 --uid 101 --gid 104 -- postgres -D x", Some(request(postgres))),
            ("", None),
            ("--parent 7", None),
            ("--parent 7 --", None),
            ("--parent 7 --uid 101 -- postgres", None),
            ("--parent seven -- postgres", None),
            ("--uid 101 --gid 104 -- postgres", None),
            ("--parent 7 --shell -- postgres", None),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
