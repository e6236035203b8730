//! The private cluster, run by a process of its own that is then ended in every way that a host may end.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid, getpgid};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// Far above what any of this takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// A process that runs a cluster.
struct Host {
    process: Child,
    url: String,
}

impl Host {
    fn command(home: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil-test-cluster"));
        command.arg("--volatile").arg(home).env("COUNTERFOIL__SECRET", "canary");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(home: &Path) -> Self {
        Self::answering(Self::command(home).spawn().expect("the program runs"))
    }

    fn answering(mut process: Child) -> Self {
        let mut url = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("a line");
        if url.is_empty() {
            let mut said = String::new();
            let mut stderr = process.stderr.take().expect("a pipe");
            stderr.read_to_string(&mut said).expect("text");
            panic!("no cluster: {said}");
        }
        Self { process, url: url.trim_end().to_owned() }
    }

    /// One that is not meant to start.
    fn refused(home: &Path) -> String {
        let Output { status, stderr, .. } =
            Self::command(home).stdin(Stdio::null()).output().expect("the program runs");
        assert_eq!(status.code(), Some(1));
        String::from_utf8(stderr).expect("text").trim_end().to_owned()
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("the cluster answers")
    }

    /// As a host ends that is asked to.
    fn stop(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().expect("waited for");
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("waited for");
    }
}

/// A home where the server's user can come, also if this is root.
fn home() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("set");
    let home = dir.path().join("postgres");
    (dir, home)
}

fn server_of(home: &Path) -> Pid {
    let text = std::fs::read_to_string(home.join("data/postmaster.pid")).expect("a pid file");
    Pid::from_raw(text.lines().next().and_then(|line| line.parse().ok()).expect("a number"))
}

fn is_gone(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[tokio::test]
async fn however_a_host_ends_its_server_ends_and_what_was_committed_stays() {
    let (_dir, home) = home();
    let ends = [("stopped", Host::stop as fn(Host)), ("killed", Host::kill), ("killed", Host::kill)];
    for (ended_before, (end, perform)) in ends.into_iter().enumerate() {
        let host = Host::start(&home);
        let server = server_of(&home);
        let mut connection = host.connect().await;
        sqlx::raw_sql("CREATE TABLE IF NOT EXISTS kept (at_end text)")
            .execute(&mut connection)
            .await
            .expect("a table");
        let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM kept")
            .fetch_one(&mut connection)
            .await
            .expect("a count");
        assert_eq!(usize::try_from(kept), Ok(ended_before));
        sqlx::query("INSERT INTO kept VALUES ($1)").bind(end).execute(&mut connection).await.expect("a row");

        perform(host);
        eventually(&format!("the server ends when its host was {end}"), || is_gone(server));
    }
    Host::start(&home).stop();
}

#[test]
fn a_second_host_on_one_home_is_refused_and_told_of_the_first() {
    let (_dir, home) = home();
    let first = Host::start(&home);
    let (dir, pid) = (home.canonicalize().expect("a path"), first.process.id());
    assert_eq!(
        Host::refused(&home),
        format!(
            "{} is in use by another host (process {pid}): stop that one, or choose another data directory",
            dir.display()
        )
    );
    first.stop();
}

#[test]
fn a_host_waits_while_an_earlier_server_still_works_on_the_data() {
    let (_dir, home) = home();
    Host::start(&home).stop();
    // What tells a server: its number in the data directory, and that this is where it works.
    let data = home.join("data");
    let mut earlier = Command::new("sleep").arg("1d").current_dir(&data).spawn().expect("it runs");
    std::fs::write(data.join("postmaster.pid"), format!("{}\n", earlier.id())).expect("written");

    let mut next = Host::command(&home).spawn().expect("the program runs");
    let holder = format!("{}\n", next.id());
    eventually("the next host holds the home", || {
        std::fs::read_to_string(home.join("lock")).is_ok_and(|text| text == holder)
    });
    assert_eq!(next.try_wait().expect("looked at"), None);
    assert!(data.join("postmaster.pid").exists());
    earlier.kill().expect("killed");
    earlier.wait().expect("waited for");
    Host::answering(next).stop();
}

#[test]
fn the_server_has_neither_the_terminal_nor_the_secrets_of_its_host() {
    let (_dir, home) = home();
    let host = Host::start(&home);
    let server = server_of(&home);
    // In another group, Ctrl-C reaches the host alone.
    assert_eq!(getpgid(Some(server)), Ok(server));
    if cfg!(target_os = "linux") {
        let environment = std::fs::read(format!("/proc/{server}/environ")).expect("its environment");
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("LC_ALL=C"), "{environment:?}");
        assert!(!environment.contains("canary"), "{environment:?}");
    }
    host.stop();
}

