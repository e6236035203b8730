//! What a step's decisions are taken from.

use counterfoil_domain::id::{RunId, TenantId};
use serde_json::Value;

use super::RunContext;
use crate::value;
use crate::{Store, StoreError};

impl Store {
    /// A run, with the outputs of its steps that succeeded.
    pub async fn run_context(&self, tenant: TenantId, run: RunId) -> Result<Option<RunContext>, StoreError> {
        let found = sqlx::query!(
            "SELECT lineage, workflow_id, version_id, event, input, admitted_at FROM runs
             WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            run.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(found) = found else { return Ok(None) };
        let outputs = sqlx::query!(
            "SELECT node, iteration, output, choice FROM settled_steps
             WHERE tenant_id = $1 AND run_id = $2 AND state = 'succeeded'
             ORDER BY settled_at, node, iteration",
            tenant.0,
            run.0,
        )
        .fetch_all(self.pool())
        .await?;
        Ok(Some(RunContext {
            run,
            lineage: found.lineage.into(),
            workflow: found.workflow_id.into(),
            version: found.version_id.into(),
            event: found.event,
            input: found.input,
            admitted_at: found.admitted_at,
            outputs: outputs
                .into_iter()
                .map(|step| {
                    let output = step.output.unwrap_or(Value::Null);
                    (step.node, value::path_in(&step.iteration), output, step.choice)
                })
                .collect(),
        }))
    }
}
