//! What a step's decisions are taken from.

use std::collections::{BTreeSet, HashMap};

use counterfoil_domain::id::{RunId, TenantId};
use serde_json::Value;
use uuid::Uuid;

use super::RunContext;
use crate::error::Row;
use crate::{Store, StoreError};
use crate::{tenant, value};

impl Store {
    /// A run, with the outputs of its steps outside of every map that succeeded.
    pub async fn run_context(&self, tenant: TenantId, run: RunId) -> Result<Option<RunContext>, StoreError> {
        Ok(self.run_contexts(&[(tenant, run, vec![])]).await?.remove(&(run, vec![])))
    }

    /// The same of many runs, each as it is seen from one iteration. What does not exist is left out.
    pub async fn run_contexts(
        &self,
        wanted: &[(TenantId, RunId, Vec<u32>)],
    ) -> Result<HashMap<(RunId, Vec<u32>), RunContext>, StoreError> {
        // What is named twice would have its outputs twice.
        let wanted: BTreeSet<_> = wanted.iter().collect();
        let tenants: Vec<Uuid> = wanted.iter().map(|(tenant, ..)| tenant.0).collect();
        let runs: Vec<Uuid> = wanted.iter().map(|(_, run, _)| run.0).collect();
        let iterations: Vec<String> =
            wanted.iter().map(|(.., iteration)| value::path_text(iteration)).collect();
        let found = sqlx::query!(
            r#"SELECT w.n AS "n!", r.tenant_id, r.id, r.lineage, r.workflow_id, r.version_id, r.event AS "event!", r.input AS "input!", r.admitted_at, r.depth,
                t.memory_bytes_max, t.cpu_ms_max, t.wall_ms_max
             FROM UNNEST($1::uuid[], $2::uuid[]) WITH ORDINALITY AS w (tenant_id, run_id, n)
             JOIN runs r ON r.tenant_id = w.tenant_id AND r.id = w.run_id
             JOIN tenants t ON t.id = r.tenant_id"#,
            &tenants,
            &runs,
        )
        .fetch_all(self.pool())
        .await?;
        let outputs = sqlx::query!(
            r#"SELECT w.n AS "n!", s.node, s.iteration, s.output, s.choice
             FROM UNNEST($1::uuid[], $2::uuid[], $3::text[])
                 WITH ORDINALITY AS w (tenant_id, run_id, iteration, n)
             JOIN settled_steps s ON s.tenant_id = w.tenant_id AND s.run_id = w.run_id
             WHERE s.state = 'succeeded'
               AND s.iteration = (w.iteration::int[])[1:cardinality(s.iteration)]
             ORDER BY s.settled_at, s.node, s.iteration"#,
            &tenants,
            &runs,
            &iterations,
        )
        .fetch_all(self.pool())
        .await?;
        let mut contexts: HashMap<i64, RunContext> = HashMap::with_capacity(found.len());
        for run in found {
            let context = RunContext {
                run: RunId(run.id),
                lineage: run.lineage.into(),
                workflow: run.workflow_id.into(),
                version: run.version_id.into(),
                event: run.event,
                input: run.input,
                admitted_at: run.admitted_at,
                depth: value::count(&Row { table: "runs", id: RunId(run.id) }, "depth", run.depth)?,
                limits: tenant::limits(
                    run.tenant_id.into(),
                    [run.memory_bytes_max, run.cpu_ms_max, run.wall_ms_max],
                )?,
                outputs: vec![],
            };
            contexts.insert(run.n, context);
        }
        for step in outputs {
            if let Some(context) = contexts.get_mut(&step.n) {
                let output = step.output.unwrap_or(Value::Null);
                context.outputs.push((step.node, value::path_in(&step.iteration), output, step.choice));
            }
        }
        let keyed = (1..)
            .zip(wanted)
            .filter_map(|(n, (_, run, iteration))| Some(((*run, iteration.clone()), contexts.remove(&n)?)));
        Ok(keyed.collect())
    }
}
