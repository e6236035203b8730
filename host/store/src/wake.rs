//! Wake-ups: a hint that steps or events may be due, and whose, so that nobody has to wait for the next poll.
//!
//! In this process they go through a channel. Other processes hear of them by NOTIFY, which is sent from a connection of
//! its own, outside every transaction that does work, and at most once in [`NOTIFY_INTERVAL`]: a NOTIFY inside a commit
//! makes all commits wait for one another. Everything is right with every wake-up lost.

mod mark;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::TenantId;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection as _, PgConnection, PgPool};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use self::mark::Mark;
pub use self::mark::{Marked, Marks};
use crate::admission::Admission;
use crate::step::Wait;
use crate::{Store, StoreError};

const CHANNEL: &str = "counterfoil";
/// Long enough that a busy host sends few, short enough that a person does not notice.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(20);
/// The first wait before the connection is made anew; each further one is twice as long.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(200);
/// A database that is down, or ends each connection at once, is not helped by being asked all the time.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(30);
/// Marks that a slow reader may be behind; beyond them it is told that everybody may have work.
const MARKS_KEPT: usize = 4_096;

/// Hears of wake-ups.
#[derive(Debug, Clone)]
pub struct Wakes(watch::Receiver<()>);

impl Wakes {
    /// Returns when there has been a wake-up since the last call, or since this was made. Never returns if the store is
    /// gone.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The sending side: channels for everybody here, and what the other processes must hear of.
#[derive(Debug)]
pub(crate) struct Waker {
    here: watch::Sender<()>,
    marks: broadcast::Sender<Mark>,
    elsewhere: watch::Sender<()>,
    unsent: Mutex<Marked>,
    /// By which a process knows its own notifications.
    process: Uuid,
}

impl Waker {
    pub(crate) fn new() -> Self {
        Self {
            here: watch::Sender::new(()),
            marks: broadcast::Sender::new(MARKS_KEPT),
            elsewhere: watch::Sender::new(()),
            unsent: Mutex::default(),
            process: Uuid::now_v7(),
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Marked> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, mark: Option<Mark>) {
        if let Some(mark) = mark {
            self.unsent().add(mark);
            // Nobody here may claim, and then nobody has to hear.
            let _ = self.marks.send(mark);
        }
        self.here.send_replace(());
        self.elsewhere.send_replace(());
    }

    fn tell_here(&self, marked: &Marked) {
        for mark in marked.marks() {
            let _ = self.marks.send(mark);
        }
        self.here.send_replace(());
    }
}

impl Store {
    /// Says that anybody's steps or events may be due.
    pub fn wake(&self) {
        self.inner.waker.tell(Some(Mark::All));
    }

    /// Says that events may be pending.
    pub(crate) fn wake_outbox(&self) {
        self.inner.waker.tell(None);
    }

    /// Says that steps of a tenant are due, or will be.
    pub(crate) fn wake_tenant(&self, tenant: TenantId) {
        self.inner.waker.tell(Some(Mark::Tenant(tenant)));
    }

    /// Says what an admission has opened.
    pub(crate) fn wake_admitted(&self, admission: &Admission) {
        let Admission { tenant, workflow, open, .. } = admission;
        if open.is_empty() {
            return;
        }
        let is_ready = open.iter().all(|step| step.wait == Wait::Ready && step.delay.is_zero());
        let queue = Queue { tenant: *tenant, workflow: *workflow };
        self.inner.waker.tell(Some(if is_ready { Mark::Queue(queue) } else { Mark::Tenant(*tenant) }));
    }

    /// Hears of every wake-up from now on.
    pub fn wakes(&self) -> Wakes {
        Wakes(self.inner.waker.here.subscribe())
    }

    /// Hears from now on whose steps may be due.
    pub fn marks(&self) -> Marks {
        Marks::new(self.inner.waker.marks.subscribe())
    }

    /// Carries wake-ups between processes until `cancel`. Without it each process lives by its own and by polling.
    pub async fn listen(&self, cancel: CancellationToken) {
        let mut delay = RECONNECT_DELAY_MIN;
        loop {
            let begun = Instant::now();
            let Err(error) = self.listen_once(&cancel).await else { return };
            // Only one that lasted says that all is well again.
            if begun.elapsed() > RECONNECT_DELAY_MAX {
                delay = RECONNECT_DELAY_MIN;
            }
            warn!(%error, ?delay, "lost the connection for wake-ups; polling meanwhile");
            if cancel.run_until_cancelled(tokio::time::sleep(delay)).await.is_none() {
                return;
            }
            delay = RECONNECT_DELAY_MAX.min(delay * 2);
        }
    }

    /// Until it is cancelled.
    async fn listen_once(&self, cancel: &CancellationToken) -> Result<(), StoreError> {
        let Some(connected) = cancel.run_until_cancelled(self.connect_for_wake_ups()).await else {
            return Ok(());
        };
        let (own, mut listener, mut notifier) = connected?;
        debug!("listening for wake-ups");
        // What was said while nobody listened is unknown.
        self.inner.waker.tell_here(&Marked::everybody());
        let Err(failed) = tokio::select! {
            () = cancel.cancelled() => {
                // Left to itself, it would say goodbye to a server that may be gone by then.
                drop(listener);
                own.close().await;
                return Ok(notifier.close().await?);
            }
            failed = self.receive(&mut listener) => failed,
            failed = self.send(&mut notifier) => failed,
        };
        Err(failed)
    }

    async fn connect_for_wake_ups(&self) -> Result<(PgPool, PgListener, PgConnection), StoreError> {
        // The listener keeps its connection; one of the pool's would be missed there.
        let own = PgPoolOptions::new().max_connections(1).connect_with(self.inner.options.clone()).await?;
        let mut listener = PgListener::connect_with(&own).await?;
        // It would make the connection anew by itself, as often as it is lost.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        let notifier = self.inner.options.connect().await?;
        Ok((own, listener, notifier))
    }

    async fn receive(&self, listener: &mut PgListener) -> Result<std::convert::Infallible, StoreError> {
        let own = self.inner.waker.process.to_string();
        loop {
            let notification = listener.try_recv().await?.ok_or_else(closed)?;
            match notification.payload().split_once(' ') {
                Some((process, marked)) if process != own => {
                    self.inner.waker.tell_here(&Marked::from_text(marked));
                }
                Some(_) => {}
                None => self.inner.waker.tell_here(&Marked::everybody()),
            }
        }
    }

    async fn send(&self, notifier: &mut PgConnection) -> Result<std::convert::Infallible, StoreError> {
        let waker = &self.inner.waker;
        let mut elsewhere = waker.elsewhere.subscribe();
        loop {
            if elsewhere.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let marked = std::mem::take(&mut *waker.unsent());
            let payload = format!("{} {}", waker.process, marked.to_text());
            sqlx::query!("SELECT pg_notify($1, $2)", CHANNEL, payload).execute(&mut *notifier).await?;
            tokio::time::sleep(NOTIFY_INTERVAL).await;
        }
    }
}

/// The other side ended the connection.
fn closed() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())
}
