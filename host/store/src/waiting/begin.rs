//! A step that begins to wait, or goes on waiting.

use counterfoil_domain::id::{RunId, StepId, TenantId};
use counterfoil_domain::receipt::Actor;
use serde_json::json;

use super::{Await, AwaitVerdict, Awaited, SIGNALS_PER_RUN_MAX, SignalRow, Waiting};
use crate::audit::audit;
use crate::step::hold;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError};

impl Store {
    /// Lets a step wait. What came first is not lost: with the run locked, either this sees it, or whoever brings it sees
    /// this. The row that says what is waited for, and until when, is written in the same transaction that lets go of the
    /// step.
    pub async fn wait_for(&self, wish: &Await) -> Result<AwaitVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if let Awaited::Event { event_type, .. } = &wish.what {
            // Before the run, as those do who bring events.
            hold_type(&mut tx, wish.fence.tenant, event_type, true).await?;
        }
        let run = sqlx::query_scalar!(
            "SELECT run_id FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE",
            wish.fence.tenant.0,
            wish.run.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        if run.is_none() || hold(&mut tx, &wish.fence).await?.is_none() {
            return undo(tx, AwaitVerdict::Lost).await;
        }
        if insert(&mut tx, wish).await? {
            match &wish.what {
                Awaited::Event { event_type, record } => {
                    look_back(&mut tx, wish, event_type, record.as_deref()).await?;
                }
                Awaited::Approval { .. } => ask(&mut tx, wish).await?,
                Awaited::Signal { .. } => {}
            }
        }
        let_go(&mut tx, wish).await?;
        tx.commit().await?;
        self.wake_tenant(wish.fence.tenant);
        Ok(AwaitVerdict::Waiting)
    }

    /// What a step waits for, and what has come; none if it does not wait yet.
    pub async fn waiting(&self, tenant: TenantId, step: StepId) -> Result<Option<Waiting>, StoreError> {
        let wait = sqlx::query!(
            r#"SELECT run_id, kind, name, record_id, deadline <= now() AS "is_over!"
             FROM waits WHERE tenant_id = $1 AND step_id = $2"#,
            tenant.0,
            step.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(wait) = wait else { return Ok(None) };
        let rows = sqlx::query!(
            "SELECT id, name, record_id, data, received_at FROM signals
             WHERE tenant_id = $1 AND run_id = $2 AND kind = $3 AND name = $4
               AND ($5::text IS NULL OR record_id = $5) AND taken_by IS NULL
             ORDER BY received_at, id",
            tenant.0,
            wait.run_id,
            wait.kind,
            wait.name,
            wait.record_id,
        )
        .fetch_all(self.pool())
        .await?;
        let signals = rows.into_iter().map(|row| SignalRow {
            id: row.id,
            name: row.name,
            record: row.record_id,
            data: row.data,
            received_at: row.received_at,
        });
        Ok(Some(Waiting { is_over: wait.is_over, signals: signals.collect() }))
    }
}

/// Waits until nobody brings, or nobody begins to wait for, events of a type.
pub(super) async fn hold_type(
    tx: &mut Tx,
    tenant: TenantId,
    event_type: &str,
    is_shared: bool,
) -> Result<(), StoreError> {
    let key = format!("listen/{tenant}/{event_type}");
    if is_shared {
        sqlx::query!("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))", key)
            .execute(&mut **tx)
            .await?;
    } else {
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key).execute(&mut **tx).await?;
    }
    Ok(())
}

