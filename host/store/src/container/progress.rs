//! How far a container is, and the items that it holds.

use counterfoil_domain::id::{StepId, TenantId};
use counterfoil_domain::step::StepError;
use counterfoil_domain::workflow::advance::{PartError, Progress};
use serde_json::Value;

use crate::error::Row;
use crate::value;
use crate::{Store, StoreError};

impl Store {
    /// How far an open container is: the items that may begin next or, if it is over, what its parts came to.
    pub async fn progress(&self, tenant: TenantId, step: StepId) -> Result<Option<Progress>, StoreError> {
        let counts = sqlx::query!(
            "SELECT awaits, tolerates, room FROM containers WHERE tenant_id = $1 AND step_id = $2",
            tenant.0,
            step.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(counts) = counts else { return Ok(None) };
        let mut progress = Progress {
            awaits: counts.awaits,
            tolerates: counts.tolerates,
            room: counts.room,
            ..Progress::default()
        };
        let is_over = progress.is_over();
        let parts = sqlx::query!(
            "SELECT part, item, state, output, node, error FROM container_parts
             WHERE tenant_id = $1 AND step_id = $2
               AND CASE WHEN $3 THEN state IN ('succeeded', 'failed') ELSE state = 'waiting' END
             ORDER BY part
             LIMIT CASE WHEN $3 THEN NULL ELSE $4::bigint END",
            tenant.0,
            step.0,
            is_over,
            i64::from(counts.room.max(0)),
        )
        .fetch_all(self.pool())
        .await?;
        let row = Row { table: "container_parts of", id: step };
        for part in parts {
            let index = value::count(&row, "part", part.part)?;
            match (part.node, part.error) {
                (Some(node), Some(error)) => {
                    let error: StepError = row.read("error", serde_json::from_value(error))?;
                    progress.done.push((index, Err(PartError { node, error })));
                }
                _ if is_over => progress.done.push((index, Ok(part.output.unwrap_or(Value::Null)))),
                _ => progress.waiting.push((index, part.item.unwrap_or(Value::Null))),
            }
        }
        Ok(Some(progress))
    }

    /// One of the items of an open `map`.
    pub async fn item(
        &self,
        tenant: TenantId,
        container: StepId,
        part: u32,
    ) -> Result<Option<Value>, StoreError> {
        let item = sqlx::query_scalar!(
            "SELECT item FROM container_parts WHERE tenant_id = $1 AND step_id = $2 AND part = $3",
            tenant.0,
            container.0,
            part.cast_signed(),
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(item.flatten())
    }
}
