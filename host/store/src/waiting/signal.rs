//! Signals to a run.

use counterfoil_domain::id::{RunId, TenantId};
use counterfoil_domain::receipt::Actor;
use serde_json::Value;
use uuid::Uuid;

use super::SIGNALS_PER_RUN_MAX;
use crate::transaction::{Tx, begin, undo};
use crate::value::Exact;
use crate::{Store, StoreError};

/// A signal to a run.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSignal {
    /// Its id; sending it again changes nothing.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// What it says.
    pub data: Value,
}

/// What came of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// It is kept until a step takes it.
    Kept,
    /// So many wait already that the run listens to no more.
    TooMany,
    /// The run has ended.
    Ended,
    /// There is no such run.
    NotFound,
}

impl Store {
    /// Sends a signal to a run. Nobody has to wait for it yet.
    pub async fn signal(
        &self,
        tenant: TenantId,
        run: RunId,
        signal: &NewSignal,
        by: &Actor,
    ) -> Result<Signalled, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if !hold_run(&mut tx, tenant, run).await? {
            let known =
                sqlx::query_scalar!("SELECT id FROM runs WHERE tenant_id = $1 AND id = $2", tenant.0, run.0,)
                    .fetch_optional(&mut *tx)
                    .await?;
            return undo(tx, if known.is_some() { Signalled::Ended } else { Signalled::NotFound }).await;
        }
        let kept = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM signals
             WHERE tenant_id = $1 AND run_id = $2 AND taken_by IS NULL"#,
            tenant.0,
            run.0,
        )
        .fetch_one(&mut *tx)
        .await?;
        if kept >= SIGNALS_PER_RUN_MAX {
            return undo(tx, Signalled::TooMany).await;
        }
        sqlx::query!(
            "INSERT INTO signals (tenant_id, run_id, id, kind, name, data, sent_by)
             VALUES ($1, $2, $3, 'signal', $4, $5, $6)
             ON CONFLICT DO NOTHING",
            tenant.0,
            run.0,
            signal.id,
            signal.name,
            Exact(&signal.data) as Exact<'_>,
            by.to_string(),
        )
        .execute(&mut *tx)
        .await?;
        wake_waiting(&mut tx, tenant, run, "signal", &signal.name).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(Signalled::Kept)
    }
}

/// Locks a run. False if it is not open.
pub(super) async fn hold_run(tx: &mut Tx, tenant: TenantId, run: RunId) -> Result<bool, StoreError> {
    let run = sqlx::query_scalar!(
        "SELECT run_id FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE",
        tenant.0,
        run.0,
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(run.is_some())
}

/// Makes the steps due that wait for something of this name. One that a host works on looks for itself before it waits again.
pub(super) async fn wake_waiting(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    kind: &str,
    name: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE open_steps s SET wait = 'ready', vt = now()
         FROM waits w
         WHERE w.tenant_id = $1 AND w.run_id = $2 AND w.kind = $3 AND w.name = $4
           AND s.tenant_id = $1 AND s.id = w.step_id AND s.wait = 'signal' AND s.lease_id IS NULL",
        tenant.0,
        run.0,
        kind,
        name,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
