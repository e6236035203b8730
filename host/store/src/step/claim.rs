//! Taking steps that are due: work that is ready, waits that are over, and leases that ran out.

use std::time::Duration;

use counterfoil_domain::id::{Digest, HostId, TenantId};
use counterfoil_domain::ports::Site;
use uuid::Uuid;

use super::{Claimed, ClaimedRow};
use crate::value;
use crate::{Store, StoreError};

/// What a host asks for.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Who asks.
    pub host: HostId,
    /// For how long.
    pub lease: Duration,
    /// Whose work, and how many steps of each at most.
    pub tenants: Vec<(TenantId, u32)>,
    /// Blocks that this host cannot run; it leaves them to the others.
    pub without: Vec<Digest>,
}

/// Where there is work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Tenants with a step that is due.
    pub tenants: Vec<TenantId>,
    /// Time until the next step becomes due, if none else does before.
    pub next_in: Option<Duration>,
}

impl Store {
    /// Takes steps that are due, each under a new lease. A step whose last owner's lease ran out counts as lost once more.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let tenants: Vec<Uuid> = request.tenants.iter().map(|(tenant, _)| tenant.0).collect();
        let quotas: Vec<i64> = request.tenants.iter().map(|(_, quota)| i64::from(*quota)).collect();
        let without: Vec<Vec<u8>> = request.without.iter().map(|digest| digest.0.to_vec()).collect();
        let rows = sqlx::query_as!(
            ClaimedRow,
            // One index look-up a tenant, however much the others have. A row that another host is claiming is skipped;
            // one that its owner renewed since this statement began is looked at again when it is locked, and left.
            r#"WITH due AS (
                 SELECT s.*
                 FROM UNNEST($2::uuid[], $3::bigint[]) AS want (tenant_id, quota)
                 CROSS JOIN LATERAL (
                     SELECT tenant_id, id, run_id, attempt, lease_id, host_id, started_at
                     FROM open_steps
                     WHERE tenant_id = want.tenant_id AND vt <= now()
                       AND (block IS NULL OR block <> ALL ($5::bytea[]))
                     ORDER BY vt
                     LIMIT want.quota
                     FOR UPDATE SKIP LOCKED
                 ) s
             ), lost AS (
                 INSERT INTO step_attempts
                     (tenant_id, run_id, step_id, lease_id, attempt, host_id, started_at, ended)
                 SELECT tenant_id, run_id, id, lease_id, attempt, host_id, started_at, 'lost'
                 FROM due WHERE lease_id IS NOT NULL
             )
             UPDATE open_steps s
             SET lease_id = gen_random_uuid(), host_id = $1, vt = now() + $4, started_at = now(),
                 first_started_at = COALESCE(s.first_started_at, now()),
                 losses = s.losses + (due.lease_id IS NOT NULL)::int
             FROM due WHERE s.tenant_id = due.tenant_id AND s.id = due.id
             RETURNING s.tenant_id, s.id, s.run_id, s.lineage, s.node, s.iteration, s.attempt, s.wait, s.losses,
                 s.block, s.lease_id AS "lease_id!", s.first_started_at AS "first_started_at!", s.vt, s.queued_at,
                 s.first_started_at = s.started_at AS "is_first!""#,
            request.host.0,
            &tenants,
            &quotas,
            value::interval(request.lease),
            &without,
        )
        .fetch_all(&self.inner.claims)
        .await?;
        if !rows.is_empty() {
            self.inner.faults.reach(Site::AfterClaim);
        }
        rows.into_iter().map(Claimed::try_from).collect()
    }

    /// Looks for work: the tenants that have some now, and when the next will be due.
    pub async fn due(&self) -> Result<Due, StoreError> {
        let tenants = sqlx::query!(
            // A loose index scan: from each tenant's first row to the next tenant's, over whatever lies between.
            r#"WITH RECURSIVE tenant AS (
                 (SELECT tenant_id, vt FROM open_steps ORDER BY tenant_id, vt LIMIT 1)
                 UNION ALL
                 SELECT next.tenant_id, next.vt FROM tenant CROSS JOIN LATERAL (
                     SELECT tenant_id, vt FROM open_steps WHERE tenant_id > tenant.tenant_id
                     ORDER BY tenant_id, vt LIMIT 1
                 ) next
             )
             SELECT tenant_id AS "tenant_id!", vt <= now() AS "is_due!",
                 -- Null for what waits for a person, whose time is infinity.
                 EXTRACT(EPOCH FROM NULLIF(CASE WHEN vt > now() THEN vt ELSE (
                     SELECT min(vt) FROM open_steps s WHERE s.tenant_id = tenant.tenant_id AND s.vt > now()
                 ) END, 'infinity') - now())::float8 AS next_seconds
             FROM tenant"#
        )
        .fetch_all(self.pool())
        .await?;
        let next_seconds = tenants.iter().filter_map(|tenant| tenant.next_seconds).reduce(f64::min);
        Ok(Due {
            tenants: tenants
                .iter()
                .filter(|tenant| tenant.is_due)
                .map(|tenant| TenantId(tenant.tenant_id))
                .collect(),
            next_in: next_seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        })
    }
}
