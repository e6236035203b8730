//! Effects on our own database. They take place in the transaction that settles their step, with their receipts, so that
//! they are done exactly once and nobody ever wonders whether they were.

use std::collections::BTreeMap;

use counterfoil_domain::id::{EffectId, TenantId};
use counterfoil_domain::receipt::Receipt;
use serde_json::Value;
use uuid::Uuid;

use super::Settlement;
use crate::StoreError;
use crate::receipt::insert_answered;
use crate::transaction::Tx;

/// A change of our own database, and its receipt, which is committed with it.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnEffect {
    /// Its receipt, with its answer.
    pub receipt: Receipt,
    /// What changes.
    pub change: Change,
}

/// What a step changes in our own database.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An event for the outbox. Its id is that of its receipt.
    Emit {
        /// Its type.
        event_type: String,
        /// The record that it is about.
        record: Option<String>,
        /// What it says.
        data: Value,
    },
    /// A value under a key of the tenant's.
    Put {
        /// The key.
        key: String,
        /// What is under it from now on.
        value: Vec<u8>,
    },
    /// Nothing under a key of the tenant's any more.
    Delete {
        /// The key.
        key: String,
    },
}

/// Writes what a step that succeeded did to our own database. False if one of the receipts exists already; then nothing
/// must be committed.
pub(super) async fn write_own(tx: &mut Tx, settlement: &Settlement) -> Result<bool, StoreError> {
    for own in &settlement.own {
        if !insert_answered(tx, &own.receipt, settlement.fence.lease).await? {
            return Ok(false);
        }
    }
    let tenant = settlement.fence.tenant;
    record(tx, tenant, &settlement.own).await?;
    // In the order of keys, so that two steps which write the same ones do not wait for each other crosswise.
    for (key, (effect, value)) in last_writes(&settlement.own) {
        match value {
            Some(value) => put(tx, tenant, key, value, effect).await?,
            None => delete(tx, tenant, key).await?,
        }
    }
    Ok(true)
}

/// What is under each key in the end, and by which effect.
fn last_writes(own: &[OwnEffect]) -> BTreeMap<&str, (EffectId, Option<&[u8]>)> {
    own.iter()
        .filter_map(|own| match &own.change {
            Change::Emit { .. } => None,
            Change::Put { key, value } => Some((key.as_str(), (own.receipt.id, Some(value.as_slice())))),
            Change::Delete { key } => Some((key.as_str(), (own.receipt.id, None))),
        })
        .collect()
}

async fn record(tx: &mut Tx, tenant: TenantId, own: &[OwnEffect]) -> Result<(), StoreError> {
    let (mut ids, mut types, mut records, mut contents) = (vec![], vec![], vec![], vec![]);
    for own in own {
        let Change::Emit { event_type, record, data } = &own.change else { continue };
        ids.push(own.receipt.id.0);
        types.push(event_type.clone());
        records.push(record.clone());
        contents.push(data.to_string());
    }
    if ids.is_empty() {
        return Ok(());
    }
    // Each a microsecond after the one before it, so that they are published in the order in which they were emitted.
    sqlx::query!(
        "INSERT INTO events (tenant_id, id, type, record_id, data, recorded_at)
         SELECT $1, e.id, e.type, e.record_id, e.data::json, now() + e.n * interval '1 microsecond'
         FROM UNNEST($2::uuid[], $3::text[], $4::text[], $5::text[])
             WITH ORDINALITY AS e (id, type, record_id, data, n)",
        tenant.0,
        &ids as &[Uuid],
        &types,
        &records as &[Option<String>],
        &contents,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn put(
    tx: &mut Tx,
    tenant: TenantId,
    key: &str,
    value: &[u8],
    effect: EffectId,
) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO stored_values (tenant_id, key, value, effect_id) VALUES ($1, $2, $3, $4)
         ON CONFLICT (tenant_id, key)
         DO UPDATE SET value = excluded.value, effect_id = excluded.effect_id, updated_at = now()",
        tenant.0,
        key,
        value,
        effect.0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn delete(tx: &mut Tx, tenant: TenantId, key: &str) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM stored_values WHERE tenant_id = $1 AND key = $2", tenant.0, key)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