/// True if the step did not wait before.
async fn insert(tx: &mut Tx, wish: &Await) -> Result<bool, StoreError> {
    let (kind, name, record) = match &wish.what {
        Awaited::Signal { name } => ("signal", name.clone(), None),
        Awaited::Event { event_type, record } => ("event", event_type.clone(), record.clone()),
        Awaited::Approval { .. } => ("approval", wish.fence.step.to_string(), None),
    };
    let inserted = sqlx::query!(
        "INSERT INTO waits (tenant_id, step_id, run_id, kind, name, record_id, deadline)
         VALUES ($1, $2, $3, $4, $5, $6, COALESCE(now() + $7::interval, 'infinity'))
         ON CONFLICT DO NOTHING",
        wish.fence.tenant.0,
        wish.fence.step.0,
        wish.run.0,
        kind,
        name,
        record,
        wish.timeout.map(value::interval),
    )
    .execute(&mut **tx)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// What was recorded since the run began.
async fn look_back(
    tx: &mut Tx,
    wish: &Await,
    event_type: &str,
    record: Option<&str>,
) -> Result<(), StoreError> {
    let unheard = sqlx::query_scalar!(
        r#"WITH wanted AS (
             SELECT e.*, row_number() OVER (ORDER BY e.recorded_at, e.id) + (
                 SELECT count(*) FROM signals s
                 WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.taken_by IS NULL) AS place
             FROM runs r JOIN events e ON e.tenant_id = r.tenant_id AND e.recorded_at >= r.admitted_at
             WHERE r.tenant_id = $1 AND r.id = $2 AND e.type = $3 AND ($4::text IS NULL OR e.record_id = $4)
               AND NOT EXISTS (
                   SELECT FROM signals s WHERE s.tenant_id = $1 AND s.run_id = $2 AND s.id = e.id)
         ), kept AS (
             INSERT INTO signals (tenant_id, run_id, id, kind, name, record_id, data, sent_by, received_at)
             SELECT tenant_id, $2, id, 'event', type, record_id, data, 'event', recorded_at
             FROM wanted WHERE place <= $5
             ON CONFLICT DO NOTHING
         )
         SELECT count(*) AS "events!" FROM wanted WHERE place > $5"#,
        wish.fence.tenant.0,
        wish.run.0,
        event_type,
        record,
        SIGNALS_PER_RUN_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    tell_unheard(tx, wish.fence.tenant, wish.run, event_type, unheard).await
}

/// Says in a run's timeline how many events it could not keep.
pub(super) async fn tell_unheard(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    event_type: &str,
    events: i64,
) -> Result<(), StoreError> {
    if events == 0 {
        return Ok(());
    }
    tracing::warn!(%run, event_type, events, "a run keeps so many events that it could not keep these");
    let detail = json!({ "event": event_type, "events": events, "kept_max": SIGNALS_PER_RUN_MAX });
    audit(tx, tenant, &Actor::Host, "run.unheard", None, Some(run), &detail).await
}

async fn ask(tx: &mut Tx, wish: &Await) -> Result<(), StoreError> {
    let Awaited::Approval { node, title, detail, form } = &wish.what else { return Ok(()) };
    sqlx::query!(
        "INSERT INTO approvals (tenant_id, id, run_id, node, title, detail, form, deadline)
         VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval)
         ON CONFLICT DO NOTHING",
        wish.fence.tenant.0,
        wish.fence.step.0,
        wish.run.0,
        node,
        title,
        Exact(detail) as Exact<'_>,
        form.as_ref().map(Exact) as Option<Exact<'_>>,
        wish.timeout.map(value::interval),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Until the deadline, unless something has come that the execution has not looked at.
async fn let_go(tx: &mut Tx, wish: &Await) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH wait AS (
             SELECT w.deadline, CASE w.kind
                 WHEN 'approval' THEN EXISTS (
                     SELECT FROM approvals a WHERE a.tenant_id = $1 AND a.id = $2 AND a.outcome IS NOT NULL)
                 ELSE $4 <> (
                     SELECT count(*) FROM signals s
                     WHERE s.tenant_id = $1 AND s.run_id = w.run_id AND s.kind = w.kind AND s.name = w.name
                       AND (w.record_id IS NULL OR s.record_id = w.record_id) AND s.taken_by IS NULL)
                 END AS has_come
             FROM waits w WHERE w.tenant_id = $1 AND w.step_id = $2
         )
         UPDATE open_steps s
         SET lease_id = NULL, host_id = NULL, losses = 0,
             wait = CASE WHEN has_come THEN 'ready' ELSE 'signal' END,
             vt = CASE WHEN has_come THEN now() ELSE deadline END
         FROM wait WHERE s.tenant_id = $1 AND s.id = $2 AND s.lease_id = $3",
        wish.fence.tenant.0,
        wish.fence.step.0,
        wish.fence.lease.0,
        wish.seen,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
