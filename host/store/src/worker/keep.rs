//! Heartbeats.

use std::time::Duration;

use counterfoil_domain::id::{EffectId, TenantId};
use uuid::Uuid;

use super::Beat;
use crate::value;
use crate::{Store, StoreError};

impl Store {
    /// Keeps a task for the worker that has taken it, at longest until the time for it is over.
    pub async fn keep_task(
        &self,
        tenant: TenantId,
        id: EffectId,
        claim: Uuid,
        lease: Duration,
    ) -> Result<Beat, StoreError> {
        let kept = sqlx::query!(
            // What nobody may take from the worker while this is written is the step; once a host has it, it is too late.
            r#"WITH step AS MATERIALIZED (
                 SELECT s.id FROM worker_tasks t
                 JOIN open_steps s ON s.tenant_id = t.tenant_id AND s.id = t.step_id
                 JOIN receipts r ON r.tenant_id = t.tenant_id AND r.id = t.id
                 WHERE t.tenant_id = $1 AND t.id = $2 AND t.claim_id = $3
                   AND s.wait = 'worker' AND s.lease_id IS NULL AND r.state = 'dispatched'
                 FOR UPDATE OF s
             ), kept AS (
                 UPDATE worker_tasks t SET lease_until = LEAST(now() + $4::interval, t.claimed_at + t.timeout)
                 FROM step
                 WHERE t.tenant_id = $1 AND t.id = $2 AND t.lease_until > now()
                 RETURNING t.step_id, t.lease_until, t.claimed_at + t.timeout AS deadline
             ), moved AS (
                 UPDATE open_steps s SET vt = kept.lease_until FROM kept WHERE s.tenant_id = $1 AND s.id = kept.step_id
             )
             SELECT lease_until AS "lease_until!", deadline AS "deadline!" FROM kept"#,
            tenant.0,
            id.0,
            claim,
            value::interval(lease),
        )
        .fetch_optional(self.pool())
        .await?;
        if let Some(kept) = kept {
            return Ok(Beat::Kept { lease_until: kept.lease_until, deadline: kept.deadline });
        }
        let owner = sqlx::query_scalar!(
            "SELECT claim_id FROM worker_tasks WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            id.0,
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(match owner {
            None => Beat::NotFound,
            Some(owner) if owner == Some(claim) => Beat::Over,
            Some(_) => Beat::NotOwned,
        })
    }
}
