//! Reading connections, as every call does that goes through one.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;

use counterfoil_domain::id::TenantId;
use sqlx::PgPool;
use uuid::Uuid;

use super::{Columns, Connection};
use crate::{Store, StoreError};

/// Whose connection, and what it is called.
pub(crate) type Named = (TenantId, String);

/// A connection, if there is one; the outer none says that it could not be read among others.
pub(crate) type Read = Option<Option<Connection>>;

impl Store {
    /// One connection, with its secrets as they are at that moment. Reads that arrive while another one is under way share
    /// the next.
    pub async fn connection(&self, tenant: TenantId, name: &str) -> Result<Option<Connection>, StoreError> {
        let named = (tenant, name.to_owned());
        match self.lane().connections.submit(named.clone()).await? {
            Some(read) => Ok(read),
            None => Ok(connections(self.pool(), std::slice::from_ref(&named)).await?.remove(&named)),
        }
    }
}

/// Reads connections as they are asked for.
pub(crate) fn flush_reads(
    pool: PgPool,
) -> impl Fn(Vec<Named>) -> Pin<Box<dyn Future<Output = Vec<Read>> + Send>> + Clone + Send + 'static {
    move |named| {
        let pool = pool.clone();
        Box::pin(async move {
            match connections(&pool, &named).await {
                Ok(found) => named.iter().map(|named| Some(found.get(named).cloned())).collect(),
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "connections could not be read together"
                    );
                    vec![None; named.len()]
                }
            }
        })
    }
}

async fn connections(pool: &PgPool, wanted: &[Named]) -> Result<HashMap<Named, Connection>, StoreError> {
    let distinct: BTreeSet<(Uuid, &str)> = wanted.iter().map(|(tenant, name)| (tenant.0, &**name)).collect();
    let (tenants, names): (Vec<Uuid>, Vec<&str>) = distinct.into_iter().unzip();
    let found = sqlx::query!(
        r#"SELECT c.tenant_id, c.name, c.base_url, c.allowed_hosts, c.abilities, c.in_flight_max,
             c.updated_at,
             r.calls AS "calls?", r.per_ms AS "per_ms?", r.burst,
             ARRAY(SELECT s.name FROM connection_secrets s
                   WHERE s.tenant_id = w.tenant_id AND s.connection = w.name ORDER BY s.name) AS "secret_names!",
             ARRAY(SELECT s.key_id FROM connection_secrets s
                   WHERE s.tenant_id = w.tenant_id AND s.connection = w.name ORDER BY s.name) AS "secret_keys!",
             ARRAY(SELECT s.sealed FROM connection_secrets s
                   WHERE s.tenant_id = w.tenant_id AND s.connection = w.name ORDER BY s.name) AS "secrets!"
         FROM UNNEST($1::uuid[], $2::text[]) AS w (tenant_id, name)
         JOIN connections c ON c.tenant_id = w.tenant_id AND c.name = w.name
         LEFT JOIN connection_rates r ON r.tenant_id = w.tenant_id AND r.connection = w.name"#,
        &tenants,
        &names as &[&str],
    )
    .fetch_all(pool)
    .await?;
    found
        .into_iter()
        .map(|found| {
            let key = (TenantId(found.tenant_id), found.name.clone());
            let connection = Connection::try_from(Columns {
                name: found.name,
                base_url: found.base_url,
                allowed_hosts: found.allowed_hosts,
                abilities: found.abilities,
                updated_at: found.updated_at,
                calls: found.calls,
                per_ms: found.per_ms,
                burst: found.burst,
                in_flight_max: found.in_flight_max,
                secret_names: found.secret_names,
                secret_keys: found.secret_keys,
                secrets: found.secrets,
            })?;
            Ok((key, connection))
        })
        .collect()
}
