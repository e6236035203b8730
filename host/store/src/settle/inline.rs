//! Steps that settle without ever having been open: evaluated on the way, or on a branch that is not taken.

use counterfoil_domain::id::{LineageId, RunId, TenantId};
use uuid::Uuid;

use super::SettledStep;
use crate::StoreError;
use crate::transaction::Tx;
use crate::value;

/// Appends them to the settled ones.
pub(crate) async fn insert_inline(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    lineage: LineageId,
    steps: &[SettledStep],
) -> Result<(), StoreError> {
    if steps.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = steps.iter().map(|step| step.step.0).collect();
    let nodes: Vec<String> = steps.iter().map(|step| step.node.clone()).collect();
    let iterations: Vec<String> = steps.iter().map(|step| value::path_text(&step.iteration)).collect();
    let states: Vec<String> = steps.iter().map(|step| step.state.name().into()).collect();
    let outputs: Vec<Option<String>> =
        steps.iter().map(|step| value::json_text(step.output.as_ref())).collect();
    let errors: Vec<Option<String>> =
        steps.iter().map(|step| value::json_text(step.error.as_ref())).collect();
    let choices: Vec<Option<String>> = steps.iter().map(|step| step.choice.clone()).collect();
    sqlx::query!(
        "INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
             output, error, choice, queued_at)
         SELECT $1, $2, s.id, $3, s.node, s.iteration::int[], s.state, 1, 0,
             s.output::json, s.error::json, s.choice, now()
         FROM UNNEST(
             $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[]
         ) AS s (id, node, iteration, state, output, error, choice)",
        tenant.0,
        run.0,
        lineage.0,
        &ids,
        &nodes,
        &iterations,
        &states,
        &outputs as &[Option<String>],
        &errors as &[Option<String>],
        &choices as &[Option<String>],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
