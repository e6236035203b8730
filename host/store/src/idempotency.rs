//! Creating requests that name an idempotency key: a repeat gets the first one's answer.

use counterfoil_domain::id::TenantId;

use crate::error::Row;
use crate::{Store, StoreError};

/// What is known of a request with this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: go on, and finish or drop it.
    New,
    /// The first one is under way.
    Running,
    /// The first one was answered so.
    Done {
        /// Status of the answer.
        status: u16,
        /// Its body.
        body: Vec<u8>,
    },
    /// The key came with another request.
    OtherRequest,
}

/// The row that was there may be dropped between the two statements.
const TRIES_MAX: usize = 3;

impl Store {
    /// Begins a request under a key. One that was begun a minute ago and never finished belonged to a host that died, and
    /// may be begun again.
    pub async fn begin_request(
        &self,
        tenant: TenantId,
        key: &str,
        request_hash: [u8; 32],
    ) -> Result<Begun, StoreError> {
        for _ in 0..TRIES_MAX {
            let begun = sqlx::query!(
                "INSERT INTO idempotent_requests AS r (tenant_id, key, request_hash) VALUES ($1, $2, $3)
                 ON CONFLICT (tenant_id, key) DO UPDATE SET begun_at = now()
                 WHERE r.status IS NULL AND r.request_hash = $3 AND r.begun_at < now() - interval '60 seconds'",
                tenant.0,
                key,
                &request_hash,
            )
            .execute(self.pool())
            .await?;
            if begun.rows_affected() == 1 {
                return Ok(Begun::New);
            }
            let first = sqlx::query!(
                "SELECT request_hash, status, body FROM idempotent_requests WHERE tenant_id = $1 AND key = $2",
                tenant.0,
                key,
            )
            .fetch_optional(self.pool())
            .await?;
            let Some(first) = first else { continue };
            if first.request_hash != request_hash {
                return Ok(Begun::OtherRequest);
            }
            let (Some(status), Some(body)) = (first.status, first.body) else {
                return Ok(Begun::Running);
            };
            let row = Row { table: "idempotent_requests", id: key };
            return Ok(Begun::Done { status: row.read("status", u16::try_from(status))?, body });
        }
        Ok(Begun::Running)
    }

    /// Keeps the answer of a request.
    pub async fn finish_request(
        &self,
        tenant: TenantId,
        key: &str,
        status: u16,
        body: &[u8],
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE idempotent_requests SET status = $3, body = $4
             WHERE tenant_id = $1 AND key = $2 AND status IS NULL",
            tenant.0,
            key,
            i32::from(status),
            body,
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Forgets a request that came to nothing, so that a repeat is tried anew.
    pub async fn drop_request(&self, tenant: TenantId, key: &str) -> Result<(), StoreError> {
        sqlx::query!(
            "DELETE FROM idempotent_requests WHERE tenant_id = $1 AND key = $2 AND status IS NULL",
            tenant.0,
            key,
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
