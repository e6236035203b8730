//! Everything that a run's timeline is drawn from.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{HostId, LeaseId, RunId, StepId, TenantId};
use counterfoil_domain::timeline::Ended;
use serde_json::Value;

use crate::audit::AuditRow;
use crate::error::Row;
use crate::receipt::{ReceiptRow, ReceiptView};
use crate::run::RunView;
use crate::settle::SettledState;
use crate::step::Wait;
use crate::value;
use crate::{Store, StoreError};

/// A run's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineRows {
    /// The run.
    pub run: RunView,
    /// The compiled plan of its version.
    pub plan: Value,
    /// Steps that have settled, in that order.
    pub settled: Vec<SettledRow>,
    /// Steps that have not.
    pub open: Vec<OpenRow>,
    /// Executions that did not settle their step, in order.
    pub attempts: Vec<AttemptRow>,
    /// Receipts that the run wrote, without history, in order of call.
    pub effects: Vec<ReceiptView>,
    /// What operators did to it, in order.
    pub audit: Vec<AuditRow>,
}

/// A step that has settled.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// How it ended.
    pub state: SettledState,
    /// In which attempt.
    pub attempt: u32,
    /// Hosts lost in a row before it ended.
    pub losses: u32,
    /// What came of it.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Value>,
    /// The branch that it chose.
    pub choice: Option<String>,
    /// What the guest logged in its last execution.
    pub logs: Option<Value>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub settled_at: DateTime<Utc>,
}

/// A step that has not settled.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// In which attempt it is.
    pub attempt: u32,
    /// What it waits for, or waited for before it was claimed.
    pub wait: Wait,
    /// Hosts lost in a row.
    pub losses: u32,
    /// When it is due, or its lease runs out; none if only a person or an answer can move it.
    pub due_at: Option<DateTime<Utc>>,
    /// The execution that holds it.
    pub lease: Option<LeaseId>,
    /// The host that does.
    pub host: Option<HostId>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When any execution of it first began.
    pub first_started_at: Option<DateTime<Utc>>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// Why its last execution did not settle it.
    pub error: Option<Value>,
}

/// An execution that did not settle its step.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Which step.
    pub step: StepId,
    /// Which execution.
    pub lease: LeaseId,
    /// In which attempt.
    pub attempt: u32,
    /// On which host.
    pub host: HostId,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// When it ended, or was found lost.
    pub ended_at: DateTime<Utc>,
    /// How.
    pub ended: Ended,
    /// Why.
    pub error: Option<Value>,
    /// What the guest logged.
    pub logs: Option<Value>,
}

impl Store {
    /// Everything that a run's timeline is drawn from.
    pub async fn timeline(&self, tenant: TenantId, run: RunId) -> Result<Option<TimelineRows>, StoreError> {
        let Some(view) = self.run(tenant, run).await? else { return Ok(None) };
        // What is open is read before what has settled: a step that settles meanwhile is in both lists, and is taken out
        // of the first, instead of being in neither.
        let mut open = self.open_rows(tenant, run).await?;
        let settled = self.settled_rows(tenant, run).await?;
        open.retain(|open| settled.iter().all(|settled| settled.step != open.step));
        let plan = sqlx::query_scalar!(
            "SELECT v.plan FROM runs r
             JOIN workflow_versions v ON v.tenant_id = r.tenant_id AND v.id = r.version_id
             WHERE r.tenant_id = $1 AND r.id = $2",
            tenant.0,
            run.0,
        )
        .fetch_one(self.reads())
        .await?;
        Ok(Some(TimelineRows {
            attempts: self.attempt_rows(tenant, run).await?,
            effects: self.effect_views(tenant, &view).await?,
            audit: self.audit_rows(tenant, run).await?,
            run: view,
            plan,
            settled,
            open,
        }))
    }

    async fn settled_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<SettledRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, node, iteration, state, attempt, losses, output, error, choice, logs, queued_at, started_at,
                 settled_at
             FROM settled_steps WHERE tenant_id = $1 AND run_id = $2
             ORDER BY settled_at, node, iteration",
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "settled_steps", id: StepId(columns.id) };
                Ok(SettledRow {
                    step: row.id,
                    node: columns.node,
                    iteration: value::path_in(&columns.iteration),
                    state: row.need("state", SettledState::from_name(&columns.state))?,
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    losses: value::count(&row, "losses", columns.losses)?,
                    output: columns.output,
                    error: columns.error,
                    choice: columns.choice,
                    logs: columns.logs,
                    queued_at: columns.queued_at,
                    started_at: columns.started_at,
                    settled_at: columns.settled_at,
                })
            })
            .collect()
    }

    async fn open_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<OpenRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, node, iteration, attempt, wait, losses, NULLIF(vt, 'infinity') AS due_at, lease_id, host_id,
                 queued_at, first_started_at, started_at, error
             FROM open_steps WHERE tenant_id = $1 AND run_id = $2
             ORDER BY queued_at, node, iteration"#,
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "open_steps", id: StepId(columns.id) };
                Ok(OpenRow {
                    step: row.id,
                    node: columns.node,
                    iteration: value::path_in(&columns.iteration),
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    wait: row.need("wait", Wait::from_name(&columns.wait))?,
                    losses: value::count(&row, "losses", columns.losses)?,
                    due_at: columns.due_at,
                    lease: columns.lease_id.map(LeaseId),
                    host: columns.host_id.map(HostId),
                    queued_at: columns.queued_at,
                    first_started_at: columns.first_started_at,
                    started_at: columns.started_at,
                    error: columns.error,
                })
            })
            .collect()
    }

    async fn attempt_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT step_id, lease_id, attempt, host_id, started_at, ended_at, ended, error, logs
             FROM step_attempts WHERE tenant_id = $1 AND run_id = $2
             ORDER BY started_at, step_id",
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter()
            .map(|columns| {
                let row = Row { table: "step_attempts of", id: StepId(columns.step_id) };
                Ok(AttemptRow {
                    step: row.id,
                    lease: columns.lease_id.into(),
                    attempt: value::count(&row, "attempt", columns.attempt)?,
                    host: columns.host_id.into(),
                    started_at: columns.started_at,
                    ended_at: columns.ended_at,
                    ended: row.need("ended", Ended::from_name(&columns.ended))?,
                    error: columns.error,
                    logs: columns.logs,
                })
            })
            .collect()
    }

    async fn effect_views(&self, tenant: TenantId, run: &RunView) -> Result<Vec<ReceiptView>, StoreError> {
        let rows = sqlx::query_as!(
            ReceiptRow,
            "SELECT * FROM receipts WHERE tenant_id = $1 AND lineage = $2 AND run_id = $3
             ORDER BY node, iteration, position, dispatch_number",
            tenant.0,
            run.lineage.0,
            run.row.id.0,
        )
        .fetch_all(self.reads())
        .await?;
        rows.into_iter().map(|row| row.view(run.row.workflow_name.clone())).collect()
    }

    async fn audit_rows(&self, tenant: TenantId, run: RunId) -> Result<Vec<AuditRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, at, actor, action, subject, detail FROM audit
             WHERE tenant_id = $1 AND run_id = $2 ORDER BY at",
            tenant.0,
            run.0,
        )
        .fetch_all(self.reads())
        .await?;
        let audit = rows.into_iter().map(|row| AuditRow {
            id: row.id,
            at: row.at,
            actor: row.actor,
            action: row.action,
            subject: row.subject,
            run: Some(run),
            detail: row.detail,
        });
        Ok(audit.collect())
    }
}
