//! Steps that waited, and settle.

use counterfoil_domain::id::TenantId;
use uuid::Uuid;

use super::WaitEnd;
use crate::StoreError;
use crate::transaction::Tx;

/// Ends a step's wait in the transaction that settles it. False if something came that it has not looked at, or if what it
/// takes was taken by another: then nothing must be committed. The caller holds the run's lock.
pub(crate) async fn end_wait(
    tx: &mut Tx,
    tenant: TenantId,
    step: Uuid,
    end: WaitEnd,
) -> Result<bool, StoreError> {
    let is_true = match end {
        WaitEnd::Came => true,
        WaitEnd::Takes(signal) => {
            let taken = sqlx::query!(
                "UPDATE signals s SET taken_by = $2 FROM waits w
                 WHERE w.tenant_id = $1 AND w.step_id = $2
                   AND s.tenant_id = $1 AND s.run_id = w.run_id AND s.id = $3 AND s.taken_by IS NULL",
                tenant.0,
                step,
                signal,
            )
            .execute(&mut **tx)
            .await?;
            taken.rows_affected() == 1
        }
        WaitEnd::TimedOut { seen } => sqlx::query_scalar!(
            r#"SELECT $3 = (
                 SELECT count(*) FROM signals s
                 WHERE s.tenant_id = $1 AND s.run_id = w.run_id AND s.kind = w.kind AND s.name = w.name
                   AND (w.record_id IS NULL OR s.record_id = w.record_id) AND s.taken_by IS NULL) AS "is_true!"
             FROM waits w WHERE w.tenant_id = $1 AND w.step_id = $2"#,
            tenant.0,
            step,
            seen,
        )
        .fetch_optional(&mut **tx)
        .await?
        .unwrap_or(false),
        WaitEnd::Expired => {
            let expired = sqlx::query!(
                "UPDATE approvals SET outcome = 'expired', decided_at = now()
                 WHERE tenant_id = $1 AND id = $2 AND outcome IS NULL",
                tenant.0,
                step,
            )
            .execute(&mut **tx)
            .await?;
            expired.rows_affected() == 1
        }
    };
    if is_true {
        sqlx::query!("DELETE FROM waits WHERE tenant_id = $1 AND step_id = $2", tenant.0, step)
            .execute(&mut **tx)
            .await?;
    }
    Ok(is_true)
}

/// Ends the waits of steps that are cancelled: nobody is asked any more, and the runs that they wait for are to be cancelled.
pub(crate) async fn cancel_waits(tx: &mut Tx, tenant: TenantId, steps: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH gone AS (
             DELETE FROM waits WHERE tenant_id = $1 AND step_id = ANY ($2) RETURNING step_id, kind, name
         ), asked AS (
             UPDATE approvals a SET outcome = 'cancelled', decided_at = now()
             FROM gone WHERE gone.kind = 'approval' AND a.tenant_id = $1 AND a.id = gone.step_id AND a.outcome IS NULL
         )
         INSERT INTO due_cancels (tenant_id, run_id)
         SELECT $1, name::uuid FROM gone WHERE kind = 'child'
         ON CONFLICT DO NOTHING",
        tenant.0,
        steps,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
