//! What is past its time: finished runs are forgotten, a page of a tenant's runs at a time, and the rest by its age.
//!
//! What was promised outlives them: a receipt that guards stays, a record that has had its run is remembered, an event that
//! started one starts no other, and a run whose outcome is open in any way is not forgotten at all.

mod clear;
mod prune;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, TenantId};
use counterfoil_domain::receipt::Actor;
use serde_json::json;
use uuid::Uuid;

pub use self::prune::{Prunable, Pruned};
use crate::audit::audit;
use crate::error::Row;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, interval};
use crate::{Store, StoreError};

/// How long what is over is kept; none is for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepFor {
    /// Finished runs, of a tenant that has no time of its own.
    pub runs: Option<Duration>,
    /// Events, with what came of them: for so long a repeat is known for one.
    pub events: Option<Duration>,
    /// Answers to requests that named an idempotency key.
    pub requests: Option<Duration>,
    /// Audit rows.
    pub audit: Option<Duration>,
}

/// What is kept for how long, and how the rest goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long each is kept.
    pub keep: KeepFor,
    /// However short that is, a run that has not succeeded is kept for so long.
    pub replayable_for: Duration,
    /// Between two walks through one tenant's runs, or two rounds through anything else, at least.
    pub walk_every: Duration,
    /// Runs that are looked at in one transaction.
    pub page: u32,
    /// Rows of anything else that are looked at in one transaction.
    pub prune_page: u32,
}

/// What came of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walked {
    /// Runs that were looked at.
    pub looked_at: u64,
    /// Those of them that are forgotten now.
    pub forgotten: u64,
}

/// A tenant's time of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRetention {
    /// Days; none is the operator's for all.
    pub days: Option<u32>,
}

/// Where a walk stands.
struct Walk {
    tenant: TenantId,
    after: RunId,
    keep: Duration,
}

impl Store {
    /// Sees to it that every tenant whose runs are not kept for ever has its walk, and no other, and whatever else is not kept
    /// for ever its rounds.
    pub async fn set_out_walks(&self, retention: &Retention) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH none AS (
                 DELETE FROM retention_walks w USING tenants t
                 WHERE t.id = w.tenant_id AND NOT ($1 OR t.keep_runs_days IS NOT NULL)
             )
             INSERT INTO retention_walks (tenant_id)
             SELECT id FROM tenants t
             WHERE ($1 OR t.keep_runs_days IS NOT NULL)
               AND NOT EXISTS (SELECT FROM retention_walks w WHERE w.tenant_id = t.id)
             ON CONFLICT DO NOTHING",
            retention.keep.runs.is_some(),
        )
        .execute(self.pool())
        .await?;
        self.set_out_rounds(retention).await
    }

    /// Goes one page further on the walk that is due first, and forgets what is past its time there. None if no walk is due,
    /// or others are at all of them.
    ///
    /// `now` is the caller's clock. It only bounds where a walk ends: who is past its time, the database's clock says.
    pub async fn walk(
        &self,
        retention: &Retention,
        now: DateTime<Utc>,
    ) -> Result<Option<Walked>, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // What is lost of it in a crash is done again.
        sqlx::query!("SELECT set_config('synchronous_commit', 'off', true)").fetch_one(&mut *tx).await?;
        let Some(walk) = take_walk(&mut tx, retention).await? else { return undo(tx, None).await };
        let (walked, last) = forget_page(&mut tx, &walk, retention, now).await?;
        let is_over = walked.looked_at < u64::from(retention.page);
        sqlx::query!(
            "UPDATE retention_walks SET
                 after = CASE WHEN $2 THEN NULL ELSE $3::uuid END,
                 clean_at = CASE WHEN $2 THEN begun_at ELSE clean_at END,
                 due_at = CASE WHEN $2 THEN now() + $4::interval ELSE now() END
             WHERE tenant_id = $1",
            walk.tenant.0,
            is_over,
            last,
            interval(retention.walk_every),
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Some(walked))
    }

    /// How long the finished runs of the tenant of that name are kept; none if there is no such tenant.
    pub async fn tenant_retention(&self, name: &str) -> Result<Option<OwnRetention>, StoreError> {
        let found = sqlx::query_scalar!("SELECT keep_runs_days FROM tenants WHERE name = $1", name)
            .fetch_optional(self.pool())
            .await?;
        let row = Row { table: "tenants", id: name };
        let own = |days: Option<i32>| days.map(|days| value::count(&row, "keep_runs_days", days)).transpose();
        found.map(|days| Ok(OwnRetention { days: own(days)? })).transpose()
    }

    /// Sets it. False if there is no tenant of that name.
    pub async fn set_tenant_retention(
        &self,
        name: &str,
        own: OwnRetention,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let tenant = sqlx::query_scalar!(
            "UPDATE tenants SET keep_runs_days = $2 WHERE name = $1 RETURNING id",
            name,
            own.days.map(u32::cast_signed),
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(tenant) = tenant else { return undo(tx, false).await };
        let detail = json!({ "days": own.days });
        audit(&mut tx, TenantId(tenant), actor, "tenant.retention", None, None, &detail).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What was past its time so long ago is gone with all that hangs on it, but for what must stay; none where all is kept.
    pub async fn retention_lag(&self) -> Result<Option<Duration>, StoreError> {
        let seconds = sqlx::query_scalar!(
            "SELECT EXTRACT(EPOCH FROM now() - LEAST(
                 (SELECT min(clean_at) FROM retention_walks),
                 (SELECT min(clean_at) FROM pruning_rounds),
                 (SELECT min(forgotten_at) FROM forgotten_runs WHERE NOT is_clear)
             ))::float8"
        )
        .fetch_one(self.reads())
        .await?;
        Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
    }
}

