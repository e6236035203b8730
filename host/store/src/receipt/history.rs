//! One receipt, with everything that is known of it.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, TenantId};
use counterfoil_domain::receipt::ReceiptState;
use uuid::Uuid;

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
        let end = (id, view.answered_at, view.receipt.standing.state());
        view.resolved_at = self.resolved_at(tenant, [end]).await?.get(&id.0).copied();
        if view.receipt.standing.state() == ReceiptState::Unknown {
            view.verification = self.verification(tenant, id).await?;
        }
        Ok(Some(view))
    }

    /// When receipts were resolved: of those that are settled and have no answer of their own, by id. Each with the time of its
    /// answer, and its state.
    pub(crate) async fn resolved_at(
        &self,
        tenant: TenantId,
        receipts: impl IntoIterator<Item = (EffectId, Option<DateTime<Utc>>, ReceiptState)>,
    ) -> Result<HashMap<Uuid, DateTime<Utc>>, StoreError> {
        use ReceiptState::{Abandoned, Committed, Compensated, Verified};
        let is_resolved = |answered_at: Option<_>, state| {
            answered_at.is_none() && matches!(state, Committed | Verified | Compensated | Abandoned)
        };
        let resolved =
            receipts.into_iter().filter(|(_, answered_at, state)| is_resolved(*answered_at, *state));
        let ids: Vec<Uuid> = resolved.map(|(id, ..)| id.0).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let moves = sqlx::query!(
            // Not by what was undone afterwards.
            r#"SELECT receipt_id, max(at) AS "at!" FROM receipt_history
             WHERE tenant_id = $1 AND receipt_id = ANY ($2)
               AND from_state IN ('dispatched', 'unknown') AND to_state <> 'unknown'
             GROUP BY receipt_id"#,
            tenant.0,
            &ids,
        )
        .fetch_all(self.reads())
        .await?;
        Ok(moves.into_iter().map(|entry| (entry.receipt_id, entry.at)).collect())
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
