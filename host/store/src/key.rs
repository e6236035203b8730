//! API keys. What is kept of one is a keyed hash; the key itself is never here.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{KeyId, TenantId};
use uuid::Uuid;

use crate::error::Row;
use crate::{Store, StoreError};

/// A key, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Whose.
    pub tenant: TenantId,
    /// Its id.
    pub id: KeyId,
    /// What finds it.
    pub prefix: String,
    /// Keyed hash of the whole key.
    pub hash: [u8; 32],
    /// What its holder may do.
    pub scope: String,
    /// What its owner calls it.
    pub label: String,
    /// When it was created; when a row is inserted, the database's clock says.
    pub created_at: DateTime<Utc>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

pub(crate) struct Columns {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) prefix: String,
    pub(crate) hash: Vec<u8>,
    pub(crate) scope: String,
    pub(crate) label: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

impl TryFrom<Columns> for KeyRow {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "api_keys", id: KeyId(columns.id) };
        Ok(Self {
            tenant: columns.tenant_id.into(),
            id: row.id,
            prefix: columns.prefix,
            hash: row.read("hash", columns.hash.as_slice().try_into())?,
            scope: columns.scope,
            label: columns.label,
            created_at: columns.created_at,
            revoked_at: columns.revoked_at,
        })
    }
}

impl Store {
    /// Keeps a new key.
    pub async fn create_key(&self, key: &KeyRow) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO api_keys (tenant_id, id, prefix, hash, scope, label) VALUES ($1, $2, $3, $4, $5, $6)",
            key.tenant.0,
            key.id.0,
            key.prefix,
            &key.hash,
            key.scope,
            key.label,
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The key with that prefix, revoked or not. The one look-up by which a caller's tenant is found.
    pub async fn key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRow>, StoreError> {
        let columns = sqlx::query_as!(Columns, "SELECT * FROM api_keys WHERE prefix = $1", prefix)
            .fetch_optional(self.pool())
            .await?;
        columns.map(KeyRow::try_from).transpose()
    }

    /// A tenant's keys, the oldest first.
    pub async fn keys(&self, tenant: TenantId) -> Result<Vec<KeyRow>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            "SELECT * FROM api_keys WHERE tenant_id = $1 ORDER BY created_at, id",
            tenant.0,
        )
        .fetch_all(self.pool())
        .await?;
        columns.into_iter().map(KeyRow::try_from).collect()
    }

    /// Revokes a key. False if there is none, or it was revoked before.
    pub async fn revoke_key(&self, tenant: TenantId, id: KeyId) -> Result<bool, StoreError> {
        let revoked = sqlx::query!(
            "UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL",
            tenant.0,
            id.0,
        )
        .execute(self.pool())
        .await?;
        Ok(revoked.rows_affected() == 1)
    }
}
