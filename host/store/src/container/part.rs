//! The end of a part.

use counterfoil_domain::id::{StepId, TenantId};
use counterfoil_domain::workflow::advance::Part;

use crate::StoreError;
use crate::transaction::Tx;
use crate::value::Exact;

/// Counts a part that is done, and makes its container due if it can go on. The container may have gone on without it; then
/// nothing is written. The caller holds the run's lock.
pub(crate) async fn end_part(
    tx: &mut Tx,
    tenant: TenantId,
    container: StepId,
    part: &Part,
) -> Result<(), StoreError> {
    let (state, output, error) = match &part.result {
        Ok(output) => ("succeeded", Some(output), None),
        Err(error) => ("failed", None, Some(error)),
    };
    let told = error.map(|error| error.error.to_json());
    sqlx::query!(
        // One that a host works on looks for itself before it waits again.
        "WITH ended AS (
             UPDATE container_parts SET state = $4, output = $5, node = $6, error = $7
             WHERE tenant_id = $1 AND step_id = $2 AND part = $3 AND state = 'running'
             RETURNING part
         ), counted AS (
             UPDATE containers c
             SET awaits = c.awaits - $8::bool::int, tolerates = c.tolerates - (NOT $8)::int, room = c.room + 1
             FROM ended WHERE c.tenant_id = $1 AND c.step_id = $2
             RETURNING c.awaits, c.tolerates, c.waiting, c.room
         )
         UPDATE open_steps s SET wait = 'ready', vt = now()
         FROM counted c
         WHERE s.tenant_id = $1 AND s.id = $2 AND s.wait = 'child' AND s.lease_id IS NULL
           AND (c.awaits <= 0 OR c.tolerates < 0 OR (c.waiting > 0 AND c.room > 0))",
        tenant.0,
        container.0,
        part.index.cast_signed(),
        state,
        output.map(Exact) as Option<Exact<'_>>,
        error.map(|error| error.node.as_str()),
        told.as_ref().map(Exact) as Option<Exact<'_>>,
        part.counts,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
