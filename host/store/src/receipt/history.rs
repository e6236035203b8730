//! One receipt, with everything that is known of it.

use counterfoil_domain::id::{EffectId, TenantId};
use counterfoil_domain::receipt::ReceiptState;

use super::{HistoryEntry, ReceiptRow, ReceiptView};
use crate::error::Row;
use crate::{Store, StoreError};

impl Store {
    /// A receipt with its history, and with what its block was asked about it.
    pub async fn receipt(&self, tenant: TenantId, id: EffectId) -> Result<Option<ReceiptView>, StoreError> {
        let row = sqlx::query_as!(
            ReceiptRow,
            "SELECT * FROM receipts WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            id.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let run = sqlx::query!(
            // A receipt that guards outlives its run.
            r#"SELECT w.name AS "workflow?", r.has_ended AS "has_ended!" FROM (
                 SELECT workflow_id, state <> 'open' AS has_ended FROM runs WHERE tenant_id = $1 AND id = $2
                 UNION ALL
                 SELECT workflow_id, true FROM forgotten_runs
                 WHERE tenant_id = $1 AND lineage = $3 AND run_id = $2
             ) r
             LEFT JOIN workflows w ON w.tenant_id = $1 AND w.id = r.workflow_id"#,
            tenant.0,
            row.run_id,
            row.lineage,
        )
        .fetch_optional(self.pool())
        .await?;
        let (workflow, has_ended) = run.map(|run| (run.workflow, run.has_ended)).unwrap_or_default();
        let mut view = row.view(workflow.unwrap_or_default())?;
        view.run_has_ended = has_ended;
        view.history = self.history(tenant, id).await?;
        if view.receipt.standing.state() == ReceiptState::Unknown {
            view.verification = self.verification(tenant, id).await?;
        }
        Ok(Some(view))
    }

    async fn history(&self, tenant: TenantId, id: EffectId) -> Result<Vec<HistoryEntry>, StoreError> {
        let moves = sqlx::query!(
            "SELECT at, from_state, to_state, actor, evidence FROM receipt_history
             WHERE tenant_id = $1 AND receipt_id = $2 ORDER BY at",
            tenant.0,
            id.0,
        )
        .fetch_all(self.pool())
        .await?;
        let row = Row { table: "receipt_history of", id };
        moves
            .into_iter()
            .map(|entry| {
                Ok(HistoryEntry {
                    at: entry.at,
                    from: row.need("from_state", ReceiptState::from_name(&entry.from_state))?,
                    to: row.need("to_state", ReceiptState::from_name(&entry.to_state))?,
                    actor: entry.actor,
                    evidence: entry.evidence,
                })
            })
            .collect()
    }
}
