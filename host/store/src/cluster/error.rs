use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The oldest major version of Postgres that is supported.
pub(super) const VERSION_MIN: u32 = 15;

/// How much of the end of a log is read for its last line.
const LOG_TAIL_BYTES: usize = 2048;

/// Why a private cluster does not run. Every message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is no Postgres on this machine, or none new enough.
    #[error(
        "no Postgres of version {VERSION_MIN} or newer was found: install its server (Debian and Ubuntu: `apt-get \
         install postgresql`; Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql@17`), or set \
         DATABASE_URL"
    )]
    NoBinaries,
    /// The data was made by a version that is not here.
    #[error(
        "{} was made by Postgres {made_by}, and no Postgres {made_by} was found: install that version, or choose \
         another data directory",
        dir.display()
    )]
    OtherVersion {
        /// The data directory.
        dir: PathBuf,
        /// Its major version.
        made_by: u32,
    },
    /// This is root, Postgres refuses root, and there is nobody else to be.
    #[error(
        "Postgres does not run as root, and this machine has neither a user `postgres` nor a user `nobody`: run as an \
         ordinary user, or add one of them"
    )]
    NoAccount,
    /// Something else lives where the cluster should.
    #[error("{} is not empty and is no cluster's home: choose another data directory", dir.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
    },
    /// Another process runs this cluster.
    #[error(
        "{} is in use by another host{}: stop that one, or choose another data directory",
        dir.display(),
        by(*.pid)
    )]
    InUse {
        /// The cluster's home.
        dir: PathBuf,
        /// Who, if it said so.
        pid: Option<u32>,
    },
    /// A server that is not ours, or is slow to end, still works on the data.
    #[error(
        "a Postgres server (process {pid}) still runs on {}: stop it with `kill -INT {pid}`, then start again",
        dir.display()
    )]
    StillRuns {
        /// The data directory.
        dir: PathBuf,
        /// The server.
        pid: i32,
    },
    /// The data directory could not be made.
    #[error("initdb could not make {}: {said}", dir.display())]
    Initdb {
        /// The data directory.
        dir: PathBuf,
        /// The last line it wrote.
        said: String,
    },
    /// The server ended by itself.
    #[error("Postgres ended ({status}): {said}; its log is {}", log.display())]
    Stopped {
        /// With what.
        status: ExitStatus,
        /// The last line of its log.
        said: String,
        /// All of it.
        log: PathBuf,
    },
    /// The server runs and does not answer.
    #[error("Postgres has not answered for {waited_s} s; its log is {}", log.display())]
    Silent {
        /// In seconds.
        waited_s: u64,
        /// Its log.
        log: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The server answers, and not what it should.
    #[error("the private Postgres refused to be set up")]
    Sql(#[source] sqlx::Error),
    /// A thread or task of this process failed.
    #[error("the private Postgres was lost track of")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ClusterError {
    /// For `map_err`: what was tried, with what.
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    pub(super) fn stopped(status: ExitStatus, log: &Path) -> Self {
        let said = match std::fs::read(log) {
            Ok(bytes) => last_line(&bytes),
            Err(error) => format!("its log cannot be read, {error}"),
        };
        Self::Stopped { status, said, log: log.to_owned() }
    }
}

fn by(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// The last line that says something, of the last bytes of a log.
pub(super) fn last_line(bytes: &[u8]) -> String {
    let tail = &bytes[bytes.len().saturating_sub(LOG_TAIL_BYTES)..];
    String::from_utf8_lossy(tail)
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("it said nothing")
        .to_owned()
}
