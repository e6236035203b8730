//! Tenants.

use chrono::{DateTime, Utc};
use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::fair_share::Share;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::receipt::Actor;
use serde_json::json;

use crate::audit::audit;
use crate::error::Row;
use crate::transaction::begin;
use crate::{Store, StoreError, share};

/// What came of a wish to create something by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It exists from now on.
    New,
    /// Something else has the name.
    NameTaken,
}

/// Limits of a tenant to be set: `Some(None)` takes one away, `None` leaves it as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsChange {
    /// Linear memory.
    pub memory_bytes_max: Option<Option<u64>>,
    /// Guest CPU.
    pub cpu_ms_max: Option<Option<u64>>,
    /// Whole execution.
    pub wall_ms_max: Option<Option<u64>>,
}

/// A tenant, and what it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRow {
    /// Its id.
    pub id: TenantId,
    /// Its name.
    pub name: String,
    /// Since when it is there.
    pub created_at: DateTime<Utc>,
    /// How much of a host's room it may have.
    pub share: Share,
    /// Its own limits, beside what the operator grants to all.
    pub limits: WantedLimits,
}

impl Store {
    /// Creates a tenant.
    pub async fn create_tenant(&self, id: TenantId, name: &str) -> Result<Created, StoreError> {
        let created = sqlx::query!(
            "INSERT INTO tenants (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            id.0,
            name,
        )
        .execute(self.pool())
        .await?;
        Ok(if created.rows_affected() == 1 { Created::New } else { Created::NameTaken })
    }

    /// The tenant of that name.
    pub async fn tenant_by_name(&self, name: &str) -> Result<Option<TenantId>, StoreError> {
        let id = sqlx::query_scalar!("SELECT id FROM tenants WHERE name = $1", name)
            .fetch_optional(self.pool())
            .await?;
        Ok(id.map(TenantId))
    }

    /// What one execution of the tenant's blocks may use at most, beside what the operator grants to all.
    pub async fn tenant_limits(&self, id: TenantId) -> Result<WantedLimits, StoreError> {
        let found = sqlx::query!(
            "SELECT memory_bytes_max, cpu_ms_max, wall_ms_max FROM tenants WHERE id = $1",
            id.0,
        )
        .fetch_optional(self.pool())
        .await?;
        found.map_or(Ok(WantedLimits::default()), |found| {
            limits(id, [found.memory_bytes_max, found.cpu_ms_max, found.wall_ms_max])
        })
    }

    /// Sets those that are named, and returns all of them.
    pub async fn set_tenant_limits(
        &self,
        id: TenantId,
        change: LimitsChange,
        actor: &Actor,
    ) -> Result<WantedLimits, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // More than a column holds is no limit either.
        let column = |limit: Option<Option<u64>>| {
            limit.flatten().map(|limit| i64::try_from(limit).unwrap_or(i64::MAX))
        };
        // Each by itself, so that of two who set different ones neither undoes the other's.
        let set = sqlx::query!(
            "UPDATE tenants SET
                 memory_bytes_max = CASE WHEN $2 THEN $3 ELSE memory_bytes_max END,
                 cpu_ms_max = CASE WHEN $4 THEN $5 ELSE cpu_ms_max END,
                 wall_ms_max = CASE WHEN $6 THEN $7 ELSE wall_ms_max END
             WHERE id = $1
             RETURNING memory_bytes_max, cpu_ms_max, wall_ms_max",
            id.0,
            change.memory_bytes_max.is_some(),
            column(change.memory_bytes_max),
            change.cpu_ms_max.is_some(),
            column(change.cpu_ms_max),
            change.wall_ms_max.is_some(),
            column(change.wall_ms_max),
        )
        .fetch_one(&mut *tx)
        .await?;
        let set = limits(id, [set.memory_bytes_max, set.cpu_ms_max, set.wall_ms_max])?;
        audit(&mut tx, id, actor, "tenant.limits", None, None, &json!(set)).await?;
        tx.commit().await?;
        Ok(set)
    }

    /// Every tenant, by name.
    pub async fn tenants(&self) -> Result<Vec<TenantRow>, StoreError> {
        let tenants = sqlx::query!(
            "SELECT id, name, created_at, weight, in_flight_max, memory_bytes_max, cpu_ms_max, wall_ms_max
             FROM tenants ORDER BY name"
        )
        .fetch_all(self.pool())
        .await?;
        let rows = tenants.into_iter().map(|tenant| {
            let id = TenantId(tenant.id);
            let row = Row { table: "tenants", id };
            Ok(TenantRow {
                id,
                name: tenant.name,
                created_at: tenant.created_at,
                share: share::read(&row, tenant.weight, tenant.in_flight_max)?,
                limits: limits(id, [tenant.memory_bytes_max, tenant.cpu_ms_max, tenant.wall_ms_max])?,
            })
        });
        rows.collect()
    }
}

/// The limits of a tenant from their columns, in the order of the fields.
pub(crate) fn limits(tenant: TenantId, columns: [Option<i64>; 3]) -> Result<WantedLimits, StoreError> {
    let row = Row { table: "tenants", id: tenant };
    let limit =
        |name, column: Option<i64>| column.map(|limit| row.read(name, u64::try_from(limit))).transpose();
    let [memory_bytes_max, cpu_ms_max, wall_ms_max] = columns;
    Ok(WantedLimits {
        memory_bytes_max: limit("memory_bytes_max", memory_bytes_max)?,
        cpu_ms_max: limit("cpu_ms_max", cpu_ms_max)?,
        wall_ms_max: limit("wall_ms_max", wall_ms_max)?,
    })
}
