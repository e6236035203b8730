//! Workers that look for work.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, TenantId};
use serde_json::Value;
use uuid::Uuid;

use super::{Poll, Task};
use crate::value;
use crate::{Store, StoreError};

/// Steps that others are at are passed over: so many more tasks are looked at.
const LOOKED_AT_BESIDES: i64 = 32;

impl Store {
    /// Takes tasks, the oldest of all queues first, each while its receipt is dispatched. What was taken by the same claim
    /// before, and is under way, is handed out again, and then nothing else.
    pub async fn poll_tasks(&self, tenant: TenantId, poll: &Poll<'_>) -> Result<Vec<Task>, StoreError> {
        let taken = self.taken(tenant, poll).await?;
        if !taken.is_empty() {
            return Ok(taken);
        }
        let rows = sqlx::query_as!(
            TaskRow,
            // The step is what everybody locks who may end the task; one that is locked is left for the next look. After that
            // the task is looked at again as it is then, and so is its receipt. The claim is durable before anybody hears of
            // it: one that was forgotten would be given to another worker too.
            r#"WITH candidate AS (
                 SELECT first.id, first.step_id, first.queued_at
                 FROM UNNEST($2::text[]) AS served (queue) CROSS JOIN LATERAL (
                     SELECT id, step_id, queued_at FROM worker_tasks
                     WHERE tenant_id = $1 AND queue = served.queue AND waiting AND claim_until > now()
                     ORDER BY queued_at, id LIMIT $6
                 ) first
             ), step AS MATERIALIZED (
                 SELECT candidate.id, s.id AS step_id FROM candidate
                 JOIN open_steps s ON s.tenant_id = $1 AND s.id = candidate.step_id
                 WHERE s.wait = 'worker' AND s.lease_id IS NULL
                 ORDER BY candidate.queued_at, candidate.id LIMIT $5
                 FOR UPDATE OF s SKIP LOCKED
             ), receipt AS MATERIALIZED (
                 SELECT step.id, r.run_id, r.node, r.iteration, r.idempotency_key FROM step
                 JOIN receipts r ON r.tenant_id = $1 AND r.id = step.id
                 WHERE r.state = 'dispatched'
                 FOR NO KEY UPDATE OF r
             ), claimed AS (
                 UPDATE worker_tasks t SET waiting = false, claim_id = $3, worker = $4, claimed_at = now(),
                     lease_until = LEAST(now() + $7::interval, now() + t.timeout)
                 FROM receipt
                 WHERE t.tenant_id = $1 AND t.id = receipt.id AND t.waiting AND t.claim_until > now()
                 RETURNING t.id, t.step_id, t.queue, t.input, t.queued_at, t.lease_until, t.claim_until,
                     t.claimed_at + t.timeout AS deadline, receipt.run_id, receipt.node, receipt.iteration,
                     receipt.idempotency_key
             ), kept AS (
                 UPDATE open_steps s SET vt = claimed.lease_until FROM claimed
                 WHERE s.tenant_id = $1 AND s.id = claimed.step_id
             ), sooner AS (
                 -- Before, it might have begun as late as its time in the queue allows; from here on it is known when it did.
                 UPDATE receipts r
                 SET dispatched_at = now(), absence_known_at = r.absence_known_at - (claimed.claim_until - now())
                 FROM claimed
                 WHERE r.tenant_id = $1 AND r.id = claimed.id
             )
             SELECT id, queue, input, lease_until AS "lease_until!", deadline AS "deadline!", run_id, node, iteration,
                 idempotency_key
             FROM claimed ORDER BY queued_at, id"#,
            tenant.0,
            poll.queues,
            poll.claim,
            poll.worker,
            i64::from(poll.tasks_max),
            i64::from(poll.tasks_max) + LOOKED_AT_BESIDES,
            value::interval(poll.lease),
        )
        .fetch_all(self.pool())
        .await?;
        if !rows.is_empty() {
            // A host may sleep longer than the lease lasts.
            self.wake_tenant(tenant);
        }
        Ok(rows.into_iter().map(|row| row.task(poll)).collect())
    }

    /// What this claim has taken, and is under way.
    async fn taken(&self, tenant: TenantId, poll: &Poll<'_>) -> Result<Vec<Task>, StoreError> {
        let rows = sqlx::query_as!(
            TaskRow,
            r#"SELECT t.id, t.queue, t.input, t.lease_until AS "lease_until!",
                 t.claimed_at + t.timeout AS "deadline!", r.run_id, r.node, r.iteration, r.idempotency_key
             FROM worker_tasks t JOIN receipts r ON r.tenant_id = t.tenant_id AND r.id = t.id
             WHERE t.tenant_id = $1 AND t.claim_id = $2 AND t.lease_until > now() AND r.state = 'dispatched'
             ORDER BY t.queued_at, t.id"#,
            tenant.0,
            poll.claim,
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| row.task(poll)).collect())
    }
}

struct TaskRow {
    id: Uuid,
    queue: String,
    input: Value,
    lease_until: DateTime<Utc>,
    deadline: DateTime<Utc>,
    run_id: Uuid,
    node: String,
    iteration: Vec<i32>,
    idempotency_key: String,
}

impl TaskRow {
    fn task(self, poll: &Poll<'_>) -> Task {
        Task {
            id: EffectId(self.id),
            claim: poll.claim,
            queue: self.queue,
            input: self.input,
            idempotency_key: self.idempotency_key,
            run: self.run_id.into(),
            node: self.node,
            iteration: value::path_in(&self.iteration),
            lease_until: self.lease_until,
            deadline: self.deadline,
        }
    }
}
