//! Reading workflows.

use counterfoil_domain::id::{TenantId, WorkflowId, WorkflowVersionId};
use serde_json::Value;
use uuid::Uuid;

use super::{ActivePlan, ActiveVersion, VersionFull, VersionRow, WorkflowRow, WorkflowView};
use crate::error::Row;
use crate::key::{self, KeyRow};
use crate::page::Page;
use crate::{Store, StoreError};
use crate::{share, value};

struct PlanColumns {
    id: Uuid,
    name: String,
    version_id: Uuid,
    number: i32,
    plan: Value,
}

impl TryFrom<PlanColumns> for ActivePlan {
    type Error = StoreError;

    fn try_from(columns: PlanColumns) -> Result<Self, StoreError> {
        let row = Row { table: "workflow_versions", id: WorkflowVersionId(columns.version_id) };
        Ok(Self {
            workflow: columns.id.into(),
            name: columns.name,
            version: row.id,
            number: value::count(&row, "number", columns.number)?,
            plan: columns.plan,
        })
    }
}

impl Store {
    /// The plans that serve new runs, by the names of their workflows.
    pub async fn active_plans(&self, tenant: TenantId) -> Result<Vec<ActivePlan>, StoreError> {
        let plans = sqlx::query_as!(
            PlanColumns,
            "SELECT w.id, w.name, v.id AS version_id, v.number, v.plan FROM workflows w
             JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.id = w.active_version_id
             WHERE w.tenant_id = $1
             ORDER BY w.name",
            tenant.0,
        )
        .fetch_all(self.pool())
        .await?;
        plans.into_iter().map(ActivePlan::try_from).collect()
    }

    /// Those, and the plans of runs that are unfinished.
    pub async fn plans_in_use(&self, tenant: TenantId) -> Result<Vec<ActivePlan>, StoreError> {
        let plans = sqlx::query_as!(
            PlanColumns,
            "SELECT w.id, w.name, v.id AS version_id, v.number, v.plan FROM workflow_versions v
             JOIN workflows w ON w.tenant_id = v.tenant_id AND w.id = v.workflow_id
             WHERE v.tenant_id = $1 AND (v.id = w.active_version_id OR v.id IN (
                 SELECT r.version_id FROM open_runs o JOIN runs r ON r.tenant_id = o.tenant_id AND r.id = o.run_id
                 WHERE o.tenant_id = $1))
             ORDER BY w.name, v.number",
            tenant.0,
        )
        .fetch_all(self.reads())
        .await?;
        plans.into_iter().map(ActivePlan::try_from).collect()
    }

    /// A tenant's workflows, by name.
    pub async fn workflows(&self, tenant: TenantId, page: Page) -> Result<Vec<WorkflowRow>, StoreError> {
        let workflows = sqlx::query!(
            r#"SELECT w.id, w.name, w.paused, a.number AS "active?",
                 (SELECT max(n.number) FROM workflow_versions n
                  WHERE n.tenant_id = w.tenant_id AND n.workflow_id = w.id) AS newest
             FROM workflows w
             LEFT JOIN workflow_versions a ON a.tenant_id = w.tenant_id AND a.id = w.active_version_id
             WHERE w.tenant_id = $1 AND ($2::text IS NULL OR w.name > $2)
             ORDER BY w.name
             LIMIT $3"#,
            tenant.0,
            page.after,
            page.limit(),
        )
        .fetch_all(self.reads())
        .await?;
        workflows
            .into_iter()
            .map(|workflow| {
                let row = Row { table: "workflows", id: &workflow.name };
                let number = |number| value::count(&row, "number", number);
                Ok(WorkflowRow {
                    id: workflow.id.into(),
                    paused: workflow.paused,
                    active: workflow.active.map(number).transpose()?,
                    newest: number(workflow.newest.unwrap_or(0))?,
                    name: workflow.name,
                })
            })
            .collect()
    }

