//! Questions to people: asked once, decided once.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{ApprovalId, RunId, TenantId};
use counterfoil_domain::receipt::Actor;
use serde_json::{Value, json};

use super::signal::hold_run;
use crate::audit::audit;
use crate::error::Row;
use crate::page::Page;
use crate::transaction::begin;
use crate::value::{Exact, text_enum};
use crate::{Store, StoreError};

text_enum! {
    /// What came of a question.
    ApprovalOutcome {
        /// Somebody said yes.
        Approved = "approved",
        /// Somebody said no.
        Rejected = "rejected",
        /// Nobody answered in time.
        Expired = "expired",
        /// Its step was cancelled.
        Cancelled = "cancelled",
    }
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRow {
    /// Which one.
    pub id: ApprovalId,
    /// The run that asks.
    pub run: RunId,
    /// The run's workflow.
    pub workflow: String,
    /// Path of the node that asks.
    pub node: String,
    /// What is asked.
    pub title: String,
    /// What there is to know about it.
    pub detail: Value,
    /// JSON Schema of what is to be filled in.
    pub form: Option<Value>,
    /// Since when.
    pub asked_at: DateTime<Utc>,
    /// Until when.
    pub deadline: Option<DateTime<Utc>>,
    /// What came of it; none while it is open.
    pub outcome: Option<ApprovalOutcome>,
    /// When.
    pub decided_at: Option<DateTime<Utc>>,
    /// By whom.
    pub decided_by: Option<String>,
    /// What was filled in.
    pub answer: Option<Value>,
}

/// What came of a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Decided {
    /// It is made.
    Done(ApprovalRow),
    /// It was made before, or is not asked any more.
    AlreadyDecided(ApprovalRow),
    /// There is no such question.
    NotFound,
}

impl Store {
    /// Decides a question, once, and lets the step go on that asked it.
    pub async fn decide(
        &self,
        tenant: TenantId,
        id: ApprovalId,
        is_approved: bool,
        answer: Option<&Value>,
        by: &Actor,
    ) -> Result<Decided, StoreError> {
        let Some(asked) = self.approval(tenant, id).await? else { return Ok(Decided::NotFound) };
        let mut tx = begin(self.pool()).await?;
        // As whoever ends the wait does, before either looks.
        hold_run(&mut tx, tenant, asked.run).await?;
        let outcome = if is_approved { ApprovalOutcome::Approved } else { ApprovalOutcome::Rejected };
        let decided = sqlx::query!(
            "WITH decided AS (
                 UPDATE approvals SET outcome = $3, decided_at = now(), decided_by = $4, answer = $5
                 WHERE tenant_id = $1 AND id = $2 AND outcome IS NULL
                 RETURNING id
             ), woken AS (
                 UPDATE open_steps s SET wait = 'ready', vt = now() FROM decided
                 WHERE s.tenant_id = $1 AND s.id = decided.id AND s.wait = 'signal' AND s.lease_id IS NULL
             )
             SELECT id FROM decided",
            tenant.0,
            id.0,
            outcome.name(),
            by.to_string(),
            answer.map(Exact) as Option<Exact<'_>>,
        )
        .fetch_optional(&mut *tx)
        .await?;
        if decided.is_none() {
            tx.rollback().await?;
            let found = self.approval(tenant, id).await?;
            return Ok(found.map_or(Decided::NotFound, Decided::AlreadyDecided));
        }
        let detail = json!({ "outcome": outcome.name() });
        audit(&mut tx, tenant, by, "approval.decide", Some(id.0), Some(asked.run), &detail).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        match self.approval(tenant, id).await? {
            Some(row) => Ok(Decided::Done(row)),
            None => Ok(Decided::NotFound),
        }
    }

    /// One question.
    pub async fn approval(
        &self,
        tenant: TenantId,
        id: ApprovalId,
    ) -> Result<Option<ApprovalRow>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT a.id, a.run_id, r.workflow_name AS "workflow_name!", a.node, a.title, a.detail, a.form, a.asked_at,
                 a.deadline, a.outcome, a.decided_at, a.decided_by, a.answer
             FROM approvals a JOIN run_rows r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
             WHERE a.tenant_id = $1 AND a.id = $2"#,
            tenant.0,
            id.0,
        )
        .fetch_optional(self.pool())
        .await?;
        columns.map(ApprovalRow::try_from).transpose()
    }

    /// Questions that are open, the oldest first; or all of them, by their ids.
    pub async fn approvals(
        &self,
        tenant: TenantId,
        only_open: bool,
        page: Page,
    ) -> Result<Vec<ApprovalRow>, StoreError> {
        let columns = sqlx::query_as!(
            Columns,
            r#"SELECT a.id, a.run_id, r.workflow_name AS "workflow_name!", a.node, a.title, a.detail, a.form, a.asked_at,
                 a.deadline, a.outcome, a.decided_at, a.decided_by, a.answer
             FROM approvals a JOIN run_rows r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
             WHERE a.tenant_id = $1 AND (NOT $2 OR a.outcome IS NULL)
               AND ($3::uuid IS NULL OR (a.asked_at, a.id) > (
                   SELECT asked_at, id FROM approvals WHERE tenant_id = $1 AND id = $3))
             ORDER BY a.asked_at, a.id
             LIMIT $4"#,
            tenant.0,
            only_open,
            page.after_id()?,
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        columns.into_iter().map(ApprovalRow::try_from).collect()
    }
}

impl ApprovalRow {
    /// Where a list goes on after this row.
    pub fn cursor(&self) -> String {
        self.id.0.simple().to_string()
    }
}

struct Columns {
    id: uuid::Uuid,
    run_id: uuid::Uuid,
    workflow_name: String,
    node: String,
    title: String,
    detail: Value,
    form: Option<Value>,
    asked_at: DateTime<Utc>,
    deadline: Option<DateTime<Utc>>,
    outcome: Option<String>,
    decided_at: Option<DateTime<Utc>>,
    decided_by: Option<String>,
    answer: Option<Value>,
}

impl TryFrom<Columns> for ApprovalRow {
    type Error = StoreError;

    fn try_from(columns: Columns) -> Result<Self, StoreError> {
        let row = Row { table: "approvals", id: ApprovalId(columns.id) };
        let outcome = columns
            .outcome
            .map(|outcome| row.need("outcome", ApprovalOutcome::from_name(&outcome)))
            .transpose()?;
        Ok(Self {
            id: row.id,
            run: columns.run_id.into(),
            workflow: columns.workflow_name,
            node: columns.node,
            title: columns.title,
            detail: columns.detail,
            form: columns.form,
            asked_at: columns.asked_at,
            deadline: columns.deadline,
            outcome,
            decided_at: columns.decided_at,
            decided_by: columns.decided_by,
            answer: columns.answer,
        })
    }
}
