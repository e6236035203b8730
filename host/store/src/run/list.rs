//! Runs in lists, and one run with its payloads.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, TenantId, WorkflowId};
use uuid::Uuid;

use super::{RunRow, RunState, RunView, Trigger};
use crate::error::Row;
use crate::page::Page;
use crate::value;
use crate::{Store, StoreError};

/// Which runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this workflow only.
    pub workflow: Option<WorkflowId>,
    /// In this state only.
    pub state: Option<RunState>,
    /// About this record only.
    pub record: Option<String>,
}

/// The columns of [`RunRow`].
struct Columns {
    id: Uuid,
    workflow_name: String,
    version: i32,
    state: String,
    admitted_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
    record_id: Option<String>,
    event_id: Option<Uuid>,
    ordinal: Option<i32>,
    parent_run_id: Option<Uuid>,
}

impl TryFrom<Columns> for RunRow {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "runs", id: RunId(columns.id) };
        let trigger = match (columns.event_id, columns.ordinal) {
            (Some(event), Some(ordinal)) => {
                Trigger::Event { event: event.into(), ordinal: value::count(&row, "ordinal", ordinal)? }
            }
            _ => columns.parent_run_id.map_or(Trigger::Api, |parent| Trigger::Run { parent: parent.into() }),
        };
        Ok(Self {
            id: row.id,
            workflow_name: columns.workflow_name,
            version: value::count(&row, "version", columns.version)?,
            state: row.need("state", RunState::from_name(&columns.state))?,
            admitted_at: columns.admitted_at,
            ended_at: columns.ended_at,
            record: columns.record_id,
            trigger,
        })
    }
}

impl Store {
    /// Runs, the newest first.
    pub async fn runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunRow>, StoreError> {
        let columns = match filter.state {
            Some(RunState::Pending | RunState::Running | RunState::Blocked | RunState::Waiting) => {
                self.open_runs(tenant, filter, &page).await?
            }
            Some(RunState::Succeeded | RunState::Failed | RunState::Cancelled) | None => {
                self.all_runs(tenant, filter, &page).await?
            }
        };
        columns.into_iter().map(RunRow::try_from).collect()
    }

    async fn all_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &Page,
    ) -> Result<Vec<Columns>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT id AS "id!", workflow_name AS "workflow_name!", version AS "version!", state AS "state!",
                 admitted_at AS "admitted_at!", ended_at, record_id, event_id, ordinal, parent_run_id
             FROM run_rows
             WHERE tenant_id = $1
               AND ($2::uuid IS NULL OR workflow_id = $2)
               AND ($3::text IS NULL OR state = $3)
               AND ($4::text IS NULL OR record_id = $4)
               AND ($5::uuid IS NULL OR id < $5)
             ORDER BY id DESC
             LIMIT $6"#,
            tenant.0,
            filter.workflow.map(|workflow| workflow.0),
            filter.state.map(RunState::name),
            filter.record,
            page.after_id()?,
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        Ok(columns)
    }

    /// The few that are open are looked through first, however many have ended.
    async fn open_runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: &Page,
    ) -> Result<Vec<Columns>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT r.id AS "id!", r.workflow_name AS "workflow_name!", r.version AS "version!",
                 r.state AS "state!", r.admitted_at AS "admitted_at!", r.ended_at, r.record_id, r.event_id, r.ordinal, r.parent_run_id
             FROM open_runs o
             JOIN run_rows r ON r.tenant_id = o.tenant_id AND r.id = o.run_id
             WHERE o.tenant_id = $1
               AND ($2::uuid IS NULL OR o.workflow_id = $2)
               AND ($3::text IS NULL OR r.state = $3)
               AND ($4::text IS NULL OR o.record_id = $4)
               AND ($5::uuid IS NULL OR o.run_id < $5)
             ORDER BY o.run_id DESC
             LIMIT $6"#,
            tenant.0,
            filter.workflow.map(|workflow| workflow.0),
            filter.state.map(RunState::name),
            filter.record,
            page.after_id()?,
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        Ok(columns)
    }

    /// A run without its payloads.
    pub async fn run_row(&self, tenant: TenantId, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT id AS "id!", workflow_name AS "workflow_name!", version AS "version!", state AS "state!",
                 admitted_at AS "admitted_at!", ended_at, record_id, event_id, ordinal, parent_run_id
             FROM run_rows WHERE tenant_id = $1 AND id = $2"#,
            tenant.0,
            id.0,
        )
        .fetch_optional(self.reads())
        .await?;
        columns.map(TryInto::try_into).transpose()
    }

    /// A run with its payloads.
    pub async fn run(&self, tenant: TenantId, id: RunId) -> Result<Option<RunView>, StoreError> {
        let row = self.run_row(tenant, id).await?;
        let payloads = sqlx::query!(
            "SELECT lineage, event, input, output, error FROM runs WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            id.0,
        )
        .fetch_optional(self.reads())
        .await?;
        let (Some(row), Some(payloads)) = (row, payloads) else { return Ok(None) };
        Ok(Some(RunView {
            row,
            lineage: payloads.lineage.into(),
            event: payloads.event,
            input: payloads.input,
            output: payloads.output,
            error: payloads.error,
        }))
    }
}
