//! Every SQL statement, every lock, every fence.
//!
//! A function takes a value and gives one verdict; only this room opens transactions. Every statement begins with the
//! tenant, so that another tenant's id finds what an id finds that does not exist.
//!
//! Locks are taken in one order: the row in `open_runs`, the open step, its receipts, stored values by key. Whoever changes which steps a run
//! has open takes the first; whoever ends an execution of a step, or settles what was unknown, takes the second before
//! it looks at the third.

#![warn(missing_docs)]

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::ports::Faults;
use counterfoil_domain::receipt::Transition;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection as _, PgPool};
use tokio::runtime::{self, Handle};

pub mod admission;
pub mod audit;
pub mod block;
pub mod cluster;
pub mod connection;
pub mod container;
mod error;
pub mod event;
mod gather;
pub mod idempotency;
pub mod key;
pub mod metrics;
mod migrate;
pub mod page;
pub mod receipt;
pub mod retention;
pub mod run;
pub mod settle;
pub mod share;
pub mod step;
mod stored;
pub mod tenant;
pub mod timeline;
mod transaction;
mod value;
pub mod verification;
pub mod waiting;
pub mod wake;
pub mod worker;
pub mod workflow;

pub use self::error::StoreError;
pub use self::page::Page;

use self::admission::Refusal;
use self::gather::Gather;
use self::receipt::{Flushed, Wanted};
use self::settle::{Answered, Settlement, Together};
use self::wake::Waker;

/// Longest that one statement may take: the longest of ours takes milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest that one statement may wait for a lock. Shorter than a lease, so that an owner hears of it in time.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A transaction that says nothing for so long belongs to a host that is frozen; what it holds is let go.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest that a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is tried before it is handed out.
const IDLE_UNTESTED_MAX: Duration = Duration::from_secs(1);
/// Claims are one statement at a time; the second is for a neighbour in the same process.
const CLAIM_CONNECTIONS_MAX: u32 = 2;
/// Lists are for people, and must not take the connections that work needs.
const READ_CONNECTIONS_MAX: u32 = 4;

/// How to reach the database.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `postgres://…`, of a direct connection.
    pub url: String,
    /// Connections to work with at most, beside the few for claims, for lists and for wake-ups.
    pub connections_max: u32,
}

/// The database. Clones share everything.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    lane: Lane,
    /// The lane of another runtime, for what is not to wait for all that this one has to do.
    other: OnceLock<(runtime::Id, Lane)>,
    /// Its commits do not wait for the disk: a claim that a crash of the database forgets is an expired lease, a call that
    /// it forgets to count is one of those within the last second, and an event that it forgets to be published is admitted
    /// once more, to the runs that it has started.
    claims: PgPool,
    /// For lists, whose best plan depends on the filters that are given.
    reads: PgPool,
    options: PgConnectOptions,
    planned: PgConnectOptions,
    faults: Arc<dyn Faults>,
    waker: Waker,
    keeping: admission::Keeping,
}

/// Connections to work with, and the writers that share them. They live on one runtime: what waits for a connection waits for
/// everything that its runtime has to do.
struct Lane {
    pool: PgPool,
    connections: Gather<connection::Named, connection::Read>,
    admissions: Gather<admission::Wanted, admission::Together>,
    refusals: Gather<Vec<Refusal>, bool>,
    dispatches: Gather<Wanted, Flushed>,
    answers: Gather<Transition, Answered>,
    settlements: Gather<Settlement, Together>,
}

/// Why no connection came about: whoever waits for one from a pool is not told.
async fn why_unreachable(options: &PgConnectOptions) -> StoreError {
    match tokio::time::timeout(ACQUIRE_TIMEOUT, options.connect()).await {
        Ok(Err(error)) => StoreError::Unreachable(error),
        // It may have come up this very moment, but nobody waits any more.
        Ok(Ok(_)) | Err(_) => StoreError::Silent(ACQUIRE_TIMEOUT),
    }
}

