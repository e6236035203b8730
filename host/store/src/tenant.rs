//! Tenants.

use counterfoil_domain::id::TenantId;

use crate::{Store, StoreError};

/// What came of a wish to create something by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It exists from now on.
    New,
    /// Something else has the name.
    NameTaken,
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

    /// Every tenant, by name.
    pub async fn tenants(&self) -> Result<Vec<(TenantId, String)>, StoreError> {
        let tenants =
            sqlx::query!("SELECT id, name FROM tenants ORDER BY name").fetch_all(self.pool()).await?;
        Ok(tenants.into_iter().map(|tenant| (tenant.id.into(), tenant.name)).collect())
    }
}
