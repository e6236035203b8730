//! What a step's decisions are taken from.

use std::collections::{BTreeSet, HashMap};

use counterfoil_domain::id::{RunId, TenantId};
use serde_json::Value;
use uuid::Uuid;

use super::RunContext;
use crate::value;
use crate::{Store, StoreError};

impl Store {
    /// A run, with the outputs of its steps that succeeded.
    pub async fn run_context(&self, tenant: TenantId, run: RunId) -> Result<Option<RunContext>, StoreError> {
        Ok(self.run_contexts(&[(tenant, run)]).await?.remove(&run))
    }

    /// The same of many runs. What does not exist is left out.
    pub async fn run_contexts(
        &self,
        runs: &[(TenantId, RunId)],
    ) -> Result<HashMap<RunId, RunContext>, StoreError> {
        // A run that is named twice would have its outputs twice.
        let runs: BTreeSet<(Uuid, Uuid)> = runs.iter().map(|(tenant, run)| (tenant.0, run.0)).collect();
        let (tenants, runs): (Vec<Uuid>, Vec<Uuid>) = runs.into_iter().unzip();
        let found = sqlx::query!(
            r#"SELECT r.id, r.lineage, r.workflow_id, r.version_id, r.event AS "event!", r.input AS "input!", r.admitted_at
             FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN runs r ON r.tenant_id = w.tenant_id AND r.id = w.run_id"#,
            &tenants,
            &runs,
        )
        .fetch_all(self.pool())
        .await?;
        let outputs = sqlx::query!(
            "SELECT s.run_id, s.node, s.iteration, s.output, s.choice
             FROM UNNEST($1::uuid[], $2::uuid[]) AS w (tenant_id, run_id)
             JOIN settled_steps s ON s.tenant_id = w.tenant_id AND s.run_id = w.run_id
             WHERE s.state = 'succeeded'
             ORDER BY s.settled_at, s.node, s.iteration",
            &tenants,
            &runs,
        )
        .fetch_all(self.pool())
        .await?;
        let mut contexts: HashMap<RunId, RunContext> = HashMap::with_capacity(found.len());
        for run in found {
            let id = RunId(run.id);
            let context = RunContext {
                run: id,
                lineage: run.lineage.into(),
                workflow: run.workflow_id.into(),
                version: run.version_id.into(),
                event: run.event,
                input: run.input,
                admitted_at: run.admitted_at,
                outputs: vec![],
            };
            contexts.insert(id, context);
        }
        for step in outputs {
            if let Some(context) = contexts.get_mut(&RunId(step.run_id)) {
                let output = step.output.unwrap_or(Value::Null);
                context.outputs.push((step.node, value::path_in(&step.iteration), output, step.choice));
            }
        }
        Ok(contexts)
    }
}