impl Lane {
    /// On the runtime that this is called on.
    fn start(pool: PgPool, faults: &Arc<dyn Faults>) -> Self {
        Self {
            dispatches: Gather::start(receipt::flush_dispatches(pool.clone())),
            answers: Gather::start(settle::flush_answers(pool.clone())),
            settlements: Gather::start(settle::flush_settlements(pool.clone(), Arc::clone(faults))),
            connections: Gather::start(connection::flush_reads(pool.clone())),
            admissions: Gather::start(admission::flush_admissions(pool.clone(), Arc::clone(faults))),
            refusals: Gather::start(admission::flush_refusals(pool.clone())),
            pool,
        }
    }
}

/// Connections that are made when they are needed.
fn pool(connections_max: u32) -> PgPoolOptions {
    // A connection is looked at when it comes back; to look again each time it goes out doubles the cost of a statement. One
    // that has been idle may have been ended by the other side meanwhile.
    PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(|connection, idle| {
            Box::pin(async move {
                if idle.idle_for > IDLE_UNTESTED_MAX {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Connects, and holds every connection to the time limits above.
    pub async fn connect(config: StoreConfig, faults: Arc<dyn Faults>) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(&config.url)?
            .application_name("counterfoil")
            .disable_statement_logging();
        let limited = options.clone().options([
            ("statement_timeout", STATEMENT_TIMEOUT.as_millis().to_string()),
            ("lock_timeout", LOCK_TIMEOUT.as_millis().to_string()),
            ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT.as_millis().to_string()),
            // Compiling a plan takes longer than the longest of ours runs.
            ("jit", "off".into()),
        ]);
        // Planned once a connection. Left to itself the database plans most of ours each time, since it takes an array
        // that it sees for smaller than one that it does not.
        let planned = limited.clone().options([
            ("plan_cache_mode", "force_generic_plan"),
            // A plan outlives what was known when it was made: a table that was small is read whole for ever.
            ("enable_seqscan", "off"),
        ]);
        let claims = planned.clone().options([("synchronous_commit", "off")]);
        let writers = match pool(config.connections_max).connect_with(planned.clone()).await {
            Err(sqlx::Error::PoolTimedOut) => return Err(why_unreachable(&limited).await),
            connected => connected.map_err(StoreError::Unreachable)?,
        };
        let inner = Inner {
            lane: Lane::start(writers, &faults),
            other: OnceLock::new(),
            claims: pool(CLAIM_CONNECTIONS_MAX).connect_lazy_with(claims),
            reads: pool(READ_CONNECTIONS_MAX).connect_lazy_with(limited),
            options,
            planned,
            faults,
            waker: Waker::new(),
            keeping: admission::Keeping::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// From now on what comes from the runtime that this is called on has so many connections, and writers, of its own. Only
    /// one runtime can have them beside the one that this store was made on.
    pub fn open_lane(&self, connections_max: u32) {
        let Inner { other, planned, faults, .. } = &*self.inner;
        let runtime = Handle::current().id();
        other.get_or_init(|| {
            (runtime, Lane::start(pool(connections_max).connect_lazy_with(planned.clone()), faults))
        });
    }

    fn lane(&self) -> &Lane {
        match self.inner.other.get() {
            Some((runtime, lane)) if Handle::try_current().is_ok_and(|here| here.id() == *runtime) => lane,
            _ => &self.inner.lane,
        }
    }

    /// The database's clock, if it answers.
    pub async fn ping(&self) -> Result<DateTime<Utc>, StoreError> {
        let now = sqlx::query_scalar!(r#"SELECT now() AS "now!""#).fetch_one(self.pool()).await?;
        Ok(now)
    }

    /// Closes every connection, once what is under way has ended.
    pub async fn close(&self) {
        self.inner.lane.pool.close().await;
        if let Some((_, lane)) = self.inner.other.get() {
            lane.pool.close().await;
        }
        self.inner.claims.close().await;
        self.inner.reads.close().await;
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.lane().pool
    }

    pub(crate) fn reads(&self) -> &PgPool {
        &self.inner.reads
    }
}
