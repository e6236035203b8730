//! What the database says by itself: nothing waits for ever, nothing stale was written, nothing belongs to two.

use std::collections::BTreeMap;

use anyhow::Context as _;
use counterfoil_domain::id::{EffectId, RunId};
use sqlx::{AssertSqlSafe, FromRow, PgPool};
use uuid::Uuid;

use super::Reconciled;

/// What is known of the work beforehand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected<'a> {
    /// Keys of API calls that were accepted, and the run that each answer named. Without them, starts are not judged.
    pub accepted: Option<&'a BTreeMap<String, String>>,
    /// Keys whose calls were never answered.
    pub unanswered: &'a [String],
    /// Delays in workflows.
    pub timers: &'a [Timer],
    /// Shortest wait before any step's next attempt, in milliseconds.
    pub retry_ms_min: i64,
    /// Everything has ended.
    pub nothing_open: bool,
}

/// A delay node.
#[derive(Debug, Clone, Copy)]
pub struct Timer {
    /// Name of its workflow.
    pub workflow: &'static str,
    /// The node.
    pub node: &'static str,
    /// Milliseconds.
    pub delay_ms: i64,
}

pub(super) async fn judge(
    found: &mut Reconciled,
    pool: &PgPool,
    expected: &Expected<'_>,
) -> anyhow::Result<()> {
    judge_waiting(found, pool).await?;
    judge_content(found, pool).await?;
    judge_leases(found, pool).await?;
    judge_history(found, pool).await?;
    judge_tenants(found, pool).await?;
    judge_events(found, pool).await?;
    judge_timers(found, pool, expected).await?;
    if let Some(accepted) = expected.accepted {
        judge_starts(found, pool, accepted, expected.unanswered).await?;
    }
    if expected.nothing_open {
        judge_ended(found, pool).await?;
    }
    Ok(())
}

/// Read whole by `Debug`, for the violation that it makes.
#[derive(Debug, FromRow)]
#[expect(dead_code, reason = "`node` is read by Debug")]
struct WaitingRow {
    id: Uuid,
    node: String,
    wait: String,
    held: bool,
    due_in_seconds: Option<f64>,
    open_outcomes: i64,
}

/// Nothing waits that nothing will wake.
async fn judge_waiting(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let waiting: Vec<WaitingRow> = sqlx::query_as(
        "SELECT id, node, wait, lease_id IS NOT NULL AS held,
                CASE WHEN vt = 'infinity' THEN NULL ELSE extract(epoch FROM vt - now())::float8 END AS due_in_seconds,
                (SELECT count(*) FROM receipts r WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration AND r.state = 'unknown') AS open_outcomes
         FROM open_steps s",
    )
    .fetch_all(pool)
    .await
    .context("reading open steps")?;
    for step in waiting {
        let woken = match step.wait.as_str() {
            "blocked" => step.open_outcomes > 0,
            _ => step.due_in_seconds.is_some(),
        };
        if !woken {
            found.violation_of(step.id, format!("nothing will wake {step:?}"));
        }
        if step.held && step.due_in_seconds.is_none() {
            found.violation_of(step.id, format!("a lease that never ends: {step:?}"));
        }
    }
    let orphans: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM runs r WHERE r.state = 'open'
           AND NOT EXISTS (SELECT FROM open_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.id)",
    )
    .fetch_one(pool)
    .await
    .context("reading runs")?;
    if orphans > 0 {
        found.violation(format!("{orphans} runs are open and have nothing to do next"));
    }
    Ok(())
}

/// Of receipts that guard the same content, one may have happened.
async fn judge_content(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let guarded: Vec<(String, i64)> = sqlx::query_as(
        "SELECT encode(content_key, 'hex'), count(*) FROM receipts
         WHERE guarded AND state IN ('dispatched', 'unknown', 'committed', 'verified')
         GROUP BY tenant_id, content_key HAVING count(*) > 1",
    )
    .fetch_all(pool)
    .await
    .context("reading guarded receipts")?;
    for (content, count) in guarded {
        found.duplicates += usize::try_from(count - 1).unwrap_or(0);
        found.violation(format!(
            "{count} effects with the content {content}, which its invariant allows once"
        ));
    }
    Ok(())
}

/// Nothing is dispatched under a lease that somebody else had taken away before.
async fn judge_leases(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let stale: Vec<(Uuid, Uuid)> = sqlx::query_as(
        "SELECT r.id, r.step_id FROM receipts r
         JOIN step_attempts a ON a.tenant_id = r.tenant_id AND a.run_id = r.run_id AND a.step_id = r.step_id
             AND a.lease_id = r.lease_id
         WHERE r.safety <> 'read-only' AND r.dispatched_at > a.ended_at",
    )
    .fetch_all(pool)
    .await
    .context("reading leases")?;
    for (id, step) in stale {
        found.violation_of(step, format!("{} was dispatched under a lease that had ended", EffectId(id)));
    }
    Ok(())
}

/// The history of a receipt is a chain that ends where the receipt stands.
async fn judge_history(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let broken: Vec<(Uuid, Uuid, String)> = sqlx::query_as(
        "SELECT r.id, r.step_id, string_agg(h.from_state || ' to ' || h.to_state, ', ' ORDER BY h.at) || '; now ' || r.state
         FROM (
             SELECT *, lag(to_state) OVER moves AS before, lead(from_state) OVER moves AS after FROM receipt_history
             WINDOW moves AS (PARTITION BY tenant_id, receipt_id ORDER BY at)
         ) h
         JOIN receipts r ON r.tenant_id = h.tenant_id AND r.id = h.receipt_id
         GROUP BY r.id, r.step_id, r.state
         HAVING bool_or(h.before <> h.from_state) OR bool_or(h.after IS NULL AND h.to_state <> r.state)",
    )
    .fetch_all(pool)
    .await
    .context("reading histories")?;
    for (id, step, moves) in broken {
        found.violation_of(step, format!("{} has moved from where it did not stand: {moves}", EffectId(id)));
    }
    Ok(())
}

