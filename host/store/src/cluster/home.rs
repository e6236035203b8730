//! The directory of a cluster: making it, owning it, finding what was left in it.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, mkdtemp};

use super::Durability;
use super::account::Account;
use super::binaries::Binaries;
use super::error::{ClusterError, last_line};

/// Where homes are made that could not be where they were asked for. Root's own, so nobody can be there first.
const ELSEWHERE: &str = "/var/lib/counterfoil";

/// A host that is starting or ending has the home for a moment only.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// A server whose host was killed is told so by the kernel, and has at most `max_wal_size` to write before it ends.
const VACANT_WAIT: Duration = Duration::from_mins(1);

const POLL: Duration = Duration::from_millis(20);

/// Where a cluster lives, and as whom.
#[derive(Debug)]
pub(super) struct Home {
    /// Absolute, without links.
    pub(super) dir: PathBuf,
    pub(super) account: Account,
}

impl Home {
    /// Makes the home if there is none.
    pub(super) fn open(requested: &Path) -> Result<Self, ClusterError> {
        let requested = std::path::absolute(requested)
            .map_err(ClusterError::io("find the absolute path of", requested))?;
        let parent = requested.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(ClusterError::io("make the directory", parent))?;

        // A home that was made elsewhere, also if it has been deleted there since.
        let dir = match fs::read_link(&requested) {
            Ok(target) => parent.join(target),
            Err(_) => requested.clone(),
        };
        let account = Account::for_home(&dir)?;
        let above = dir.parent().unwrap_or(Path::new("/"));
        let reached = account.reaches(above).map_err(ClusterError::io("look at", above))?;
        let dir = if reached { dir } else { make_elsewhere(&requested)? };
        own(&dir, account)?;
        let dir = dir.canonicalize().map_err(ClusterError::io("find the real path of", &dir))?;
        Ok(Self { dir, account })
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Takes the home for this process, for as long as the file is open.
    pub(super) fn lock(&self) -> Result<File, ClusterError> {
        let path = self.dir.join("lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(ClusterError::io("open", &path))?;
        let deadline = Instant::now() + LOCK_WAIT;
        while let Err(error) = file.try_lock() {
            if let TryLockError::Error(error) = error {
                return Err(ClusterError::io("lock", &path)(error));
            }
            if self.serves() || Instant::now() >= deadline {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(ClusterError::io("read", &path))?;
                return Err(ClusterError::InUse { dir: self.dir.clone(), pid: holder.trim().parse().ok() });
            }
            std::thread::sleep(POLL);
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(ClusterError::io("write", &path))?;
        Ok(file)
    }

    /// Whether a server is up and means to stay, as it says itself.
    fn serves(&self) -> bool {
        let said = PidFile::read(&self.data());
        said.is_ok_and(|said| said.is_some_and(|said| said.is_ready && said.occupant == Occupant::Server))
    }

    /// Waits for a server to go away that a previous process left behind. The caller holds the lock, so none of this
    /// host's kind can come in the meantime.
    pub(super) fn wait_until_vacant(&self) -> Result<(), ClusterError> {
        let data = self.data();
        let deadline = Instant::now() + VACANT_WAIT;
        while let Some(PidFile { pid, occupant, .. }) = PidFile::read(&data)? {
            match occupant {
                Occupant::Nobody => break,
                Occupant::Server if Instant::now() >= deadline => {
                    return Err(ClusterError::StillRuns { dir: data, pid });
                }
                Occupant::Server => std::thread::sleep(POLL),
                // The number is another program's by now, as after a restart of a container. Postgres would take it
                // for a server; it finds what a real one left in shared memory without this file.
                Occupant::Stranger => {
                    let path = data.join(PidFile::NAME);
                    return fs::remove_file(&path).map_err(ClusterError::io("remove", &path));
                }
            }
        }
        Ok(())
    }

    /// Major version of the data, `None` if there is none yet.
    pub(super) fn version(&self) -> Result<Option<u32>, ClusterError> {
        let path = self.data().join("PG_VERSION");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let garbled = || io::Error::new(ErrorKind::InvalidData, format!("it says {text:?}"));
                let version = text.trim().parse().map_err(|_| garbled());
                version.map(Some).map_err(ClusterError::io("understand", &path))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ClusterError::io("read", &path)(error)),
        }
    }

    /// Makes the data directory: beside its place, then moved there, so that an interrupted one is never taken for
    /// a whole one.
    pub(super) fn initdb(&self, binaries: &Binaries, durability: Durability) -> Result<(), ClusterError> {
        let half_made = self.dir.join("data.new");
        match fs::remove_dir_all(&half_made) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ClusterError::io("remove", &half_made)(error));
            }
            _ => {}
        }
        let mut command = Command::new(binaries.initdb());
        command.arg("-D").arg(&half_made);
        // Whoever reaches the socket is let in; only the server's user and root reach it.
        command.args(["--username", super::NAME, "--auth", "trust"]);
        // One order of text on every machine, whatever its C library.
        command.args(["--encoding", "UTF8", "--locale", "C", "--no-instructions"]);
        if durability == Durability::Volatile {
            command.arg("--no-sync");
        }
        self.settle_process(&mut command);
        if let Account::Other { uid, gid } = self.account {
            command.uid(uid).gid(gid);
        }
        let output = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .map_err(ClusterError::io("run", binaries.initdb()))?;
        if !output.status.success() {
            let said = last_line(&output.stderr);
            return Err(ClusterError::Initdb { dir: self.data(), said });
        }
        fs::rename(&half_made, self.data())
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .map_err(ClusterError::io("make", self.data()))
    }

    /// A new log; the one of the last start is kept beside it.
    pub(super) fn fresh_log(&self) -> Result<File, ClusterError> {
        let path = self.log();
        match fs::rename(&path, self.dir.join("server.log.1")) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ClusterError::io("rename", &path)(error));
            }
            _ => {}
        }
        File::create(&path).map_err(ClusterError::io("write", &path))
    }

    /// What every program of Postgres gets: a directory that it may be in, and nothing of this process's environment,
    /// where secrets are and where `PG…` variables would have a say.
    pub(super) fn settle_process(&self, command: &mut Command) {
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.env_clear().env("LC_ALL", "C");
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
    }
}

