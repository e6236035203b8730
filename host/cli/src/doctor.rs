//! `counterfoil doctor`: looks at everything a host needs, and stops at nothing.

mod hosts;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use counterfoil_effects::secrets::{KeyFileError, KeyRing};
use counterfoil_sandbox::{can_forbid_system_calls, pooled_slots_max};
use counterfoil_store::cluster::{Cluster, ClusterConfig, ClusterError, Durability, Launcher, Shutdown};
use counterfoil_store::{Store, StoreError};
use serde::Serialize;
use serde_json::json;

use self::hosts::{commands_host, host, host_url};
use crate::args::Global;
use crate::config::{Config, Flags, Purpose, Read};
use crate::data::DevFile;
use crate::database::Database;
use crate::exit::{Exit, Failure};
use crate::output::{Column, Output, table};
use crate::progress::Progress;
use crate::secret;

/// Lease times are the database's, but ids and certificates are judged by this machine's clock.
const SKEW_MS_MAX: i64 = 2_000;

/// What a look found.
#[derive(Debug, Serialize)]
struct Check {
    subject: &'static str,
    state: State,
    detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Fine,
    Note,
    Fault,
}

const SETTINGS: &[Column] =
    &[Column::plain("setting", "/key"), Column::plain("value", "/value"), Column::plain("from", "/origin")];

pub(crate) async fn run(global: &Global, output: Output) -> anyhow::Result<Exit> {
    let mut read = Read::new(Flags::of(global), Purpose::Command);
    // Where a `dev` has been, on the database that is configured here, what it reads differently is told as it reads it.
    let url = read.config().database.url.as_ref();
    let dev = DevFile::read(&read.config().data).ok().flatten();
    let dev = dev.filter(|dev| url.is_none_or(|url| *url == dev.database_url));
    if dev.is_some() {
        read = Read::new(Flags::of(global), Purpose::Development);
    }
    let progress = Progress::new("looking at the configuration, the database and the machine");
    let config = read.config();
    let mut checks: Vec<Check> =
        read.findings.iter().map(|finding| fault("configuration", finding.to_string())).collect();
    if checks.is_empty() {
        checks.push(fine("configuration", "nothing is wrong with it"));
    }
    checks.push(host(config, dev.as_ref()).await);
    if let Some(url) = global.url()?.filter(|url| Some(url) != host_url(config, dev.as_ref()).as_ref()) {
        checks.push(commands_host(&url).await);
    }
    checks.push(pepper(config));
    checks.push(secret_keys(config));
    checks.push(directory("data directory", &config.data.dir));
    checks.push(directory("compiled blocks", &config.data.blocks_dir()));
    checks.push(slots(config));
    checks.push(guests(config));
    checks.extend(database(config).await);
    drop(progress);

    let faults = checks.iter().filter(|check| check.state == State::Fault).count();
    let document = json!({ "healthy": faults == 0, "checks": checks, "settings": read.settings });
    output.show(&document, || text(&document, &checks))?;
    Ok(if faults == 0 { Exit::Ok } else { Exit::Error })
}

