//! Effects that have been undone.

use counterfoil_domain::id::{LineageId, TenantId};
use counterfoil_domain::receipt::{Actor, Move, ReceiptState, Transition};
use counterfoil_domain::workflow::advance::Undone;

use crate::StoreError;
use crate::error::Row;
use crate::receipt::apply;
use crate::transaction::Tx;
use crate::value;

/// Moves the receipts of what was undone: those that say that something took place.
pub(crate) async fn undo(
    tx: &mut Tx,
    tenant: TenantId,
    lineage: LineageId,
    undone: &Undone,
) -> Result<(), StoreError> {
    let receipts = sqlx::query!(
        // What was inside a map is undone with it, in all iterations.
        "SELECT id, state FROM receipts
         WHERE tenant_id = $1 AND lineage = $2 AND node = ANY ($3) AND iteration[1:cardinality($4::int[])] = $4
           AND state IN ('committed', 'verified') AND safety <> 'read-only'
         ORDER BY id FOR UPDATE",
        tenant.0,
        lineage.0,
        &undone.nodes,
        &value::path_out(&undone.iteration),
    )
    .fetch_all(&mut **tx)
    .await?;
    for receipt in receipts {
        let row = Row { table: "receipts", id: counterfoil_domain::id::EffectId(receipt.id) };
        let from = row.need("state", ReceiptState::from_name(&receipt.state))?;
        let transition = row.read("state", Transition::new(tenant, row.id, from, Actor::Host, Move::Undo))?;
        apply(tx, &transition).await?;
    }
    Ok(())
}
