//! Connections: a tenant's named ways to reach a system.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::TenantId;
use serde_json::Value;

use crate::value::Exact;
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
    /// When it was set, by the database's clock.
    pub updated_at: DateTime<Utc>,
}

impl Store {
    /// Creates a connection, or changes it. `updated_at` is not looked at.
    pub async fn set_connection(&self, tenant: TenantId, connection: &Connection) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO connections (tenant_id, name, base_url, allowed_hosts, abilities)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (tenant_id, name) DO UPDATE SET base_url = excluded.base_url,
                 allowed_hosts = excluded.allowed_hosts, abilities = excluded.abilities, updated_at = now()",
            tenant.0,
            connection.name,
            connection.base_url,
            &connection.allowed_hosts,
            Exact(&connection.abilities) as Exact<'_>,
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// A tenant's connections, by name.
    pub async fn connections(&self, tenant: TenantId) -> Result<Vec<Connection>, StoreError> {
        let connections = sqlx::query_as!(
            Connection,
            "SELECT name, base_url, allowed_hosts, abilities, updated_at FROM connections
             WHERE tenant_id = $1 ORDER BY name",
            tenant.0,
        )
        .fetch_all(self.pool())
        .await?;
        Ok(connections)
    }

    /// One connection.
    pub async fn connection(&self, tenant: TenantId, name: &str) -> Result<Option<Connection>, StoreError> {
        let connection = sqlx::query_as!(
            Connection,
            "SELECT name, base_url, allowed_hosts, abilities, updated_at FROM connections
             WHERE tenant_id = $1 AND name = $2",
            tenant.0,
            name,
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(connection)
    }
}