/// What a server writes about itself into its data directory.
struct PidFile {
    pid: i32,
    is_ready: bool,
    occupant: Occupant,
}

impl PidFile {
    const NAME: &str = "postmaster.pid";

    /// `None` if there is none, or it is not whole.
    fn read(data: &Path) -> Result<Option<Self>, ClusterError> {
        let path = data.join(Self::NAME);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ClusterError::io("read", &path)(error)),
        };
        let mut lines = text.lines().map(str::trim);
        let Some(pid) = lines.next().and_then(|line| line.parse().ok()) else { return Ok(None) };
        // Seven lines later it says in what state it is.
        let is_ready = lines.nth(6) == Some("ready");
        Ok(Some(Self { pid, is_ready, occupant: Occupant::of(pid, data) }))
    }
}

/// What has the process number that a server left in its data directory.
#[derive(Debug, PartialEq, Eq)]
enum Occupant {
    /// No process, or one that Postgres does not take for a server either.
    Nobody,
    /// A server on this data, or something of which we cannot tell that it is not.
    Server,
    Stranger,
}

impl Occupant {
    fn of(pid: i32, data: &Path) -> Self {
        // A server on our data has our user.
        if let Err(Errno::ESRCH | Errno::EPERM) = kill(Pid::from_raw(pid), None) {
            return Self::Nobody;
        }
        // A server's working directory is its data directory. A zombie has none left to read.
        match fs::read_link(format!("/proc/{pid}/cwd")) {
            Ok(cwd) if cwd == data => Self::Server,
            Ok(_) => Self::Stranger,
            Err(error) if error.kind() == ErrorKind::NotFound && Path::new("/proc/self").exists() => {
                Self::Nobody
            }
            Err(_) => Self::Server,
        }
    }
}

/// Makes `dir` the private directory of `account`.
fn own(dir: &Path, account: Account) -> Result<(), ClusterError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(ClusterError::io("make the directory", dir)(error));
        }
        _ => {}
    }
    let Account::Other { uid, gid } = account else { return Ok(()) };
    let found = dir.metadata().map_err(ClusterError::io("look at", dir))?;
    if found.uid() == uid {
        return Ok(());
    }
    if !is_empty(dir)? {
        return Err(ClusterError::Occupied { dir: dir.to_owned() });
    }
    chown(dir, Some(uid), Some(gid)).map_err(ClusterError::io("change the owner of", dir))
}

/// Makes a home where every user can come, and a link to it where it was asked for.
fn make_elsewhere(requested: &Path) -> Result<PathBuf, ClusterError> {
    // Something is there that cannot be used and must not be thrown away.
    if requested.is_symlink() || (requested.exists() && !is_empty(requested)?) {
        return Err(ClusterError::Occupied { dir: requested.to_owned() });
    }
    fs::create_dir_all(ELSEWHERE)
        .and_then(|()| fs::set_permissions(ELSEWHERE, Permissions::from_mode(0o755)))
        .map_err(ClusterError::io("make the directory", ELSEWHERE))?;
    let dir = mkdtemp(&Path::new(ELSEWHERE).join("XXXXXX"))
        .map_err(|errno| ClusterError::io("make a directory in", ELSEWHERE)(errno.into()))?;
    match fs::remove_dir(requested) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(ClusterError::io("remove", requested)(error));
        }
        _ => {}
    }
    symlink(&dir, requested).map_err(ClusterError::io("make the link", requested))?;
    Ok(dir)
}

fn is_empty(dir: &Path) -> Result<bool, ClusterError> {
    let mut entries = fs::read_dir(dir).map_err(ClusterError::io("list", dir))?;
    Ok(entries.next().is_none())
}