fn text(document: &serde_json::Value, checks: &[Check]) -> String {
    let settings = document["settings"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = table(SETTINGS, settings);
    text.push('\n');
    for Check { subject, state, detail } in checks {
        let sign = match state {
            State::Fine => "✓",
            State::Note => "·",
            State::Fault => "✗",
        };
        // Writing to a text cannot fail.
        let _ = write!(text, "\n{sign} {subject}: {detail}");
    }
    text
}

fn fine(subject: &'static str, detail: impl Into<String>) -> Check {
    Check { subject, state: State::Fine, detail: detail.into() }
}

fn note(subject: &'static str, detail: impl Into<String>) -> Check {
    Check { subject, state: State::Note, detail: detail.into() }
}

fn fault(subject: &'static str, detail: impl Into<String>) -> Check {
    Check { subject, state: State::Fault, detail: detail.into() }
}

fn pepper(config: &Config) -> Check {
    match &config.secrets.pepper {
        Some(_) => fine("pepper", "there is one"),
        None => {
            note("pepper", "none yet: `counterfoil dev` makes one, `counterfoil serve` must be given one")
        }
    }
}

fn secret_keys(config: &Config) -> Check {
    const SUBJECT: &str = "secret keys";
    match KeyRing::read(&config.secrets.keys_file) {
        Ok(ring) if is_open_to_others(&config.secrets.keys_file) => note(
            SUBJECT,
            format!(
                "{}, the first is {}; other users of this machine can read {}: chmod 600",
                ring.ids().count(),
                ring.first_id(),
                config.secrets.keys_file.display()
            ),
        ),
        Ok(ring) => fine(SUBJECT, format!("{}, the first is {}", ring.ids().count(), ring.first_id())),
        Err(KeyFileError::Missing(file)) => note(
            SUBJECT,
            format!(
                "there is no {}: connections can have no secrets until `counterfoil secret add-key`, or `dev`, makes it",
                file.display()
            ),
        ),
        Err(error) => fault(SUBJECT, format!("{:#}", anyhow::Error::from(error))),
    }
}

fn is_open_to_others(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o007 != 0)
}

