//! The reasons why events start no runs, written as they come: an event that many workflows refuse costs little more than one
//! that one does.

use std::pin::Pin;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EventId, TenantId, WorkflowId, WorkflowVersionId};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::Admission;
use crate::transaction::begin;
use crate::{Store, StoreError};

/// Rows of one statement: well within the time that a statement may take.
const ROWS_MAX: usize = 5_000;

/// Why an event does not start a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whose.
    pub tenant: TenantId,
    /// The event.
    pub event: EventId,
    /// The workflow that it does not start.
    pub workflow: WorkflowId,
    /// Its active version.
    pub version: WorkflowVersionId,
    /// Which rule.
    pub code: Code,
    /// In words.
    pub detail: String,
}

/// The refusal of an admission.
pub(super) fn of(admission: &Admission, event: EventId, code: Code, detail: String) -> Refusal {
    let Admission { tenant, workflow, version, .. } = *admission;
    Refusal { tenant, event, workflow, version, code, detail }
}

impl Store {
    /// Keeps the reasons why events do not start workflows. What is known of an event and a workflow already stays.
    pub async fn refuse(&self, refusals: Vec<Refusal>) -> Result<(), StoreError> {
        if refusals.is_empty() {
            return Ok(());
        }
        if self.lane().refusals.submit(refusals.clone()).await? {
            return Ok(());
        }
        // By itself, so that what cannot be stored is nobody else's failure.
        let mut connection = self.pool().acquire().await?;
        insert_refusals(&mut connection, &refusals).await
    }
}

type Flushing = Pin<Box<dyn Future<Output = Vec<bool>> + Send>>;

/// Writes refusals as they come; false for those that must be written by themselves.
pub(crate) fn flush_refusals(
    pool: PgPool,
) -> impl Fn(Vec<Vec<Refusal>>) -> Flushing + Clone + Send + 'static {
    move |refused| {
        let pool = pool.clone();
        Box::pin(async move {
            let flushed = flush(&pool, &refused.concat()).await;
            if let Err(error) = &flushed {
                tracing::debug!(
                    error = error as &dyn std::error::Error,
                    "refusals were not written together"
                );
            }
            vec![flushed.is_ok(); refused.len()]
        })
    }
}

async fn flush(pool: &PgPool, refusals: &[Refusal]) -> Result<(), StoreError> {
    let mut tx = begin(pool).await?;
    insert_refusals(&mut tx, refusals).await?;
    tx.commit().await?;
    Ok(())
}

pub(super) async fn insert_refusals(
    connection: &mut PgConnection,
    refusals: &[Refusal],
) -> Result<(), StoreError> {
    // In one order everywhere, so that two that tell the same do not wait for each other crosswise.
    let mut refusals: Vec<&Refusal> = refusals.iter().collect();
    refusals.sort_by_key(|one| (one.tenant, one.event, one.workflow));
    for refusals in refusals.chunks(ROWS_MAX) {
        let tenants: Vec<Uuid> = refusals.iter().map(|one| one.tenant.0).collect();
        let events: Vec<Uuid> = refusals.iter().map(|one| one.event.0).collect();
        let workflows: Vec<Uuid> = refusals.iter().map(|one| one.workflow.0).collect();
        let versions: Vec<Uuid> = refusals.iter().map(|one| one.version.0).collect();
        let codes: Vec<&str> = refusals.iter().map(|one| one.code.name()).collect();
        let details: Vec<&str> = refusals.iter().map(|one| one.detail.as_str()).collect();
        sqlx::query!(
            "INSERT INTO deliveries (tenant_id, event_id, workflow_id, version_id, refusal, detail)
             SELECT * FROM UNNEST($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[])
             ON CONFLICT DO NOTHING",
            &tenants,
            &events,
            &workflows,
            &versions,
            &codes as &[&str],
            &details as &[&str],
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
