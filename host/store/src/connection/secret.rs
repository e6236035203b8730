//! Sealed secrets. Nothing here can open one.

use counterfoil_domain::connection::{SealedSecret, SecretName};
use counterfoil_domain::id::TenantId;
use sqlx::PgConnection;
use uuid::Uuid;

use super::SecretChanges;
use crate::error::Row;
use crate::{Store, StoreError};

/// A sealed secret, and the place that it is sealed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// Whose.
    pub tenant: TenantId,
    /// Of which connection.
    pub connection: String,
    /// The secret.
    pub secret: SealedSecret,
}

/// The secrets of one connection, from columns that belong together.
pub(super) fn sealed_secrets<I: std::fmt::Display>(
    row: &Row<I>,
    names: &[String],
    keys: Vec<String>,
    sealed: Vec<Vec<u8>>,
) -> Result<Vec<SealedSecret>, StoreError> {
    let columns = names.iter().zip(keys).zip(sealed);
    columns
        .map(|((name, key), sealed)| Ok(SealedSecret { name: secret_name(row, name)?, key, sealed }))
        .collect()
}

fn secret_name<I: std::fmt::Display>(row: &Row<I>, name: &str) -> Result<SecretName, StoreError> {
    row.read("secret_names", name.parse())
}

pub(super) async fn change_secrets(
    connection: &mut PgConnection,
    tenant: TenantId,
    of: &str,
    changes: &SecretChanges,
) -> Result<(), StoreError> {
    let removed: Vec<String> = changes.remove.iter().map(ToString::to_string).collect();
    if changes.remove_others || !removed.is_empty() {
        sqlx::query!(
            "DELETE FROM connection_secrets
             WHERE tenant_id = $1 AND connection = $2 AND ($3 OR name = ANY ($4::text[]))",
            tenant.0,
            of,
            changes.remove_others,
            &removed,
        )
        .execute(&mut *connection)
        .await?;
    }
    for secret in &changes.set {
        sqlx::query!(
            "INSERT INTO connection_secrets (tenant_id, connection, name, key_id, sealed)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (tenant_id, connection, name) DO UPDATE
             SET key_id = excluded.key_id, sealed = excluded.sealed, sealed_at = now()",
            tenant.0,
            of,
            secret.name.to_string(),
            secret.key,
            secret.sealed,
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

impl Store {
    /// The ids of all keys that secrets of any tenant are sealed with.
    pub async fn secret_key_ids(&self) -> Result<Vec<String>, StoreError> {
        let ids = sqlx::query_scalar!("SELECT DISTINCT key_id FROM connection_secrets ORDER BY key_id")
            .fetch_all(self.pool())
            .await?;
        Ok(ids)
    }

    /// Secrets of any tenant that are sealed with another key than `key`, at most `limit`, in order of their places and
    /// behind `after`.
    pub async fn secrets_not_under(
        &self,
        key: &str,
        after: Option<&SecretRow>,
        limit: u32,
    ) -> Result<Vec<SecretRow>, StoreError> {
        let (tenant, connection, name) = after.map_or((Uuid::nil(), "", String::new()), |row| {
            (row.tenant.0, row.connection.as_str(), row.secret.name.to_string())
        });
        let rows = sqlx::query!(
            "SELECT tenant_id, connection, name, key_id, sealed FROM connection_secrets
             WHERE key_id <> $1 AND (tenant_id, connection, name) > ($2, $3, $4)
             ORDER BY tenant_id, connection, name
             LIMIT $5",
            key,
            tenant,
            connection,
            name,
            i64::from(limit),
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|found| {
                let row = Row { table: "connection_secrets", id: &found.connection };
                let name = secret_name(&row, &found.name)?;
                Ok(SecretRow {
                    tenant: found.tenant_id.into(),
                    secret: SealedSecret { name, key: found.key_id, sealed: found.sealed },
                    connection: found.connection,
                })
            })
            .collect()
    }

    /// Puts a secret that was sealed anew in place of the old one. False if that is there no more: somebody has set or
    /// removed it meanwhile.
    pub async fn reseal_secret(&self, old: &SecretRow, new: &SealedSecret) -> Result<bool, StoreError> {
        let replaced = sqlx::query!(
            "UPDATE connection_secrets SET key_id = $5, sealed = $6, sealed_at = now()
             WHERE tenant_id = $1 AND connection = $2 AND name = $3 AND sealed = $4",
            old.tenant.0,
            old.connection,
            old.secret.name.to_string(),
            old.secret.sealed,
            new.key,
            new.sealed,
        )
        .execute(self.pool())
        .await?;
        Ok(replaced.rows_affected() == 1)
    }
}
