//! Containers that become open.

use counterfoil_domain::id::{RunId, TenantId, step_id};
use counterfoil_domain::workflow::advance::{PartStanding, PartStart};
use uuid::Uuid;

use super::state_name;
use crate::StoreError;
use crate::settle::NewStep;
use crate::transaction::Tx;
use crate::value::json_text;

/// Writes what the containers among these steps hold.
pub(crate) async fn insert_containers(
    tx: &mut Tx,
    tenant: TenantId,
    run: RunId,
    steps: &[NewStep],
) -> Result<(), StoreError> {
    for step in steps {
        let Some(container) = &step.container else { continue };
        let id = step_id(run, &step.node, &step.iteration).0;
        let waiting = container.parts.iter().filter(|part| part.standing == PartStanding::Waiting).count();
        sqlx::query!(
            "INSERT INTO containers (tenant_id, step_id, awaits, tolerates, waiting, room)
             VALUES ($1, $2, $3, $4, $5, $6)",
            tenant.0,
            id,
            container.awaits,
            container.tolerates,
            i32::try_from(waiting).unwrap_or(i32::MAX),
            container.room,
        )
        .execute(&mut **tx)
        .await?;
        insert_parts(tx, tenant, id, &container.parts).await?;
    }
    Ok(())
}

/// Writes parts; those that are there already and wait begin.
pub(super) async fn insert_parts(
    tx: &mut Tx,
    tenant: TenantId,
    container: Uuid,
    parts: &[PartStart],
) -> Result<(), StoreError> {
    let indices: Vec<i32> = parts.iter().map(|part| part.index.cast_signed()).collect();
    let items: Vec<Option<String>> = parts.iter().map(|part| json_text(part.item.as_ref())).collect();
    let states: Vec<&str> = parts.iter().map(|part| state_name(&part.standing)).collect();
    let done = |part: &PartStart| match &part.standing {
        PartStanding::Done(result) => Some(result.clone()),
        _ => None,
    };
    let outputs: Vec<Option<String>> =
        parts.iter().map(|part| done(part)?.ok().map(|output| output.to_string())).collect();
    let errors: Vec<_> = parts.iter().map(|part| done(part)?.err()).collect();
    let nodes: Vec<Option<String>> =
        errors.iter().map(|error| error.as_ref().map(|error| error.node.clone())).collect();
    let errors: Vec<Option<String>> =
        errors.iter().map(|error| error.as_ref().map(|error| error.error.to_json().to_string())).collect();
    sqlx::query!(
        "INSERT INTO container_parts (tenant_id, step_id, part, item, state, output, node, error)
         SELECT $1, $2, p.part, p.item::json, p.state, p.output::json, p.node, p.error::json
         FROM UNNEST($3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
             AS p (part, item, state, output, node, error)
         ON CONFLICT (tenant_id, step_id, part) DO UPDATE
             SET state = excluded.state, output = excluded.output, node = excluded.node, error = excluded.error",
        tenant.0,
        container,
        &indices,
        &items as &[Option<String>],
        &states as &[&str],
        &outputs as &[Option<String>],
        &nodes as &[Option<String>],
        &errors as &[Option<String>],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
