//! Where there is work, and where there will be. A host knows that from wake-ups; these looks tell it what it did not hear.

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::TenantId;
use uuid::Uuid;

use crate::{Store, StoreError, value};

/// The open steps of one workflow, as far as time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Whose.
    pub queue: Queue,
    /// Since when the first of them has been due, if it is.
    pub due_since: Option<DateTime<Utc>>,
    /// Time until the next one becomes due; none if none does by itself.
    pub next_in: Option<Duration>,
}

struct Columns {
    tenant_id: Uuid,
    workflow_id: Uuid,
    due_since: Option<DateTime<Utc>>,
    next_seconds: Option<f64>,
}

impl From<Columns> for Line {
    fn from(columns: Columns) -> Self {
        let Columns { tenant_id, workflow_id, due_since, next_seconds } = columns;
        Self {
            queue: Queue { tenant: tenant_id.into(), workflow: workflow_id.into() },
            due_since,
            next_in: next_seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        }
    }
}

impl Store {
    /// Looks at everybody's open steps. What it costs grows with the workflows that have some, not with the steps.
    pub async fn due(&self) -> Result<Vec<Line>, StoreError> {
        let lines = sqlx::query_as!(
            Columns,
            // A loose index scan: from each workflow's first row to the next one's, over whatever lies between.
            r#"WITH RECURSIVE line AS (
                 (SELECT tenant_id, workflow_id, vt FROM open_steps WHERE workflow_id IS NOT NULL
                  ORDER BY tenant_id, workflow_id, vt LIMIT 1)
                 UNION ALL
                 SELECT next.tenant_id, next.workflow_id, next.vt FROM line CROSS JOIN LATERAL (
                     SELECT tenant_id, workflow_id, vt FROM open_steps
                     WHERE (tenant_id, workflow_id) > (line.tenant_id, line.workflow_id)
                       AND workflow_id IS NOT NULL
                     ORDER BY tenant_id, workflow_id, vt LIMIT 1
                 ) next
             )
             SELECT tenant_id AS "tenant_id!", workflow_id AS "workflow_id!",
                 CASE WHEN vt <= now() THEN vt END AS due_since,
                 -- Null for what waits for a person, whose time is infinity.
                 EXTRACT(EPOCH FROM NULLIF(CASE WHEN vt > now() THEN vt ELSE (
                     SELECT min(vt) FROM open_steps s
                     WHERE s.tenant_id = line.tenant_id AND s.workflow_id = line.workflow_id AND s.vt > now()
                 ) END, 'infinity') - now())::float8 AS next_seconds
             FROM line"#
        )
        .fetch_all(self.pool())
        .await?;
        Ok(lines.into_iter().map(Line::from).collect())
    }

    /// Looks at the open steps of these tenants.
    pub async fn due_of(&self, tenants: &[TenantId]) -> Result<Vec<Line>, StoreError> {
        let tenants: Vec<Uuid> = tenants.iter().map(|tenant| tenant.0).collect();
        let lines = sqlx::query_as!(
            Columns,
            r#"WITH RECURSIVE line AS (
                 SELECT first.tenant_id, first.workflow_id, first.vt
                 FROM UNNEST($1::uuid[]) AS t (id) CROSS JOIN LATERAL (
                     SELECT tenant_id, workflow_id, vt FROM open_steps
                     WHERE tenant_id = t.id AND workflow_id IS NOT NULL
                     ORDER BY workflow_id, vt LIMIT 1
                 ) first
                 UNION ALL
                 SELECT next.tenant_id, next.workflow_id, next.vt FROM line CROSS JOIN LATERAL (
                     SELECT tenant_id, workflow_id, vt FROM open_steps
                     WHERE tenant_id = line.tenant_id AND workflow_id > line.workflow_id
                     ORDER BY workflow_id, vt LIMIT 1
                 ) next
             )
             SELECT tenant_id AS "tenant_id!", workflow_id AS "workflow_id!",
                 CASE WHEN vt <= now() THEN vt END AS due_since,
                 EXTRACT(EPOCH FROM NULLIF(CASE WHEN vt > now() THEN vt ELSE (
                     SELECT min(vt) FROM open_steps s
                     WHERE s.tenant_id = line.tenant_id AND s.workflow_id = line.workflow_id AND s.vt > now()
                 ) END, 'infinity') - now())::float8 AS next_seconds
             FROM line"#,
            &tenants,
        )
        .fetch_all(&self.inner.claims)
        .await?;
        Ok(lines.into_iter().map(Line::from).collect())
    }

    /// When the next step of each of these becomes due that was not yet so long ago; in their order. Whoever has just claimed
    /// says when that began: what became due since was not seen by the claim.
    pub async fn next_of(
        &self,
        queues: &[Queue],
        ago: Duration,
    ) -> Result<Vec<Option<Duration>>, StoreError> {
        let tenants: Vec<Uuid> = queues.iter().map(|queue| queue.tenant.0).collect();
        let workflows: Vec<Uuid> = queues.iter().map(|queue| queue.workflow.0).collect();
        let next = sqlx::query_scalar!(
            r#"SELECT EXTRACT(EPOCH FROM (
                 SELECT min(vt) FROM open_steps s
                 WHERE s.tenant_id = q.tenant_id AND s.workflow_id = q.workflow_id
                   AND s.vt > now() - $3::interval AND s.vt < 'infinity'
             ) - now())::float8
             FROM UNNEST($1::uuid[], $2::uuid[]) WITH ORDINALITY AS q (tenant_id, workflow_id, n)
             ORDER BY q.n"#,
            &tenants,
            &workflows,
            value::interval(ago),
        )
        .fetch_all(&self.inner.claims)
        .await?;
        // What is due already is due at once.
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(next.into_iter().map(|seconds| seconds.map(duration)).collect())
    }
}