    /// A workflow with its versions.
    pub async fn workflow(&self, tenant: TenantId, name: &str) -> Result<Option<WorkflowView>, StoreError> {
        let workflow = sqlx::query!(
            "SELECT id, paused, weight, in_flight_max, active_version_id FROM workflows
             WHERE tenant_id = $1 AND name = $2",
            tenant.0,
            name,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(workflow) = workflow else { return Ok(None) };
        let versions = sqlx::query!(
            "SELECT id, number, definition_hash, created_at FROM workflow_versions
             WHERE tenant_id = $1 AND workflow_id = $2 ORDER BY number DESC",
            tenant.0,
            workflow.id,
        )
        .fetch_all(self.pool())
        .await?;
        let versions: Vec<VersionRow> = versions
            .into_iter()
            .map(|version| {
                let row = Row { table: "workflow_versions", id: WorkflowVersionId(version.id) };
                Ok(VersionRow {
                    id: row.id,
                    number: value::count(&row, "number", version.number)?,
                    definition_hash: row
                        .read("definition_hash", version.definition_hash.as_slice().try_into())?,
                    created_at: version.created_at,
                })
            })
            .collect::<Result<_, StoreError>>()?;
        let is_active = |version: &&VersionRow| Some(version.id.0) == workflow.active_version_id;
        Ok(Some(WorkflowView {
            id: workflow.id.into(),
            name: name.into(),
            paused: workflow.paused,
            share: share::read(
                &Row { table: "workflows", id: WorkflowId(workflow.id) },
                workflow.weight,
                workflow.in_flight_max,
            )?,
            active: versions.iter().find(is_active).map(|version| version.number),
            versions,
        }))
    }

    /// A version with its contents.
    pub async fn version(
        &self,
        tenant: TenantId,
        version: WorkflowVersionId,
    ) -> Result<Option<VersionFull>, StoreError> {
        let found = sqlx::query!(
            "SELECT v.workflow_id, w.name, v.number, v.definition, v.source, v.plan FROM workflow_versions v
             JOIN workflows w ON w.tenant_id = v.tenant_id AND w.id = v.workflow_id
             WHERE v.tenant_id = $1 AND v.id = $2",
            tenant.0,
            version.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(found) = found else { return Ok(None) };
        let row = Row { table: "workflow_versions", id: version };
        Ok(Some(VersionFull {
            workflow: found.workflow_id.into(),
            workflow_name: found.name,
            version,
            number: value::count(&row, "number", found.number)?,
            definition: found.definition,
            source: found.source,
            plan: found.plan,
        }))
    }

    /// The version of a workflow with that number.
    pub async fn version_number(
        &self,
        tenant: TenantId,
        name: &str,
        number: u32,
    ) -> Result<Option<VersionFull>, StoreError> {
        let version = sqlx::query_scalar!(
            "SELECT v.id FROM workflows w
             JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.workflow_id = w.id
             WHERE w.tenant_id = $1 AND w.name = $2 AND v.number = $3",
            tenant.0,
            name,
            number.cast_signed(),
        )
        .fetch_optional(self.pool())
        .await?;
        match version {
            Some(version) => self.version(tenant, version.into()).await,
            None => Ok(None),
        }
    }

    /// What a new run of a workflow is pinned to; none if the workflow does not exist or has no active version.
    pub async fn active(&self, tenant: TenantId, name: &str) -> Result<Option<ActiveVersion>, StoreError> {
        let found = sqlx::query!(
            "SELECT w.id, w.paused, v.id AS version_id, v.number, v.plan FROM workflows w
             JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.id = w.active_version_id
             WHERE w.tenant_id = $1 AND w.name = $2",
            tenant.0,
            name,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(found) = found else { return Ok(None) };
        let row = Row { table: "workflow_versions", id: WorkflowVersionId(found.version_id) };
        Ok(Some(ActiveVersion {
            workflow: found.id.into(),
            version: row.id,
            number: value::count(&row, "number", found.number)?,
            plan: found.plan,
            paused: found.paused,
        }))
    }

    /// The key with that prefix, revoked or not, and what a new run of its tenant's workflow of that name is pinned to: in one
    /// look, for whoever waits for a run to start.
    pub async fn key_and_active(
        &self,
        prefix: &str,
        name: &str,
    ) -> Result<Option<(KeyRow, Option<ActiveVersion>)>, StoreError> {
        let found = sqlx::query!(
            r#"SELECT k.tenant_id, k.id, k.prefix, k.hash, k.scope, k.label, k.created_at, k.revoked_at,
                 w.id AS "workflow_id?", w.paused AS "paused?", v.id AS "version_id?", v.number AS "number?",
                 v.plan AS "plan?"
             FROM api_keys k
             LEFT JOIN workflows w ON w.tenant_id = k.tenant_id AND w.name = $2
             LEFT JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.id = w.active_version_id
             WHERE k.prefix = $1"#,
            prefix,
            name,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(found) = found else { return Ok(None) };
        let key = key::Columns {
            tenant_id: found.tenant_id,
            id: found.id,
            prefix: found.prefix,
            hash: found.hash,
            scope: found.scope,
            label: found.label,
            created_at: found.created_at,
            revoked_at: found.revoked_at,
        };
        let key = KeyRow::try_from(key)?;
        let version = found.version_id.zip(found.number).zip(found.plan);
        let Some(((workflow, paused), ((version, number), plan))) =
            found.workflow_id.zip(found.paused).zip(version)
        else {
            return Ok(Some((key, None)));
        };
        let row = Row { table: "workflow_versions", id: WorkflowVersionId(version) };
        let number = value::count(&row, "number", number)?;
        let active = ActiveVersion { workflow: workflow.into(), version: row.id, number, plan, paused };
        Ok(Some((key, Some(active))))
    }
}
