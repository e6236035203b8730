//! The connection that a call goes through: what it declares, its secrets, and the room within its rate.
//!
//! A call is judged by the connection as it was last read, which costs no look at the database; that it is still so, the
//! dispatch itself finds out. Whatever does not end in a dispatch is judged by the connection as it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_domain::connection::Abilities;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::step::Stop;
use counterfoil_store::connection::{Connection, Room};

use super::place::Place;
use super::{Inner, database};
use crate::execution::Execution;
use crate::secrets::Opened;

/// A step that waits longer looks in between, so that a rate which is declared anew is felt.
const LOOK_EVERY: Duration = Duration::from_mins(5);

/// Longest wait with a sandbox held: a few calls at a rate of one a second, and a part of the time for an asking.
const WAIT_MS_MAX: u64 = 5_000;

/// Connections kept in memory.
const KEPT_MAX: usize = 1_000;

/// A connection as it was read.
pub(crate) struct Known {
    pub(crate) connection: Connection,
    pub(crate) abilities: Abilities,
}

/// Connections as they were read last, by tenant and name.
#[derive(Default)]
pub(super) struct Connections(Mutex<HashMap<TenantId, HashMap<String, Arc<Known>>>>);

/// Which connection a call is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The one that was read last.
    Last,
    /// The one that is there now.
    Now,
}

/// A connection, read and opened for one call.
pub(super) struct Through {
    pub(super) known: Arc<Known>,
    pub(super) secrets: Opened,
    /// Whether it was read for this call.
    pub(super) by: By,
}

impl Connections {
    fn kept(&self) -> MutexGuard<'_, HashMap<TenantId, HashMap<String, Arc<Known>>>> {
        // Every value is whole by itself, whatever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self, tenant: TenantId, name: &str) -> Option<Arc<Known>> {
        self.kept().get(&tenant)?.get(name).cloned()
    }

    fn keep(&self, tenant: TenantId, known: &Arc<Known>) {
        let mut kept = self.kept();
        if kept.values().map(HashMap::len).sum::<usize>() >= KEPT_MAX {
            kept.clear();
        }
        kept.entry(tenant).or_default().insert(known.connection.name.clone(), Arc::clone(known));
    }
}

/// What limits the calls through a connection, with its name; each is asked for once a call.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Limits<'a> {
    /// It has a rate.
    pub(super) rate: Option<&'a str>,
    /// Calls that may be under way at once.
    pub(super) in_flight: Option<(&'a str, u32)>,
}

impl Inner {
    /// Takes a place among the calls that may be under way, if they are limited.
    pub(super) fn take_place(
        &self,
        execution: &Execution,
        limits: &mut Limits<'_>,
    ) -> Result<Option<Place>, Stop> {
        let Some((connection, most)) = limits.in_flight.take() else { return Ok(None) };
        let tenant = execution.context.fence.tenant;
        match self.places.take(tenant, connection, most, Instant::now()) {
            Ok(place) => Ok(Some(place)),
            Err(wait) => Err(no_room(wait)),
        }
    }

    /// Takes a place among the calls under way, and room within the rate, where they are limited.
    pub(super) async fn take_room_and_place(
        &self,
        execution: &Execution,
        limits: &mut Limits<'_>,
    ) -> Result<Option<Place>, Stop> {
        // The place first: it is given back, and room within a rate is not.
        let place = self.take_place(execution, limits)?;
        if let Some(connection) = limits.rate.take() {
            self.take_room(execution, connection).await?;
        }
        Ok(place)
    }

    /// A connection to judge a call by. None if the tenant has none of that name.
    pub(super) async fn through(
        &self,
        tenant: TenantId,
        name: &str,
        by: By,
    ) -> Result<Option<Through>, Stop> {
        if by == By::Last
            && let Some(known) = self.connections.last(tenant, name)
            // Sealed with a key that is gone meanwhile, they are sealed anew by now.
            && let Ok(secrets) = self.secrets.open(tenant, &known.connection)
        {
            return Ok(Some(Through { known, secrets, by: By::Last }));
        }
        let found = self.store.connection(tenant, name).await.map_err(database)?;
        let Some(connection) = found else { return Ok(None) };
        let abilities =
            serde_json::from_value(connection.abilities.clone()).map_err(|error| Stop::Database {
                message: format!("the abilities of connection `{name}` cannot be read: {error}"),
            })?;
        let secrets = self.secrets.open(tenant, &connection).map_err(|error| {
            // The call waits for the operator: without its secrets it would be another one, and be refused at best.
            tracing::error!(
                %tenant, connection = name, error = &error as &dyn std::error::Error,
                "the secrets of a connection do not open, and its calls wait"
            );
            Stop::Database { message: format!("the secrets of connection `{name}` do not open") }
        })?;
        let known = Arc::new(Known { connection, abilities });
        self.connections.keep(tenant, &known);
        Ok(Some(Through { known, secrets, by: By::Now }))
    }

    /// Takes room for one call of an execution that cannot come back for its turn, and waits for it here if that is not
    /// long: its place in the queue is kept all the same.
    pub(super) async fn wait_for_room(&self, execution: &Execution, connection: &str) -> Result<(), Stop> {
        match self.take_room(execution, connection).await {
            Err(Stop::NoRoom { wait_ms }) if wait_ms <= WAIT_MS_MAX => {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                Ok(())
            }
            taken => taken,
        }
    }

    /// Takes room for one call within the connection's rate.
    pub(super) async fn take_room(&self, execution: &Execution, connection: &str) -> Result<(), Stop> {
        let fence = &execution.context.fence;
        match self.store.take_room(fence.tenant, connection, fence).await.map_err(database)? {
            Room::Free => Ok(()),
            Room::Full { wait } => Err(no_room(wait)),
        }
    }
}

fn no_room(wait: Duration) -> Stop {
    // Rounded up: a step that comes a moment early would have to wait again.
    let wait_ms = u64::try_from(wait.min(LOOK_EVERY).as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    Stop::NoRoom { wait_ms }
}
