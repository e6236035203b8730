//! What hangs on runs that are forgotten.

use uuid::Uuid;

use crate::transaction::{Tx, begin, undo};
use crate::{Store, StoreError};

/// Runs whose rest is cleared away in one transaction.
const RUNS_MAX: i64 = 50;
/// Rows of one table that go in one transaction: a few milliseconds, and a run may have a hundred thousand.
const ROWS_MAX: i64 = 2_000;

/// Forgotten runs that have left something, column by column.
#[derive(Default)]
struct Rest {
    tenants: Vec<Uuid>,
    lineages: Vec<Uuid>,
    runs: Vec<Uuid>,
}

impl Store {
    /// Clears away some of what is left of forgotten runs. False if nothing is, or others are at all of it.
    pub async fn clear_forgotten(&self) -> Result<bool, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // What is lost of it in a crash is done again.
        sqlx::query!("SELECT set_config('synchronous_commit', 'off', true)").fetch_one(&mut *tx).await?;
        let left = sqlx::query!(
            "SELECT tenant_id, lineage, run_id FROM forgotten_runs WHERE NOT is_clear
             ORDER BY forgotten_at LIMIT $1 FOR UPDATE SKIP LOCKED",
            RUNS_MAX,
        )
        .fetch_all(&mut *tx)
        .await?;
        if left.is_empty() {
            return undo(tx, false).await;
        }
        let mut runs = Rest::default();
        for row in left {
            runs.tenants.push(row.tenant_id);
            runs.lineages.push(row.lineage);
            runs.runs.push(row.run_id);
        }
        let gone = [
            clear_steps(&mut tx, &runs).await?,
            clear_attempts(&mut tx, &runs).await?,
            clear_signals(&mut tx, &runs).await?,
            clear_invariant_results(&mut tx, &runs).await?,
            clear_receipts(&mut tx, &runs).await?,
        ];
        if gone.into_iter().all(|rows| rows < ROWS_MAX) {
            finish(&mut tx, &runs).await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}

/// Settled steps, and what they asked people. Returns how many.
async fn clear_steps(tx: &mut Tx, runs: &Rest) -> Result<i64, StoreError> {
    let gone = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
             SELECT s.tenant_id, s.run_id, s.node, s.iteration, s.id
             FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN settled_steps s ON s.tenant_id = w.tenant_id AND s.run_id = w.run_id
             LIMIT $3
         ), gone AS (
             DELETE FROM settled_steps s USING old
             WHERE s.tenant_id = old.tenant_id AND s.run_id = old.run_id AND s.node = old.node
               AND s.iteration = old.iteration
         ), approvals AS (
             DELETE FROM approvals a USING old WHERE a.tenant_id = old.tenant_id AND a.id = old.id
         )
         SELECT count(*) AS "rows!" FROM old"#,
        &runs.tenants,
        &runs.runs,
        ROWS_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(gone)
}

/// Executions that did not settle their step. Returns how many.
async fn clear_attempts(tx: &mut Tx, runs: &Rest) -> Result<i64, StoreError> {
    let gone = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
             SELECT a.tenant_id, a.run_id, a.step_id, a.lease_id
             FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN step_attempts a ON a.tenant_id = w.tenant_id AND a.run_id = w.run_id
             LIMIT $3
         ), gone AS (
             DELETE FROM step_attempts a USING old
             WHERE a.tenant_id = old.tenant_id AND a.run_id = old.run_id AND a.step_id = old.step_id
               AND a.lease_id = old.lease_id
         )
         SELECT count(*) AS "rows!" FROM old"#,
        &runs.tenants,
        &runs.runs,
        ROWS_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(gone)
}

/// What was sent to the runs. Returns how many.
async fn clear_signals(tx: &mut Tx, runs: &Rest) -> Result<i64, StoreError> {
    let gone = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
             SELECT s.tenant_id, s.run_id, s.id FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN signals s ON s.tenant_id = w.tenant_id AND s.run_id = w.run_id
             LIMIT $3
         ), gone AS (
             DELETE FROM signals s USING old
             WHERE s.tenant_id = old.tenant_id AND s.run_id = old.run_id AND s.id = old.id
         )
         SELECT count(*) AS "rows!" FROM old"#,
        &runs.tenants,
        &runs.runs,
        ROWS_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(gone)
}

