//! Effects in lists.

use chrono::{DateTime, Utc};
use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::{EffectId, RunId, TenantId};
use counterfoil_domain::receipt::{ReceiptState, SlotKey};
use serde_json::Value;
use uuid::Uuid;

use crate::error::Row;
use crate::page::{Page, effect_cursor};
use crate::value;
use crate::{Store, StoreError};

/// Which effects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EffectFilter {
    /// In this state only.
    pub state: Option<ReceiptState>,
    /// Of this run only.
    pub run: Option<RunId>,
}

/// An effect in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectRow {
    /// Its id, which is its receipt's.
    pub id: EffectId,
    /// The run that it was sent for.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: String,
    /// The node that sent it.
    pub node: String,
    /// That node's iteration path.
    pub iteration: Vec<u32>,
    /// Which effect of the step.
    pub slot: SlotKey,
    /// 0 for the slot's first dispatch.
    pub dispatch_number: u64,
    /// `http`, `emit`, ….
    pub kind: String,
    /// What may be done when its outcome is open.
    pub safety: Safety,
    /// The connection that it goes through.
    pub connection: Option<String>,
    /// Where its receipt stands.
    pub state: ReceiptState,
    /// What a person may read of the request.
    pub preview: Value,
    /// What its answer, or the lack of one, was taken to mean; or the evidence of whoever resolved it.
    pub reason: Option<String>,
    /// When its intent became durable.
    pub prepared_at: DateTime<Utc>,
    /// When it was sent, or was about to be.
    pub dispatched_at: Option<DateTime<Utc>>,
    /// When its own answer was recorded.
    pub answered_at: Option<DateTime<Utc>>,
    /// When somebody else established what became of it.
    pub resolved_at: Option<DateTime<Utc>>,
    /// From when on the request can no longer arrive.
    pub absence_known_at: Option<DateTime<Utc>>,
}

impl EffectRow {
    /// Where a list goes on after this row.
    pub fn cursor(&self) -> String {
        effect_cursor(self.run.0, self.prepared_at, self.id.0)
    }
}

/// The columns of [`EffectRow`].
struct Columns {
    id: Uuid,
    run_id: Uuid,
    workflow: String,
    node: String,
    iteration: Vec<i32>,
    slot_label: Option<String>,
    slot_ordinal: Option<i64>,
    dispatch_number: i64,
    kind: String,
    safety: String,
    connection: Option<String>,
    state: String,
    preview: Value,
    reason: Option<String>,
    prepared_at: DateTime<Utc>,
    dispatched_at: Option<DateTime<Utc>>,
    answered_at: Option<DateTime<Utc>>,
    absence_known_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Effects. What is unknown comes oldest first, since somebody waits for it; anything else by run, the newest first.
    pub async fn effects(
        &self,
        tenant: TenantId,
        filter: EffectFilter,
        page: Page,
    ) -> Result<Vec<EffectRow>, StoreError> {
        let columns = match filter {
            EffectFilter { state: Some(ReceiptState::Unknown), run } => {
                self.unresolved(tenant, run, &page).await?
            }
            _ => self.effects_by_run(tenant, filter, &page).await?,
        };
        let mut rows: Vec<EffectRow> =
            columns.into_iter().map(EffectRow::try_from).collect::<Result<_, StoreError>>()?;
        let resolved =
            self.resolved_at(tenant, rows.iter().map(|row| (row.id, row.answered_at, row.state))).await?;
        for row in &mut rows {
            row.resolved_at = resolved.get(&row.id.0).copied();
        }
        Ok(rows)
    }

    async fn unresolved(
        &self,
        tenant: TenantId,
        run: Option<RunId>,
        page: &Page,
    ) -> Result<Vec<Columns>, StoreError> {
        let after = page.after_effect()?;
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT e.id, e.run_id, w.name AS workflow, e.node, e.iteration, e.slot_label, e.slot_ordinal,
                 e.dispatch_number, e.kind, e.safety, e.connection, e.state, e.preview, e.reason, e.prepared_at,
                 e.dispatched_at, e.answered_at, e.absence_known_at
             FROM receipts e
             JOIN runs r ON r.tenant_id = e.tenant_id AND r.id = e.run_id
             JOIN workflows w ON w.tenant_id = r.tenant_id AND w.id = r.workflow_id
             WHERE e.tenant_id = $1 AND e.unresolved
               AND ($5::uuid IS NULL OR e.run_id = $5)
               AND ($2::timestamptz IS NULL OR (e.prepared_at, e.id) > ($2, $3))
             ORDER BY e.prepared_at, e.id
             LIMIT $4"#,
            tenant.0,
            after.map(|(_, at, _)| at),
            after.map(|(_, _, id)| id),
            page.limit(),
            run.map(|run| run.0),
        )
        .fetch_all(self.reads())
        .await?;
        Ok(columns)
    }

    async fn effects_by_run(
        &self,
        tenant: TenantId,
        filter: EffectFilter,
        page: &Page,
    ) -> Result<Vec<Columns>, StoreError> {
        let after = page.after_effect()?;
        let columns = sqlx::query_as!(
            Columns,
            // Along the runs, whose ids are in the order of time: receipts have no index by time, which every dispatch
            // would have to pay for.
            r#"SELECT e.id, e.run_id,
                 (SELECT w.name FROM workflows w
                  WHERE w.tenant_id = r.tenant_id AND w.id = r.workflow_id) AS "workflow!",
                 e.node, e.iteration, e.slot_label, e.slot_ordinal,
                 e.dispatch_number, e.kind, e.safety, e.connection, e.state, e.preview, e.reason, e.prepared_at,
                 e.dispatched_at, e.answered_at, e.absence_known_at
             FROM runs r
             JOIN receipts e ON e.tenant_id = r.tenant_id AND e.lineage = r.lineage AND e.run_id = r.id
             WHERE r.tenant_id = $1
               AND ($2::uuid IS NULL OR r.id = $2)
               AND ($3::text IS NULL OR e.state = $3)
               AND ($4::uuid IS NULL OR (r.id <= $4 AND (r.id, e.prepared_at, e.id) < ($4, $5, $6)))
             ORDER BY r.id DESC, e.prepared_at DESC, e.id DESC
             LIMIT $7"#,
            tenant.0,
            filter.run.map(|run| run.0),
            filter.state.map(ReceiptState::name),
            after.map(|(run, _, _)| run),
            after.map(|(_, at, _)| at),
            after.map(|(_, _, id)| id),
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        Ok(columns)
    }
}

impl TryFrom<Columns> for EffectRow {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "receipts", id: EffectId(columns.id) };
        let slot = match columns.slot_label {
            Some(label) => SlotKey::Label(label),
            None => SlotKey::Ordinal(row.need("slot_ordinal", columns.slot_ordinal)?.cast_unsigned()),
        };
        Ok(Self {
            id: row.id,
            run: columns.run_id.into(),
            workflow: columns.workflow,
            node: columns.node,
            iteration: value::path_in(&columns.iteration),
            slot,
            dispatch_number: columns.dispatch_number.cast_unsigned(),
            kind: columns.kind,
            safety: row.need("safety", Safety::from_name(&columns.safety))?,
            connection: columns.connection,
            state: row.need("state", ReceiptState::from_name(&columns.state))?,
            preview: columns.preview,
            reason: columns.reason,
            prepared_at: columns.prepared_at,
            dispatched_at: columns.dispatched_at,
            answered_at: columns.answered_at,
            resolved_at: None,
            absence_known_at: columns.absence_known_at,
        })
    }
}