/// Whether files can be made in `dir`, or in the first directory above it that is there.
fn directory(subject: &'static str, dir: &Path) -> Check {
    let Some(present) = dir.ancestors().find(|ancestor| ancestor.exists()) else {
        return fault(subject, format!("{} is nowhere", dir.display()));
    };
    let probe = present.join(format!(".counterfoil-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, "x").and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) if present == dir => fine(subject, format!("{} can be written", dir.display())),
        Ok(()) => note(subject, format!("{} does not exist; a host makes it", dir.display())),
        Err(error) => fault(subject, format!("{} cannot be written: {error}", present.display())),
    }
}

/// The sandbox needs memory mappings for each step in flight.
fn slots(config: &Config) -> Check {
    const SUBJECT: &str = "steps in flight";
    let wanted = config.engine.in_flight_max;
    let processes = config.engine.runners.max(1);
    match pooled_slots_max() {
        Some(slots_max) if wanted.div_ceil(processes) >= slots_max => fault(
            SUBJECT,
            format!(
                "{wanted} need more memory mappings than this machine allows {processes} processes (room for {slots_max} \
                 each): lower COUNTERFOIL__ENGINE__IN_FLIGHT_MAX, or raise `sysctl vm.max_map_count`"
            ),
        ),
        _ => fine(SUBJECT, format!("there is room for {wanted}")),
    }
}

/// What stands between a guest that breaks out of its sandbox and this machine.
fn guests(config: &Config) -> Check {
    const SUBJECT: &str = "blocks";
    match config.engine.runners {
        0 => note(
            SUBJECT,
            "they run in the host's own process: one that breaks out of the sandbox, or takes its process down, has the \
             host (COUNTERFOIL__ENGINE__RUNNERS)",
        ),
        runners if can_forbid_system_calls() => fine(
            SUBJECT,
            format!(
                "they run in {runners} processes that can open no file and no connection (seccomp); compilers likewise"
            ),
        ),
        runners => note(
            SUBJECT,
            format!(
                "they run in {runners} processes, but this kernel has no seccomp: one that breaks out of the sandbox can \
                 make system calls as the host's user; compilers likewise"
            ),
        ),
    }
}

async fn database(config: &Config) -> Vec<Check> {
    if !Database::exists(config) {
        return vec![throwaway_cluster().await];
    }
    match connected(config).await {
        Ok(checks) => checks,
        Err(error) if matches!(error.downcast_ref(), Some(ClusterError::InUse { .. })) => {
            vec![note("database", format!("{error}: it cannot be looked into from here"))]
        }
        Err(error) => {
            let why = error.downcast_ref().map_or_else(|| format!("{error:#}"), Failure::in_a_line);
            vec![fault("database", why)]
        }
    }
}

async fn connected(config: &Config) -> anyhow::Result<Vec<Check>> {
    let database = Database::open_beside(config).await?;
    let store = database.connect_quietly().await?;
    let before = Utc::now();
    let theirs = store.ping().await?;
    let skew_ms = (theirs - before).num_milliseconds();
    let mut checks = vec![fine("database", "it answers")];
    checks.push(if skew_ms.abs() <= SKEW_MS_MAX {
        fine("clocks", format!("this machine's and the database's are {} ms apart", skew_ms.abs()))
    } else {
        fault("clocks", format!("this machine's and the database's are {skew_ms} ms apart: set them by NTP"))
    });
    let tables = tables(&store).await;
    let are_there = tables.state != State::Fault;
    checks.push(tables);
    if are_there {
        checks.extend(sealed_secrets(config, &store).await);
        checks.extend(retention(config, &store).await);
    }
    drop(store);
    database.close().await?;
    Ok(checks)
}

async fn tables(store: &Store) -> Check {
    const SUBJECT: &str = "tables";
    let looked: Result<_, StoreError> =
        async { Ok((store.has_its_tables().await?, store.is_migrated().await?)) }.await;
    match looked {
        Ok((true, true)) => fine(SUBJECT, "up to date"),
        Ok((true, false)) => {
            note(SUBJECT, "those of a newer version than this program; its hosts go on with their own")
        }
        Ok((false, _)) => {
            fault(SUBJECT, "not up to date, so that no host of this version serves: counterfoil migrate")
        }
        Err(error) => fault(SUBJECT, format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Whether the secrets in the database open with the keys of this host. A damaged file is told of elsewhere.
async fn sealed_secrets(config: &Config, store: &Store) -> Option<Check> {
    const SUBJECT: &str = "sealed secrets";
    let file = &config.secrets.keys_file;
    let missing = secret::missing_keys(file, store).await.ok()?;
    Some(if missing.keys.is_empty() {
        fine(SUBJECT, "the keys to all of them are here")
    } else {
        let keys = missing.keys.join(", ");
        fault(
            SUBJECT,
            format!(
                "some are sealed with {keys}, not in {}: copy it from another host of this database",
                file.display()
            ),
        )
    })
}

/// How long finished runs are kept, and how far behind the hosts are with forgetting what is past its time. Tables that are missing are told of elsewhere.
async fn retention(config: &Config, store: &Store) -> Option<Check> {
    const SUBJECT: &str = "finished runs";
    /// Of walks that are made every ten minutes.
    const LAG_MAX: Duration = Duration::from_hours(1);
    let kept = config.retention.finished_runs.map_or_else(
        || "kept for ever, but where a tenant has a time of its own".to_owned(),
        |days| format!("kept for {days} days, or a time of a tenant's own"),
    );
    Some(match store.retention_lag().await.ok()? {
        None => fine(SUBJECT, kept),
        Some(lag) if lag > LAG_MAX => {
            let hours = lag.as_secs() / 3_600;
            note(
                SUBJECT,
                format!("{kept}; hosts are {hours} hours behind in forgetting what is past its time"),
            )
        }
        Some(lag) => {
            let minutes = lag.as_secs() / 60;
            fine(SUBJECT, format!("{kept}; what was past its time {minutes} minutes ago is gone"))
        }
    })
}

/// No host has run here yet: whether its own Postgres would start is shown by starting one.
async fn throwaway_cluster() -> Check {
    const SUBJECT: &str = "database";
    let started = async {
        let dir = tempfile::tempdir()?;
        let config = ClusterConfig {
            dir: dir.path().join("postgres"),
            launcher: Launcher::this_program()?,
            durability: Durability::Volatile,
        };
        let cluster = Cluster::start(config).await?;
        let version = cluster.version();
        // As root it may have found a place of its own, to which the directory only links.
        let home = cluster.dir().to_owned();
        cluster.stop(Shutdown::Immediate).await?;
        std::fs::remove_dir_all(home)?;
        anyhow::Ok(version)
    };
    match started.await {
        Ok(version) => fine(SUBJECT, format!("none yet; a Postgres {version} of its own starts here")),
        Err(error) => fault(SUBJECT, format!("{error:#}")),
    }
}
