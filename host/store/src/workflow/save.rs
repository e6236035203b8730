//! Saving, activating and pausing workflows.

use counterfoil_domain::id::{TenantId, WorkflowId, WorkflowVersionId};
use counterfoil_domain::receipt::Actor;
use serde_json::json;

use super::{Activated, Activation, NewVersion, Saved};
use crate::audit::audit;
use crate::error::Row;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::waiting::bind_types;
use crate::{Store, StoreError};

impl Store {
    /// Saves a definition as the next version of the workflow of that name, unless it is the newest one already.
    pub async fn save_workflow(
        &self,
        tenant: TenantId,
        name: &str,
        new: &NewVersion,
    ) -> Result<Saved, StoreError> {
        let mut tx = begin(self.pool()).await?;
        sqlx::query!(
            "INSERT INTO workflows (tenant_id, id, name) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            tenant.0,
            new.workflow.0,
            name,
        )
        .execute(&mut *tx)
        .await?;
        // One save of a workflow at a time, so that numbers have no gaps.
        let workflow = sqlx::query_scalar!(
            "SELECT id FROM workflows WHERE tenant_id = $1 AND name = $2 FOR UPDATE",
            tenant.0,
            name,
        )
        .fetch_one(&mut *tx)
        .await?;
        let newest = sqlx::query!(
            "SELECT id, number, definition_hash FROM workflow_versions
             WHERE tenant_id = $1 AND workflow_id = $2 ORDER BY number DESC LIMIT 1",
            tenant.0,
            workflow,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let row = Row { table: "workflow_versions", id: new.version };
        let newest_number = newest.as_ref().map_or(0, |newest| newest.number);
        if let Some(newest) = newest.filter(|newest| newest.definition_hash == new.definition_hash) {
            let number = value::count(&row, "number", newest.number)?;
            let (workflow, version) = (workflow.into(), newest.id.into());
            return undo(tx, Saved { workflow, version, number, unchanged: true }).await;
        }
        let number = newest_number + 1;
        sqlx::query!(
            "INSERT INTO workflow_versions
                 (tenant_id, id, workflow_id, number, definition_hash, definition, source, plan)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            tenant.0,
            new.version.0,
            workflow,
            number,
            &new.definition_hash,
            Exact(&new.definition) as Exact<'_>,
            new.source,
            Exact(&new.plan) as Exact<'_>,
        )
        .execute(&mut *tx)
        .await?;
        bind_types(&mut tx, tenant, &new.listened).await?;
        tx.commit().await?;
        Ok(Saved {
            workflow: workflow.into(),
            version: new.version,
            number: value::count(&row, "number", number)?,
            unchanged: false,
        })
    }

    /// Makes a version the one that serves new runs, if what is active is what was seen.
    pub async fn activate(
        &self,
        tenant: TenantId,
        name: &str,
        activation: Activation<'_>,
        actor: &Actor,
    ) -> Result<Activated, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // One activation of a tenant at a time: two that know nothing of each other could start each other's workflows.
        let key = format!("activate/{tenant}");
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key).execute(&mut *tx).await?;
        if let Some(seen) = activation.seen
            && active(&mut tx, tenant).await? != seen
        {
            return undo(tx, Activated::Moved).await;
        }
        let found = sqlx::query!(
            "SELECT w.id, v.id AS version_id, v.number FROM workflows w
             JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.workflow_id = w.id
             WHERE w.tenant_id = $1 AND w.name = $2 AND ($3::int IS NULL OR v.number = $3)
             ORDER BY v.number DESC LIMIT 1
             FOR UPDATE OF w",
            tenant.0,
            name,
            activation.number.map(u32::cast_signed),
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(found) = found else { return undo(tx, Activated::NotFound).await };
        sqlx::query!(
            "UPDATE workflows SET active_version_id = $3 WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            found.id,
            found.version_id,
        )
        .execute(&mut *tx)
        .await?;
        bind(&mut tx, tenant, found.id.into(), found.version_id, activation.triggers).await?;
        let number =
            value::count(&Row { table: "workflow_versions", id: found.version_id }, "number", found.number)?;
        let mut detail = json!({ "workflow": name, "version": number });
        if !activation.accepted.is_empty() {
            detail["accepted"] = json!(activation.accepted);
        }
        audit(&mut tx, tenant, actor, "workflow.activate", Some(found.id), None, &detail).await?;
        tx.commit().await?;
        Ok(Activated::Active { workflow: found.id.into(), version: found.version_id.into(), number })
    }

    /// Pauses a workflow, or lets it go on. False if there is none of that name.
    pub async fn set_paused(&self, tenant: TenantId, name: &str, paused: bool) -> Result<bool, StoreError> {
        let changed = sqlx::query!(
            "UPDATE workflows SET paused = $3 WHERE tenant_id = $1 AND name = $2",
            tenant.0,
            name,
            paused,
        )
        .execute(self.pool())
        .await?;
        Ok(changed.rows_affected() == 1)
    }
}

/// The tenant's active versions, by the names of their workflows.
async fn active(tx: &mut Tx, tenant: TenantId) -> Result<Vec<(WorkflowId, WorkflowVersionId)>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT id, active_version_id AS "version_id!" FROM workflows
         WHERE tenant_id = $1 AND active_version_id IS NOT NULL
         ORDER BY name"#,
        tenant.0,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id.into(), row.version_id.into())).collect())
}

/// Replaces a workflow's bindings.
async fn bind(
    tx: &mut Tx,
    tenant: TenantId,
    workflow: WorkflowId,
    version: uuid::Uuid,
    triggers: &[String],
) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM bindings WHERE tenant_id = $1 AND workflow_id = $2", tenant.0, workflow.0)
        .execute(&mut **tx)
        .await?;
    sqlx::query!(
        "INSERT INTO bindings (tenant_id, event_type, workflow_id, ordinal, version_id)
         SELECT $1, t.event_type, $2, t.ordinal - 1, $3
         FROM UNNEST($4::text[]) WITH ORDINALITY AS t (event_type, ordinal)",
        tenant.0,
        workflow.0,
        version,
        triggers,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
