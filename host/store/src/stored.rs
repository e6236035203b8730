//! A tenant's key-value space. It is written by the transactions that settle steps, and read by the steps that run.

use counterfoil_domain::id::TenantId;

use crate::{Store, StoreError};

impl Store {
    /// What is stored under a key.
    pub async fn stored_value(&self, tenant: TenantId, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let value = sqlx::query_scalar!(
            "SELECT value FROM stored_values WHERE tenant_id = $1 AND key = $2",
            tenant.0,
            key,
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(value)
    }
}
