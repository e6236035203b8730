//! Connections: a tenant's named ways to reach a system.

mod read;
mod room;
mod secret;

use chrono::{DateTime, Utc};
use counterfoil_domain::connection::{Rate, SealedSecret, SecretName};
use counterfoil_domain::id::TenantId;
use counterfoil_domain::receipt::Actor;
use serde_json::{Value, json};

pub(crate) use self::read::{Named, Read, flush_reads};
pub use self::room::Room;
pub use self::secret::SecretRow;

use self::secret::{change_secrets, sealed_secrets};
use crate::audit::audit;
use crate::error::Row;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError};

/// A connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Connection {
    /// What blocks call it.
    pub name: String,
    /// What paths are under.
    pub base_url: String,
    /// Hosts that may be reached through it.
    pub allowed_hosts: Vec<String>,
    /// What its receiver is able to do, as declared.
    pub abilities: Value,
    /// How often it may be used; without one, as often as anybody likes.
    pub rate: Option<Rate>,
    /// Calls that one host may have under way at once; without one, as many as there are.
    pub in_flight_max: Option<u32>,
    /// Its secrets, sealed, by name.
    pub secrets: Vec<SealedSecret>,
    /// When it was set, by the database's clock. Another one each time.
    pub updated_at: DateTime<Utc>,
}

/// A connection to set.
#[derive(Debug, Clone, PartialEq)]
pub struct NewConnection {
    /// What blocks call it.
    pub name: String,
    /// What paths are under.
    pub base_url: String,
    /// Hosts that may be reached through it.
    pub allowed_hosts: Vec<String>,
    /// What its receiver is able to do.
    pub abilities: Value,
    /// How often it may be used.
    pub rate: Option<Rate>,
    /// Calls that one host may have under way at once.
    pub in_flight_max: Option<u32>,
    /// What becomes of its secrets.
    pub secrets: SecretChanges,
}

/// What becomes of a connection's secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretChanges {
    /// Set anew, or in place of what was there.
    pub set: Vec<SealedSecret>,
    /// Removed, where they are there.
    pub remove: Vec<SecretName>,
    /// All that are not set are removed.
    pub remove_others: bool,
}

struct Columns {
    name: String,
    base_url: String,
    allowed_hosts: Vec<String>,
    abilities: Value,
    calls: Option<i32>,
    per_ms: Option<i32>,
    burst: Option<i32>,
    in_flight_max: Option<i32>,
    secret_names: Vec<String>,
    secret_keys: Vec<String>,
    secrets: Vec<Vec<u8>>,
    updated_at: DateTime<Utc>,
}

impl TryFrom<Columns> for Connection {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "connections", id: &columns.name };
        let rate = match (columns.calls, columns.per_ms) {
            (Some(calls), Some(per_ms)) => Some(Rate {
                limit: value::count(&row, "calls", calls)?,
                per_ms: value::count(&row, "per_ms", per_ms)?,
                burst: columns.burst.map(|burst| value::count(&row, "burst", burst)).transpose()?,
            }),
            _ => None,
        };
        let secrets = sealed_secrets(&row, &columns.secret_names, columns.secret_keys, columns.secrets)?;
        Ok(Self {
            base_url: columns.base_url,
            allowed_hosts: columns.allowed_hosts,
            abilities: columns.abilities,
            rate,
            in_flight_max: columns
                .in_flight_max
                .map(|most| value::count(&row, "in_flight_max", most))
                .transpose()?,
            secrets,
            updated_at: columns.updated_at,
            name: columns.name,
        })
    }
}

impl Store {
    /// Creates a connection, or changes it, and keeps who did.
    pub async fn set_connection(
        &self,
        tenant: TenantId,
        connection: &NewConnection,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let mut tx = begin(self.pool()).await?;
        sqlx::query!(
            "INSERT INTO connections (tenant_id, name, base_url, allowed_hosts, abilities, in_flight_max)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (tenant_id, name) DO UPDATE SET base_url = excluded.base_url,
                 allowed_hosts = excluded.allowed_hosts, abilities = excluded.abilities,
                 in_flight_max = excluded.in_flight_max,
                 -- Never the same twice: calls that were judged by the one before are told by it.
                 updated_at = GREATEST(now(), connections.updated_at + interval '1 microsecond')",
            tenant.0,
            connection.name,
            connection.base_url,
            &connection.allowed_hosts,
            Exact(&connection.abilities) as Exact<'_>,
            connection.in_flight_max.map(u32::cast_signed),
        )
        .execute(&mut *tx)
        .await?;
        change_secrets(&mut tx, tenant, &connection.name, &connection.secrets).await?;
        let rate_has_changed = set_rate(&mut tx, tenant, &connection.name, connection.rate).await?;
        if rate_has_changed {
            look_again(&mut tx, tenant).await?;
        }
        let detail = audited(connection);
        audit(&mut tx, tenant, actor, "connection.set", None, None, &detail).await?;
        tx.commit().await?;
        if rate_has_changed {
            self.wake_tenant(tenant);
        }
        Ok(())
    }

