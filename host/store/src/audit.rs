//! What operators did.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, TenantId};
use counterfoil_domain::receipt::Actor;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::value::Exact;
use crate::{Store, StoreError};

/// One action of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    /// Its own id.
    pub id: Uuid,
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub actor: String,
    /// What, as `noun.verb`.
    pub action: String,
    /// The id of what it was done to.
    pub subject: Option<Uuid>,
    /// The run that it touched.
    pub run: Option<RunId>,
    /// What else there is to know.
    pub detail: Value,
}

impl Store {
    /// Keeps an action of an operator whose change is not one of those that keep it themselves.
    pub async fn record_audit(
        &self,
        tenant: TenantId,
        actor: &Actor,
        action: &str,
        subject: Option<Uuid>,
        detail: &Value,
    ) -> Result<(), StoreError> {
        let mut connection = self.pool().acquire().await?;
        audit(&mut connection, tenant, actor, action, subject, None, detail).await
    }
}

/// Keeps an action, in the transaction that carries it out.
pub(crate) async fn audit(
    connection: &mut PgConnection,
    tenant: TenantId,
    actor: &Actor,
    action: &str,
    subject: Option<Uuid>,
    run: Option<RunId>,
    detail: &Value,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO audit (tenant_id, id, actor, action, subject, run_id, detail)
         VALUES ($1, gen_random_uuid(), $2, $3, $4, $5, $6)",
        tenant.0,
        actor.to_string(),
        action,
        subject,
        run.map(|run| run.0),
        Exact(detail) as Exact<'_>,
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}
