//! The private Postgres cluster: a server that the host starts itself, that only the host talks to, and that ends
//! with the host.
//!
//! A cluster has a *home*, one directory that holds everything of it:
//!
//! ```text
//! lock           held by the process that runs the cluster; the kernel lets go of it when that process dies
//! data/          what initdb made
//! server.log     what the server said since it was last started; server.log.1 is the time before
//! .s.PGSQL.5432  the socket (elsewhere, and `socket` links to the place, if this path is too long for one)
//! ```
//!
//! Nobody else is let in: the server listens on no network, and its socket belongs to its user alone.

mod account;
mod binaries;
mod error;
mod home;
pub mod reexec;
mod server;
mod socket;

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::time::{Instant, sleep, timeout_at};

pub use self::error::ClusterError;
pub use self::server::Shutdown;

use self::account::Account;
use self::binaries::Binaries;
use self::home::Home;
use self::server::Server;
use self::socket::SocketDir;

/// The database, and the role that owns it and the cluster.
const NAME: &str = "counterfoil";

/// Names the socket's file; no port is ever opened.
const PORT: u16 = 5432;

/// Recovery after a crash reads at most what was written since the last checkpoint, `max_wal_size` of it; a slow disk
/// may take this long.
const READY_WAIT: Duration = Duration::from_mins(2);

/// Between two looks whether the server answers: it usually does within 40 ms.
const READY_POLL: Duration = Duration::from_millis(5);

/// A server that was killed alone leaves children behind that hold its shared memory for a moment, and the next one
/// refuses to start beside them.
const STARTS_MAX: u32 = 3;
const START_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a cluster is started with.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Where its home is, or shall be made. As root, if the server's user cannot come here, the home is made under
    /// `/var/lib/counterfoil` and this becomes a link to it.
    pub dir: PathBuf,
    /// How the server is tied to this process.
    pub launcher: Launcher,
    /// Whether what it stores survives the machine.
    pub durability: Durability,
}

/// A command that becomes the server, after it has changed user and tied itself to this process.
///
/// It is called as `program args… __postgres --parent PID [--uid UID --gid GID] -- postgres args…`;
/// [`reexec::main`] does what is asked of it.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program, absolute or on the `PATH`.
    pub program: PathBuf,
    /// What comes before `__postgres`.
    pub args: Vec<OsString>,
}

impl Launcher {
    /// This program, whose `main` calls [`reexec::main`] when its first argument is [`reexec::COMMAND`].
    pub fn this_program() -> Result<Self, ClusterError> {
        let program = std::env::current_exe().map_err(ClusterError::io("find", "this program"))?;
        Ok(Self { program, args: Vec::new() })
    }
}

/// Whether a commit reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A commit survives the machine.
    Durable,
    /// A commit survives the host, and not the machine: for tests, which need no more.
    Volatile,
}

/// A running private cluster. It ends when this is dropped, or when the process dies.
#[derive(Debug)]
pub struct Cluster {
    // Fields are dropped in this order: the lock last, when the server is gone.
    server: Server,
    home: Home,
    socket: SocketDir,
    version: u32,
    _lock: File,
}

impl Cluster {
    /// Starts the cluster at `config.dir`, made first if it does not exist, and waits until it answers.
    ///
    /// # Errors
    /// Each names what is in the way and what to do about it, in one line.
    pub async fn start(config: ClusterConfig) -> Result<Self, ClusterError> {
        let ClusterConfig { dir, launcher, durability } = config;
        let prepared = tokio::task::spawn_blocking(move || Prepared::new(&dir, durability))
            .await
            .map_err(|join| ClusterError::Internal(join.into()))??;

        let options = prepared.socket.options();
        let mut starts = 1;
        let server = loop {
            let server = Server::launch(prepared.command(&launcher, durability)?)?;
            match wait_until_ready(&server, &options, &prepared.home).await {
                Ok(()) => break server,
                Err(ClusterError::Stopped { .. }) if starts < STARTS_MAX => starts += 1,
                Err(error) => return Err(error),
            }
            sleep(START_AGAIN_AFTER).await;
        };

        let Prepared { home, socket, binaries, lock } = prepared;
        Ok(Self { server, home, socket, version: binaries.version, _lock: lock })
    }

    /// How to connect to the cluster's database.
    pub fn connect_options(&self) -> PgConnectOptions {
        self.socket.options().database(NAME)
    }

    /// The same as a URL, for `psql` and the like.
    pub fn url(&self) -> String {
        self.socket.url()
    }