/// Rows that belong to a run belong to its tenant.
async fn judge_tenants(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    for table in
        ["receipts", "open_runs", "open_steps", "settled_steps", "step_attempts", "invariant_results"]
    {
        let strangers: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT count(*) FROM {table} t
             WHERE NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = t.tenant_id AND r.id = t.run_id)",
        )))
        .fetch_one(pool)
        .await
        .context(table)?;
        if strangers > 0 {
            found.violation(format!("{strangers} rows of {table} belong to no run of their tenant"));
        }
    }
    Ok(())
}

/// An event that a step emitted is in the outbox, and an event there that bears a receipt's id has that receipt.
async fn judge_events(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let missing: Vec<(Uuid, Uuid)> = sqlx::query_as(
        "SELECT r.id, r.step_id FROM receipts r
         WHERE r.kind = 'emit' AND r.state = 'committed'
           AND NOT EXISTS (SELECT FROM events e WHERE e.tenant_id = r.tenant_id AND e.id = r.id)",
    )
    .fetch_all(pool)
    .await
    .context("reading events")?;
    for (id, step) in missing {
        found.violation_of(step, format!("{} is committed and its event is not recorded", EffectId(id)));
    }
    Ok(())
}

/// A timer is served once, and not before it is due; nor is an attempt made before its wait is over.
async fn judge_timers(found: &mut Reconciled, pool: &PgPool, expected: &Expected<'_>) -> anyhow::Result<()> {
    for timer in expected.timers {
        let Timer { workflow, node, delay_ms } = *timer;
        let wrong: Vec<(Uuid, i64, Option<i64>)> = sqlx::query_as(
            "SELECT r.id, count(s.id), min(extract(epoch FROM s.settled_at - s.queued_at) * 1000)::bigint
             FROM runs r JOIN workflows w ON w.tenant_id = r.tenant_id AND w.id = r.workflow_id AND w.name = $1
             LEFT JOIN settled_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.id AND s.node = $2
             WHERE r.state = 'succeeded'
             GROUP BY r.tenant_id, r.id
             HAVING count(s.id) <> 1 OR min(s.settled_at - s.queued_at) < $3 * interval '1 millisecond'",
        )
        .bind(workflow)
        .bind(node)
        .bind(delay_ms)
        .fetch_all(pool)
        .await
        .context("reading timers")?;
        for (run, served, after_ms) in wrong {
            let run = RunId(run);
            let what = format!(
                "the timer `{node}` of {delay_ms} ms in {run} was served {served} times, after {after_ms:?} ms"
            );
            found.violation(what);
        }
    }
    let early: Vec<(Uuid, String)> = sqlx::query_as(
        "SELECT a.step_id, s.node FROM step_attempts a
         JOIN settled_steps s ON s.tenant_id = a.tenant_id AND s.run_id = a.run_id AND s.id = a.step_id
         WHERE a.ended = 'retry' AND s.attempt > a.attempt
           AND s.started_at < a.ended_at + $1 * interval '1 millisecond'",
    )
    .bind(expected.retry_ms_min)
    .fetch_all(pool)
    .await
    .context("reading attempts")?;
    for (step, node) in early {
        found.violation_of(step, format!("`{node}` was tried again before its wait was over"));
    }
    Ok(())
}

/// Every call that was accepted has one run, every other call at most one, and no run was called for by nobody.
async fn judge_starts(
    found: &mut Reconciled,
    pool: &PgPool,
    accepted: &BTreeMap<String, String>,
    unanswered: &[String],
) -> anyhow::Result<()> {
    let rows: Vec<(Uuid, String)> =
        sqlx::query_as("SELECT id, start_key FROM runs").fetch_all(pool).await.context("reading starts")?;
    let mut runs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (id, key) in &rows {
        let key = key.strip_prefix("api:").unwrap_or(key);
        runs.entry(key).or_default().push(RunId(*id).to_string());
    }
    for (key, run) in accepted {
        let started = runs.remove(key.as_str()).unwrap_or_default();
        if started.len() != 1 || started[0] != *run {
            found.violation(format!("the start {key} was answered with {run} and has the runs {started:?}"));
        }
    }
    for key in unanswered {
        let started = runs.remove(key.as_str()).unwrap_or_default();
        if started.len() > 1 {
            found.violation(format!("the start {key} was not answered and has the runs {started:?}"));
        }
    }
    for (key, started) in runs {
        found.violation(format!("the runs {started:?} were started by {key:?}, which nobody sent"));
    }
    Ok(())
}

/// Whatever began has ended.
async fn judge_ended(found: &mut Reconciled, pool: &PgPool) -> anyhow::Result<()> {
    let open: Vec<(Uuid, String, String)> =
        sqlx::query_as("SELECT id, node, wait || ', attempt ' || attempt || ', due ' || vt FROM open_steps")
            .fetch_all(pool)
            .await
            .context("reading open steps")?;
    for (step, node, how) in open {
        found.violation_of(step, format!("`{node}` has not ended: {how}"));
    }
    Ok(())
}