    /// Removes a connection with its secrets and its rate, and keeps who did. False if there is none. Calls that name it are
    /// calls of one that does not exist from then on.
    pub async fn remove_connection(
        &self,
        tenant: TenantId,
        name: &str,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let removed =
            sqlx::query!("DELETE FROM connections WHERE tenant_id = $1 AND name = $2", tenant.0, name)
                .execute(&mut *tx)
                .await?;
        if removed.rows_affected() == 0 {
            return undo(tx, false).await;
        }
        // Whoever waits for room within its rate waits for nothing.
        look_again(&mut tx, tenant).await?;
        let detail = json!({ "connection": name });
        audit(&mut tx, tenant, actor, "connection.remove", None, None, &detail).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(true)
    }

    /// A tenant's connections, by name.
    pub async fn connections(&self, tenant: TenantId) -> Result<Vec<Connection>, StoreError> {
        let connections = sqlx::query_as!(
            Columns,
            r#"SELECT c.name, c.base_url, c.allowed_hosts, c.abilities, c.in_flight_max, c.updated_at,
                 r.calls AS "calls?", r.per_ms AS "per_ms?", r.burst,
                 ARRAY(SELECT s.name FROM connection_secrets s
                       WHERE s.tenant_id = c.tenant_id AND s.connection = c.name ORDER BY s.name) AS "secret_names!",
                 ARRAY(SELECT s.key_id FROM connection_secrets s
                       WHERE s.tenant_id = c.tenant_id AND s.connection = c.name ORDER BY s.name) AS "secret_keys!",
                 ARRAY(SELECT s.sealed FROM connection_secrets s
                       WHERE s.tenant_id = c.tenant_id AND s.connection = c.name ORDER BY s.name) AS "secrets!"
             FROM connections c
             LEFT JOIN connection_rates r ON r.tenant_id = c.tenant_id AND r.connection = c.name
             WHERE c.tenant_id = $1 ORDER BY c.name"#,
            tenant.0,
        )
        .fetch_all(self.pool())
        .await?;
        connections.into_iter().map(Connection::try_from).collect()
    }
}

/// Lets the steps that wait for their turn within a rate look whether it has come. Those of other connections keep theirs.
async fn look_again(tx: &mut Tx, tenant: TenantId) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE open_steps SET vt = now()
         WHERE tenant_id = $1 AND turn_at IS NOT NULL AND lease_id IS NULL AND vt > now()",
        tenant.0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Declares a rate, or takes it away, and says whether that is a change. One that is declared otherwise than before begins
/// anew.
async fn set_rate(
    tx: &mut Tx,
    tenant: TenantId,
    connection: &str,
    rate: Option<Rate>,
) -> Result<bool, StoreError> {
    let Some(rate) = rate else {
        let removed = sqlx::query!(
            "DELETE FROM connection_rates WHERE tenant_id = $1 AND connection = $2",
            tenant.0,
            connection,
        )
        .execute(&mut **tx)
        .await?;
        return Ok(removed.rows_affected() > 0);
    };
    let every = std::time::Duration::from_micros(rate.interval_us());
    let declared = sqlx::query!(
        "INSERT INTO connection_rates AS r (tenant_id, connection, calls, per_ms, burst, every, ahead)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (tenant_id, connection) DO UPDATE SET calls = excluded.calls, per_ms = excluded.per_ms,
             burst = excluded.burst, every = excluded.every, ahead = excluded.ahead,
             tat = excluded.tat, tail = excluded.tail
         WHERE (r.calls, r.per_ms, r.burst) IS DISTINCT FROM (excluded.calls, excluded.per_ms, excluded.burst)",
        tenant.0,
        connection,
        rate.limit.cast_signed(),
        rate.per_ms.cast_signed(),
        rate.burst.map(u32::cast_signed),
        value::interval(every),
        value::interval(every * rate.burst()),
    )
    .execute(&mut **tx)
    .await?;
    Ok(declared.rows_affected() > 0)
}

/// What the audit says of a change: the names of secrets, and nothing more of them.
fn audited(connection: &NewConnection) -> Value {
    let SecretChanges { set, remove, remove_others } = &connection.secrets;
    let mut detail = json!({ "connection": connection.name, "base_url": connection.base_url });
    if !set.is_empty() {
        detail["secrets_set"] = set.iter().map(|secret| secret.name.to_string()).collect();
    }
    if *remove_others {
        detail["secrets_removed"] = json!("all others");
    } else if !remove.is_empty() {
        detail["secrets_removed"] = remove.iter().map(ToString::to_string).collect();
    }
    detail
}
