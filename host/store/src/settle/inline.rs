//! Steps that settle without ever having been open: evaluated on the way, or on a branch that is not taken.

use counterfoil_domain::id::{LineageId, RunId, TenantId};
use uuid::Uuid;

use super::{SettledStep, Settlement};
use crate::StoreError;
use crate::transaction::Tx;
use crate::value;

/// A step that was never open, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inline<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) run: RunId,
    pub(crate) lineage: LineageId,
    pub(crate) step: &'a SettledStep,
}

impl Settlement {
    /// Its steps that were never open.
    pub(super) fn inline_steps(&self) -> impl Iterator<Item = Inline<'_>> {
        let (tenant, run, lineage) = (self.fence.tenant, self.run, self.lineage);
        self.inline.iter().map(move |step| Inline { tenant, run, lineage, step })
    }
}

/// Appends them to the settled ones.
pub(crate) async fn insert_inline(tx: &mut Tx, inline: &[Inline<'_>]) -> Result<(), StoreError> {
    if inline.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = inline.iter().map(|inline| inline.tenant.0).collect();
    let runs: Vec<Uuid> = inline.iter().map(|inline| inline.run.0).collect();
    let lineages: Vec<Uuid> = inline.iter().map(|inline| inline.lineage.0).collect();
    let steps = || inline.iter().map(|inline| inline.step);
    let ids: Vec<Uuid> = steps().map(|step| step.step.0).collect();
    let nodes: Vec<String> = steps().map(|step| step.node.clone()).collect();
    let iterations: Vec<String> = steps().map(|step| value::path_text(&step.iteration)).collect();
    let states: Vec<String> = steps().map(|step| step.state.name().into()).collect();
    let outputs: Vec<Option<String>> = steps().map(|step| value::json_text(step.output.as_ref())).collect();
    let errors: Vec<Option<String>> = steps().map(|step| value::json_text(step.error.as_ref())).collect();
    let choices: Vec<Option<String>> = steps().map(|step| step.choice.clone()).collect();
    sqlx::query!(
        "INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
             output, error, choice, queued_at)
         SELECT s.tenant_id, s.run_id, s.id, s.lineage, s.node, s.iteration::int[], s.state, 1, 0,
             s.output::json, s.error::json, s.choice, now()
         FROM UNNEST(
             $1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[],
             $9::text[], $10::text[]
         ) AS s (tenant_id, run_id, lineage, id, node, iteration, state, output, error, choice)",
        &tenants,
        &runs,
        &lineages,
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
