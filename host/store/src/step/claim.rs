//! Taking steps that are due: work that is ready, waits that are over, and leases that ran out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::{Digest, HostId};
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
    /// Whose work, and how much.
    pub takes: Vec<Take>,
    /// Blocks that this host cannot run; it leaves them to the others.
    pub without: Vec<Digest>,
}

/// What is taken of one workflow's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// Whose.
    pub queue: Queue,
    /// At most so many.
    pub places: u32,
    /// Only what is due since then: what was due before is known to be gone, and the index need not be searched for it.
    pub since: Option<DateTime<Utc>>,
}

impl Take {
    /// As many as `places` of what is due, however long it has been.
    pub const fn of(queue: Queue, places: u32) -> Self {
        Self { queue, places, since: None }
    }
}

impl Store {
    /// Takes steps that are due, each under a new lease. A step whose last owner's lease ran out counts as lost once more.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let takes = &request.takes;
        let tenants: Vec<Uuid> = takes.iter().map(|take| take.queue.tenant.0).collect();
        let workflows: Vec<Uuid> = takes.iter().map(|take| take.queue.workflow.0).collect();
        let places: Vec<i64> = takes.iter().map(|take| i64::from(take.places)).collect();
        let since: Vec<Option<DateTime<Utc>>> = takes.iter().map(|take| take.since).collect();
        let without: Vec<Vec<u8>> = request.without.iter().map(|digest| digest.0.to_vec()).collect();
        let rows = sqlx::query_as!(
            ClaimedRow,
            // One index look-up a workflow, however much the others have. A row that another host is claiming is skipped;
            // one that its owner renewed since this statement began is looked at again when it is locked, and left.
            r#"WITH due AS (
                 SELECT s.*
                 FROM UNNEST($2::uuid[], $6::uuid[], $3::bigint[], $7::timestamptz[])
                     AS want (tenant_id, workflow_id, places, since)
                 CROSS JOIN LATERAL (
                     SELECT tenant_id, id, run_id, attempt, lease_id, host_id, started_at, vt
                     FROM open_steps
                     WHERE tenant_id = want.tenant_id AND workflow_id = want.workflow_id
                       AND vt >= COALESCE(want.since, '-infinity') AND vt <= now()
                       AND (block IS NULL OR block <> ALL ($5::bytea[]))
                     ORDER BY vt
                     LIMIT want.places
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
             RETURNING s.tenant_id, s.id, s.run_id, s.workflow_id, s.lineage, s.node, s.iteration, s.attempt, s.wait,
                 s.losses, s.block, s.lease_id AS "lease_id!", s.first_started_at AS "first_started_at!", s.vt,
                 due.vt AS "due_at!", s.queued_at, s.first_started_at = s.started_at AS "is_first!""#,
            request.host.0,
            &tenants,
            &places,
            value::interval(request.lease),
            &without,
            &workflows,
            &since as &[Option<DateTime<Utc>>],
        )
        .fetch_all(&self.inner.claims)
        .await?;
        if !rows.is_empty() {
            self.inner.faults.reach(Site::AfterClaim);
        }
        rows.into_iter().map(Claimed::try_from).collect()
    }
}
