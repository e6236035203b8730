//! The connection that a call goes through: what it declares, its secrets, and the room within its rate.

use std::time::Duration;

use counterfoil_domain::connection::Abilities;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::step::Stop;
use counterfoil_store::connection::{Connection, Room};

use super::{Inner, database};
use crate::execution::Execution;
use crate::secrets::Opened;

/// A step that waits longer looks in between, so that a rate which is declared anew is felt.
const LOOK_EVERY: Duration = Duration::from_mins(5);

/// Longest wait with a sandbox held: a few calls at a rate of one a second, and a part of the time for an asking.
const WAIT_MS_MAX: u64 = 5_000;

/// A connection, read and opened for one call.
pub(super) struct Through {
    pub(super) connection: Connection,
    pub(super) abilities: Abilities,
    pub(super) secrets: Opened,
}

impl Inner {
    /// Reads a connection. None if the tenant has none of that name.
    pub(super) async fn through(&self, tenant: TenantId, name: &str) -> Result<Option<Through>, Stop> {
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
        Ok(Some(Through { connection, abilities, secrets }))
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
            Room::Full { wait } => {
                // Rounded up: a step that comes a moment early would have to wait again.
                let wait_ms =
                    u64::try_from(wait.min(LOOK_EVERY).as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
                Err(Stop::NoRoom { wait_ms })
            }
        }
    }
}