/// What invariants refused them. Returns how many.
async fn clear_invariant_results(tx: &mut Tx, runs: &Rest) -> Result<i64, StoreError> {
    let gone = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
             SELECT i.tenant_id, i.id FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN invariant_results i ON i.tenant_id = w.tenant_id AND i.run_id = w.run_id
             LIMIT $3
         ), gone AS (
             DELETE FROM invariant_results i USING old WHERE i.tenant_id = old.tenant_id AND i.id = old.id
         )
         SELECT count(*) AS "rows!" FROM old"#,
        &runs.tenants,
        &runs.runs,
        ROWS_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(gone)
}

/// The receipts of lineages of which no run is left, but for those of slots of which one guards what is
/// beyond the lineage. Returns how many.
async fn clear_receipts(tx: &mut Tx, runs: &Rest) -> Result<i64, StoreError> {
    let gone = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
             SELECT e.tenant_id, e.id FROM (
                 SELECT DISTINCT tenant_id, lineage FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, lineage)
             ) w
             JOIN receipts e ON e.tenant_id = w.tenant_id AND e.lineage = w.lineage
             WHERE NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = w.tenant_id AND r.id = w.lineage)
               AND NOT EXISTS (
                   SELECT FROM runs r
                   WHERE r.tenant_id = w.tenant_id AND r.lineage = w.lineage AND r.lineage <> r.id)
               -- Its slot is one story: of two dispatches the one that guards may be the one that did not happen.
               AND NOT EXISTS (
                   SELECT FROM receipts g
                   WHERE g.tenant_id = e.tenant_id AND g.lineage = e.lineage AND g.node = e.node
                     AND g.iteration = e.iteration AND g.slot_label IS NOT DISTINCT FROM e.slot_label
                     AND g.slot_ordinal IS NOT DISTINCT FROM e.slot_ordinal
                     AND g.guarded AND NOT g.released AND g.content_key
                       <> counterfoil.lineage_content_key(g.lineage, g.kind, g.destination, g.request_hash))
             LIMIT $3
         ), gone AS (
             DELETE FROM receipts e USING old WHERE e.tenant_id = old.tenant_id AND e.id = old.id
         ), history AS (
             DELETE FROM receipt_history h USING old WHERE h.tenant_id = old.tenant_id AND h.receipt_id = old.id
         ), tasks AS (
             DELETE FROM worker_tasks t USING old WHERE t.tenant_id = old.tenant_id AND t.id = old.id
         )
         SELECT count(*) AS "rows!" FROM old"#,
        &runs.tenants,
        &runs.lineages,
        ROWS_MAX,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(gone)
}

/// Nothing more is to be cleared away. What names the run beside a receipt that stays, stays with it.
async fn finish(tx: &mut Tx, runs: &Rest) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH w AS (SELECT DISTINCT * FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, lineage)),
         kept AS (
             SELECT tenant_id, lineage FROM w
             WHERE EXISTS (SELECT FROM receipts e WHERE e.tenant_id = w.tenant_id AND e.lineage = w.lineage)
         ), gone AS (
             DELETE FROM forgotten_runs f USING w
             WHERE f.tenant_id = w.tenant_id AND f.lineage = w.lineage
               AND (f.is_clear OR f.run_id = ANY ($3))
               AND NOT EXISTS (SELECT FROM kept WHERE kept.tenant_id = w.tenant_id AND kept.lineage = w.lineage)
         )
         UPDATE forgotten_runs f SET is_clear = true FROM kept
         WHERE f.tenant_id = kept.tenant_id AND f.lineage = kept.lineage AND f.run_id = ANY ($3)",
        &runs.tenants,
        &runs.lineages,
        &runs.runs,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
