//! The hosts: each comes up with a fate, meets it, and is followed by the next.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::api::Serving;
use super::log::{self, Said};
use super::plan::{Fate, Plan};
use crate::host::{Host, HostConfig};

/// A site that a host has not passed after so long is not on the way of its work; it is killed from outside.
const SITE_WAIT: Duration = Duration::from_millis(350);
/// The same for a host at a steady place.
const SITE_WAIT_STEADY: Duration = Duration::from_millis(2_500);
/// How long a thawed host may go on before it is killed.
const THAWED_FOR: Duration = Duration::from_millis(400);
/// Pause before another start, where the database was down.
const DATABASE_PAUSE: Duration = Duration::from_millis(100);

/// How a host ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By its own hand, at its site.
    AtSite,
    /// By ours.
    Outside,
    /// By ours, after it was frozen and thawed.
    Thawed,
    /// The database was not there when it started.
    NoDatabase,
    /// As we asked, when all was over.
    Told,
}

/// One host that was.
#[derive(Debug, Clone)]
pub(super) struct Incarnation {
    pub(super) name: Name,
    pub(super) fate: Fate,
    pub(super) ended: Ended,
    pub(super) said: Said,
}

/// The nth host at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    place: usize,
    n: u64,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.place, self.n)
    }
}

/// All hosts of a run.
pub(super) struct Fleet {
    config: HostConfig,
    plan: Plan,
    pub(super) serving: Serving,
    incarnations: Mutex<Vec<Incarnation>>,
    kills: watch::Sender<u64>,
    kills_wanted: u64,
    over: AtomicBool,
}

impl Fleet {
    pub(super) fn new(config: HostConfig, plan: Plan, kills_wanted: u64) -> Self {
        Self {
            config,
            plan,
            serving: Serving::default(),
            incarnations: Mutex::default(),
            kills: watch::Sender::new(0),
            kills_wanted,
            over: AtomicBool::new(false),
        }
    }

    /// Kills so far, and their changes.
    pub(super) fn kills(&self) -> watch::Receiver<u64> {
        self.kills.subscribe()
    }

    /// Every host that has ended.
    pub(super) fn incarnations(&self) -> Vec<Incarnation> {
        self.ended().clone()
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Incarnation>> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Keeps `hosts` hosts working until enough of them have been killed. One that is frozen has its place taken at once, so
    /// that it wakes among hosts that work.
    ///
    /// # Errors
    /// A host cannot be started, or ended in a way that none may.
    pub(super) async fn work(self: &Arc<Self>, hosts: usize) -> anyhow::Result<()> {
        let mut places = JoinSet::new();
        for place in 0..hosts {
            let fleet = Arc::clone(self);
            // Half of the hosts get work done while the others die.
            let is_steady = place < hosts / 2;
            places.spawn(async move {
                let mut frozen = JoinSet::new();
                for n in 0.. {
                    if fleet.is_over() {
                        break;
                    }
                    fleet.one(Name { place, n }, is_steady, &mut frozen).await?;
                }
                while let Some(thawed) = frozen.join_next().await {
                    thawed??;
                }
                anyhow::Ok(())
            });
        }
        while let Some(place) = places.join_next().await {
            place??;
        }
        Ok(())
    }

    async fn one(
        self: &Arc<Self>,
        name: Name,
        is_steady: bool,
        frozen: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let (fate, environment) = self.plan.fate(name.place, is_steady, name.n);
        let mut config = self.config.clone();
        config.environment.extend(environment);
        if let Fate::Site { site, nth } = fate {
            config = config.crashing_at(site, nth);
        }
        let mut host = Host::launch(&config, "")?;
        // It may meet its fate before it has said a word.
        let is_serving = host.is_serving().await?;
        if is_serving {
            self.serving.add(host.base());
        }
        let site_wait = if is_steady { SITE_WAIT_STEADY } else { SITE_WAIT };
        let ended = match fate {
            Fate::Site { .. } => {
                let by_itself = tokio::time::timeout(site_wait, self.ended_or_over(&mut host)).await;
                if by_itself.is_ok_and(|ended| ended) { Ended::AtSite } else { Ended::Outside }
            }
            Fate::Outside { after_ms } => {
                self.sleep_unless_over(Duration::from_millis(after_ms)).await;
                Ended::Outside
            }
            Fate::Freeze { after_ms, for_ms } => {
                self.sleep_unless_over(Duration::from_millis(after_ms)).await;
                if is_serving && !self.is_over() {
                    let fleet = Arc::clone(self);
                    frozen.spawn(async move { fleet.freeze(name, fate, host, for_ms).await });
                    return Ok(());
                }
                Ended::Outside
            }
        };
        self.end(name, fate, host, ended).await
    }

    /// Stops a host for longer than its leases last, and lets it go on for a while.
    async fn freeze(&self, name: Name, fate: Fate, host: Host, for_ms: u64) -> anyhow::Result<()> {
        self.serving.remove(host.base());
        // It may have ended by itself, where the database went away.
        if host.signal(Signal::SIGSTOP).is_ok() {
            tokio::time::sleep(Duration::from_millis(for_ms)).await;
            host.signal(Signal::SIGCONT)?;
            self.serving.add(host.base());
            tokio::time::sleep(THAWED_FOR).await;
        }
        self.end(name, fate, host, Ended::Thawed).await
    }

    /// True when the host has ended, false when all is over first.
    async fn ended_or_over(&self, host: &mut Host) -> bool {
        let mut kills = self.kills();
        tokio::select! {
            _ = host.ended() => true,
            _ = kills.wait_for(|kills| *kills >= self.kills_wanted) => false,
        }
    }

    async fn sleep_unless_over(&self, pause: Duration) {
        let mut kills = self.kills();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = kills.wait_for(|kills| *kills >= self.kills_wanted) => {}
        }
    }