    /// Where its home really is.
    pub fn dir(&self) -> &Path {
        &self.home.dir
    }

    /// Major version of the server.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Ends the server and waits until it is gone, without holding up the thread as a drop does.
    ///
    /// # Errors
    /// If it could not be waited for, or ended otherwise than asked; it is gone either way.
    pub async fn stop(self, how: Shutdown) -> Result<(), ClusterError> {
        let Self { server, home, .. } = self;
        let status = server.stop(how).await?;
        // After an immediate shutdown the postmaster reports no success.
        if how == Shutdown::Fast && !status.success() {
            return Err(ClusterError::stopped(status, &home.log()));
        }
        Ok(())
    }
}

/// Everything that is done before the server runs.
struct Prepared {
    home: Home,
    socket: SocketDir,
    binaries: Binaries,
    lock: File,
}

impl Prepared {
    fn new(dir: &Path, durability: Durability) -> Result<Self, ClusterError> {
        let available = binaries::find()?;
        let home = Home::open(dir)?;
        let lock = home.lock()?;
        home.wait_until_vacant()?;
        let made_by = home.version()?;
        let binaries = binaries::choose(available, made_by, &home.data())?;
        if made_by.is_none() {
            home.initdb(&binaries, durability)?;
        }
        let socket = SocketDir::open(&home)?;
        Ok(Self { home, socket, binaries, lock })
    }

    fn command(
        &self,
        launcher: &Launcher,
        durability: Durability,
    ) -> Result<std::process::Command, ClusterError> {
        let mut command = std::process::Command::new(&launcher.program);
        command.args(&launcher.args).arg(reexec::COMMAND);
        command.arg("--parent").arg(std::process::id().to_string());
        if let Account::Other { uid, gid } = self.home.account {
            command.arg("--uid").arg(uid.to_string()).arg("--gid").arg(gid.to_string());
        }
        command.arg("--").arg(self.binaries.postgres()).arg("-D").arg(self.home.data());
        for (name, value) in SETTINGS {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let fsync = if durability == Durability::Durable { "on" } else { "off" };
        command.arg("-c").arg(format!("fsync={fsync}"));
        command.arg("-k").arg(&self.socket.dir).arg("-p").arg(PORT.to_string());
        self.home.settle_process(&mut command);
        command.stderr(self.home.fresh_log()?);
        Ok(command)
    }
}

/// For one machine and one user. They are given at every start, so that they follow this version of the host and not
/// the one that made the cluster.
const SETTINGS: &[(&str, &str)] = &[
    ("cluster_name", NAME),
    ("listen_addresses", ""),
    ("unix_socket_permissions", "0700"),
    // Hosts that share it, each with its writers, its claimer, its listener and its pool; an unused one costs little.
    ("max_connections", "200"),
    // No replica and no archive reads this log: less of it.
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("max_logical_replication_workers", "0"),
    // Statements here are short and take rows by index: planning for more costs more than it saves.
    ("max_parallel_workers_per_gather", "0"),
    ("jit", "off"),
    // By default a role's own schema comes first, and the role here is called as the schema that `emit_event` is in.
    ("search_path", "public"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    // Starts, ends and crashes. What a statement did wrong is told to the host, which says it in its own words.
    ("log_min_messages", "log"),
    ("log_checkpoints", "off"),
    ("log_autovacuum_min_duration", "-1"),
];

/// Waits until the server answers, and has the database.
async fn wait_until_ready(
    server: &Server,
    options: &PgConnectOptions,
    home: &Home,
) -> Result<(), ClusterError> {
    let deadline = Instant::now() + READY_WAIT;
    let answered = async {
        loop {
            if let Ok(connection) = options.connect().await {
                return connection;
            }
            sleep(READY_POLL).await;
        }
    };
    let mut connection = tokio::select! {
        status = server.exited() => return Err(ClusterError::stopped(status?, &home.log())),
        answered = timeout_at(deadline, answered) => answered.map_err(|_elapsed| ClusterError::Silent {
            waited_s: READY_WAIT.as_secs(),
            log: home.log(),
        })?,
    };
    create_database(&mut connection).await.map_err(ClusterError::Sql)?;
    connection.close().await.map_err(ClusterError::Sql)
}

async fn create_database(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(NAME)
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        sqlx::query("CREATE DATABASE counterfoil").execute(connection).await?;
    }
    Ok(())
}

impl SocketDir {
    /// Options for the database that every cluster has.
    fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.dir)
            .port(PORT)
            .username(NAME)
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
            .application_name(NAME)
    }
}
