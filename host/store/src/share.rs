//! What tenants and workflows may have of a host's room.

use std::collections::HashMap;

use counterfoil_domain::fair_share::{Queue, Share};
use counterfoil_domain::id::TenantId;
use counterfoil_domain::receipt::Actor;
use serde_json::json;

use crate::audit::audit;
use crate::error::Row;
use crate::transaction::{begin, undo};
use crate::{Store, StoreError, value};

/// The shares that somebody set. Everybody else has the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    tenants: HashMap<TenantId, Share>,
    workflows: HashMap<Queue, Share>,
}

impl Shares {
    /// What a tenant may have.
    pub fn of_tenant(&self, tenant: TenantId) -> Share {
        self.tenants.get(&tenant).copied().unwrap_or_default()
    }

    /// What a workflow may have of what its tenant has.
    pub fn of_workflow(&self, queue: &Queue) -> Share {
        self.workflows.get(queue).copied().unwrap_or_default()
    }
}

impl Store {
    /// Every share that is not the default.
    pub async fn shares(&self) -> Result<Shares, StoreError> {
        let found = sqlx::query!(
            r#"SELECT id AS "tenant_id!", NULL::uuid AS workflow_id, weight AS "weight!", in_flight_max
             FROM tenants WHERE weight <> 1 OR in_flight_max IS NOT NULL
             UNION ALL
             SELECT tenant_id, id, weight, in_flight_max
             FROM workflows WHERE weight <> 1 OR in_flight_max IS NOT NULL"#
        )
        .fetch_all(self.pool())
        .await?;
        let mut shares = Shares::default();
        for found in found {
            let tenant = TenantId(found.tenant_id);
            let row = Row { table: "tenants", id: tenant };
            let share = read(&row, found.weight, found.in_flight_max)?;
            if let Some(workflow) = found.workflow_id {
                shares.workflows.insert(Queue { tenant, workflow: workflow.into() }, share);
            } else {
                shares.tenants.insert(tenant, share);
            }
        }
        Ok(shares)
    }

    /// What the tenant of that name may have; none if there is no such tenant.
    pub async fn tenant_share(&self, name: &str) -> Result<Option<Share>, StoreError> {
        let found = sqlx::query!("SELECT weight, in_flight_max FROM tenants WHERE name = $1", name)
            .fetch_optional(self.pool())
            .await?;
        let row = Row { table: "tenants", id: name };
        found.map(|found| read(&row, found.weight, found.in_flight_max)).transpose()
    }

    /// Sets what a tenant may have. False if there is none of that name.
    pub async fn set_tenant_share(
        &self,
        name: &str,
        share: Share,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let tenant = sqlx::query_scalar!(
            "UPDATE tenants SET weight = $2, in_flight_max = $3 WHERE name = $1 RETURNING id",
            name,
            share.weight.cast_signed(),
            share.in_flight_max.map(u32::cast_signed),
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(tenant) = tenant else { return undo(tx, false).await };
        let detail = json!({ "weight": share.weight, "in_flight_max": share.in_flight_max });
        audit(&mut tx, TenantId(tenant), actor, "tenant.share", None, None, &detail).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Sets what a workflow may have of what its tenant has. False if the tenant has none of that name.
    pub async fn set_workflow_share(
        &self,
        tenant: TenantId,
        name: &str,
        share: Share,
        actor: &Actor,
    ) -> Result<bool, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let workflow = sqlx::query_scalar!(
            "UPDATE workflows SET weight = $3, in_flight_max = $4 WHERE tenant_id = $1 AND name = $2 RETURNING id",
            tenant.0,
            name,
            share.weight.cast_signed(),
            share.in_flight_max.map(u32::cast_signed),
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(workflow) = workflow else { return undo(tx, false).await };
        let detail =
            json!({ "workflow": name, "weight": share.weight, "in_flight_max": share.in_flight_max });
        audit(&mut tx, tenant, actor, "workflow.share", Some(workflow), None, &detail).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// A share from its columns.
pub(crate) fn read<I: std::fmt::Display>(
    row: &Row<I>,
    weight: i32,
    in_flight_max: Option<i32>,
) -> Result<Share, StoreError> {
    Ok(Share {
        weight: value::count(row, "weight", weight)?,
        in_flight_max: in_flight_max.map(|most| value::count(row, "in_flight_max", most)).transpose()?,
    })
}