    /// Ends a host, where it has not ended, and keeps what it said.
    async fn end(&self, name: Name, fate: Fate, mut host: Host, mut ended: Ended) -> anyhow::Result<()> {
        self.serving.remove(host.base());
        let is_told = self.is_over() || *self.kills.borrow() >= self.kills_wanted;
        if is_told && ended != Ended::AtSite {
            ended = Ended::Told;
        }
        let signal = if ended == Ended::Told { Signal::SIGTERM } else { Signal::SIGKILL };
        // What has ended cannot be sent a signal.
        let _ = host.signal(signal);
        let status = host.ended().await?;
        let said = log::read(host.log_path())?;
        if status.signal() == Some(Signal::SIGKILL as i32) {
            let armed = matches!(fate, Fate::Site { .. });
            if ended == Ended::Told && armed {
                ended = Ended::AtSite;
            }
            self.count_kill();
        } else if status.code().is_some_and(|code| code != 0) && said.database_is_gone {
            ended = Ended::NoDatabase;
            tokio::time::sleep(DATABASE_PAUSE).await;
        } else if !(ended == Ended::Told
            && (status.success() || status.signal() == Some(Signal::SIGTERM as i32)))
        {
            anyhow::bail!("host {name} ({fate}) ended by itself with {status}:\n{}", host.log());
        }
        std::fs::remove_file(host.log_path()).context("removing the log of a host")?;
        self.ended().push(Incarnation { name, fate, ended, said });
        Ok(())
    }

    fn count_kill(&self) {
        self.kills.send_modify(|kills| *kills += 1);
        if *self.kills.borrow() >= self.kills_wanted {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// Starts `hosts` hosts that nothing happens to.
    ///
    /// # Errors
    /// One does not come up.
    pub(super) async fn healthy(&self, hosts: usize) -> anyhow::Result<Vec<Host>> {
        let mut healthy = vec![];
        for _ in 0..hosts {
            let host = Host::start(&self.config, "").await?;
            self.serving.add(host.base());
            healthy.push(host);
        }
        Ok(healthy)
    }

    /// Ends hosts that nothing happened to.
    ///
    /// # Errors
    /// One did not end as it was told.
    pub(super) async fn dismiss(&self, hosts: Vec<Host>) -> anyhow::Result<Said> {
        let mut said = Said::default();
        for mut host in hosts {
            self.serving.remove(host.base());
            host.signal(Signal::SIGTERM)?;
            let begun = Instant::now();
            let code = host.wait_for_exit().await?;
            anyhow::ensure!(
                code == 0,
                "a host ended with {code} after {:?}:\n{}",
                begun.elapsed(),
                host.log()
            );
            said.add(&log::read(host.log_path())?);
        }
        Ok(said)
    }
}