#[tokio::test]
async fn a_home_too_deep_for_a_socket_has_it_elsewhere() {
    let (dir, _) = home();
    let home = dir.path().join("deep".repeat(30)).join("postgres");
    let mut urls = Vec::new();
    for _ in 0..2 {
        let host = Host::start(&home);
        host.connect().await.close().await.expect("closed");
        urls.push(host.url.clone());
        host.kill();
    }
    assert!(urls[0].contains("host=%2Ftmp%2Fcounterfoil-"), "{}", urls[0]);
    assert_eq!(urls[0], urls[1], "the place is used again");
    let socket_dir = std::fs::read_link(home.join("socket")).expect("a link");
    eventually("the server is gone", || {
        !home.join("data/postmaster.pid").exists() || is_gone(server_of(&home))
    });
    std::fs::remove_dir_all(socket_dir).expect("removed");
}

#[test]
fn as_root_a_home_that_the_server_cannot_reach_is_made_elsewhere_and_linked() {
    if !geteuid().is_root() {
        eprintln!("not root: every home is reached");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    // Only root enters.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("set");
    let home = dir.path().join("postgres");
    Host::start(&home).stop();
    let made = std::fs::read_link(&home).expect("a link");
    assert!(made.starts_with("/var/lib/counterfoil"), "{}", made.display());
    Host::start(&home).stop();
    assert_eq!(std::fs::read_link(&home).expect("a link"), made);

    // Deleted where it was made, it begins anew.
    std::fs::remove_dir_all(&made).expect("removed");
    Host::start(&home).stop();
    std::fs::remove_dir_all(&made).expect("removed");
}

#[test]
fn what_was_left_in_a_home_is_repaired_or_named() {
    let (_dir, home) = home();
    // An initdb that was interrupted.
    std::fs::create_dir_all(home.join("data.new")).expect("made");
    std::fs::write(home.join("data.new/half"), "").expect("written");
    if geteuid().is_root() {
        let dir = home.canonicalize().expect("a path");
        assert_eq!(
            Host::refused(&home),
            format!("{} is not empty and is no cluster's home: choose another data directory", dir.display()),
        );
        let nobody = nix::unistd::User::from_name("nobody").expect("users").expect("nobody");
        std::os::unix::fs::chown(&home, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw()))
            .expect("changed");
    }
    Host::start(&home).stop();

    // The number of a dead server, which has become that of another program.
    std::fs::write(home.join("data/postmaster.pid"), format!("{}\n", std::process::id())).expect("written");
    Host::start(&home).stop();

    std::fs::write(home.join("data/PG_VERSION"), "9\n").expect("written");
    let data = home.join("data").canonicalize().expect("a path");
    assert_eq!(
        Host::refused(&home),
        format!(
            "{} was made by Postgres 9, and no Postgres 9 was found: install that version, or choose another data \
             directory",
            data.display()
        )
    );
}

#[test]
fn without_postgres_one_line_says_what_to_install() {
    let (_dir, home) = home();
    if Path::new("/usr/lib/postgresql").exists() {
        // Found wherever the PATH points.
        let mut command = Host::command(&home);
        let process = command.env("PATH", "/nowhere").spawn().expect("the program runs");
        Host::answering(process).stop();
    }
    assert_eq!(
        counterfoil_store::cluster::ClusterError::NoBinaries.to_string(),
        "no Postgres of version 15 or newer was found: install its server (Debian and Ubuntu: `apt-get install \
         postgresql`; Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql@17`), or set DATABASE_URL"
    );
}