/// Takes the walk that is due first, for as long as the transaction lasts.
async fn take_walk(tx: &mut Tx, retention: &Retention) -> Result<Option<Walk>, StoreError> {
    let found = sqlx::query!(
        r#"UPDATE retention_walks w SET begun_at = CASE WHEN w.after IS NULL THEN now() ELSE w.begun_at END
         FROM (
             SELECT tenant_id FROM retention_walks WHERE due_at <= now()
             ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
         ) due
         JOIN tenants t ON t.id = due.tenant_id
         WHERE w.tenant_id = due.tenant_id
         RETURNING w.tenant_id, w.after, t.keep_runs_days"#
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(found) = found else { return Ok(None) };
    let tenant = TenantId(found.tenant_id);
    let row = Row { table: "tenants", id: tenant };
    let own = found.keep_runs_days.map(|days| value::count(&row, "keep_runs_days", days)).transpose()?;
    // Between two looks, the last reason for the walk may have been taken away.
    let keep = own.map(days).or(retention.keep.runs).unwrap_or(Duration::MAX);
    Ok(Some(Walk { tenant, after: RunId(found.after.unwrap_or(Uuid::nil())), keep }))
}

/// So many days.
fn days(count: u32) -> Duration {
    const DAY_SECONDS: u64 = 86_400;
    Duration::from_secs(u64::from(count) * DAY_SECONDS)
}

/// An id that is above those of all runs which may be past their time: a run is admitted before it ends.
fn bound(keep: Duration, now: DateTime<Utc>) -> Option<Uuid> {
    /// The clocks that ids are made by, and the database's, are not further apart.
    const MARGIN: Duration = Duration::from_hours(24);
    let ended = now.checked_sub_signed(chrono::TimeDelta::from_std(keep).ok()?)?;
    let ms = u64::try_from((ended + MARGIN).timestamp_millis()).ok()?;
    Some(Uuid::from_u128(u128::from(ms) << 80))
}

/// Forgets what is past its time among the runs of one page, and returns the last one of the page.
async fn forget_page(
    tx: &mut Tx,
    walk: &Walk,
    retention: &Retention,
    now: DateTime<Utc>,
) -> Result<(Walked, Option<Uuid>), StoreError> {
    let Some(before) = bound(walk.keep, now) else { return Ok((Walked::default(), None)) };
    let found = sqlx::query!(
        // A run stays while something of it is open: to a late answer, a verifier or a person (its receipts), to a replay (its
        // time, and its parent), to a repeat of what started it (its event, or the answer that is kept for the request's key, for
        // as long as any is).
        r#"WITH page AS MATERIALIZED (
             SELECT id FROM runs WHERE tenant_id = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $6
         ), past AS (
             SELECT r.id FROM page JOIN runs r ON r.tenant_id = $1 AND r.id = page.id
             WHERE r.state <> 'open'
               AND r.ended_at < now() - CASE r.state WHEN 'succeeded' THEN $4::interval ELSE GREATEST($4, $5::interval) END
               AND NOT EXISTS (SELECT FROM runs above WHERE above.tenant_id = $1 AND above.id = r.parent_run_id)
               AND NOT EXISTS (
                   SELECT FROM receipts e WHERE e.tenant_id = $1 AND e.lineage = r.lineage
                     AND e.state IN ('planned', 'prepared', 'dispatched', 'unknown'))
               AND NOT EXISTS (
                   SELECT FROM events v WHERE v.tenant_id = $1 AND v.id = r.event_id AND v.pending)
               AND (r.start_key NOT LIKE 'api:%' OR r.admitted_at < now() - $7::interval OR EXISTS (
                   SELECT FROM idempotent_requests q
                   WHERE q.tenant_id = $1 AND q.key = substr(r.start_key, 5) AND q.status IS NOT NULL))
             FOR UPDATE OF r SKIP LOCKED
         ), gone AS (
             DELETE FROM runs r USING past WHERE r.tenant_id = $1 AND r.id = past.id
             RETURNING r.tenant_id, r.id, r.lineage, r.workflow_id, r.record_id
         ), cancels AS (
             DELETE FROM due_cancels c USING gone WHERE c.tenant_id = gone.tenant_id AND c.run_id = gone.id
         ), records AS (
             INSERT INTO forgotten_records (tenant_id, workflow_id, record_id)
             SELECT DISTINCT tenant_id, workflow_id, record_id FROM gone WHERE record_id IS NOT NULL
             ON CONFLICT DO NOTHING
         ), rest AS (
             INSERT INTO forgotten_runs (tenant_id, lineage, run_id, workflow_id)
             SELECT tenant_id, lineage, id, workflow_id FROM gone
         )
         SELECT (SELECT count(*) FROM page) AS "looked_at!", (SELECT count(*) FROM gone) AS "forgotten!",
             (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last"#,
        walk.tenant.0,
        walk.after.0,
        before,
        interval(walk.keep),
        interval(retention.replayable_for),
        i64::from(retention.page),
        retention.keep.requests.map(interval),
    )
    .fetch_one(&mut **tx)
    .await?;
    let row = Row { table: "retention_walks", id: walk.tenant };
    let walked = Walked {
        looked_at: row.read("looked_at", u64::try_from(found.looked_at))?,
        forgotten: row.read("forgotten", u64::try_from(found.forgotten))?,
    };
    Ok((walked, found.last))
}
