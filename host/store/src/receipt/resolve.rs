//! What somebody outside says of an unknown receipt, and steps that go on afterwards.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, RunId, TenantId};
use counterfoil_domain::receipt::resolution::{Unresolvable, siblings};
use counterfoil_domain::receipt::{Actor, Receipt, Transition};
use serde_json::json;

use super::row::slot_columns;
use super::{ReceiptRow, Resolved, apply, hold_slot};
use crate::audit::audit;
use crate::settle::Swap;
use crate::step::{hold_place, resume};
use crate::transaction::{Tx, begin, undo};
use crate::value;
use crate::{Store, StoreError};

/// What came of a wish to resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// Every blocked step was looked at.
    Done {
        /// Steps that go on.
        resumed: u32,
        /// Steps that have something unknown still.
        blocked: u32,
    },
    /// There is no such run.
    NotFound,
}

impl Store {
    /// Resolves a receipt. `decide` judges it as it stands, at the time that it is given, with everything locked that could
    /// change the answer. If `resume`, a step that was blocked on it goes on.
    ///
    /// What it means for the other receipts of its slot whose outcome is open is written with it.
    pub async fn resolve(
        &self,
        tenant: TenantId,
        id: EffectId,
        decide: impl FnOnce(&Receipt, DateTime<Utc>) -> Result<Transition, Unresolvable> + Send,
        resume: bool,
        actor: &Actor,
    ) -> Result<Resolved, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let Some(seen) = find(&mut tx, tenant, id).await? else {
            return undo(tx, Resolved::NotFound).await;
        };
        let open = hold_place(&mut tx, tenant, &seen.place).await?;
        hold_slot(&mut tx, tenant, id).await?;
        let Some(receipt) = find(&mut tx, tenant, id).await? else {
            return undo(tx, Resolved::NotFound).await;
        };
        // Not now(): that stood still while the locks were waited for.
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&mut *tx).await?;
        let transition = match decide(&receipt, now) {
            Ok(transition) => transition,
            Err(refused) => return undo(tx, Resolved::Refused(refused)).await,
        };
        let siblings = match siblings(&transition, &slot(&mut tx, &receipt).await?, now) {
            Ok(siblings) => siblings,
            Err(refused) => return undo(tx, Resolved::Refused(refused)).await,
        };
        if let Swap::Lost { found } = apply(&mut tx, &transition).await? {
            let found = found.unwrap_or(transition.from());
            return undo(tx, Resolved::Refused(Unresolvable::NotUnknown(found))).await;
        }
        for sibling in &siblings {
            apply(&mut tx, sibling).await?;
        }
        let detail = json!({ "to": transition.to(), "what": transition.what() });
        audit(&mut tx, tenant, actor, "effect.resolve", Some(id.0), Some(receipt.run), &detail).await?;
        let resumed = match open {
            Some(step) if resume && step.is_blocked => self::resume(&mut tx, tenant, step.id).await?,
            _ => false,
        };
        tx.commit().await?;
        if resumed {
            self.wake_tenant(tenant);
        }
        Ok(Resolved::Done { resumed, run: receipt.run })
    }

    /// Lets every blocked step of a run go on that has nothing unknown any more.
    pub async fn resume(&self, tenant: TenantId, run: RunId, actor: &Actor) -> Result<Resumed, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let known =
            sqlx::query_scalar!("SELECT id FROM runs WHERE tenant_id = $1 AND id = $2", tenant.0, run.0)
                .fetch_optional(&mut *tx)
                .await?;
        if known.is_none() {
            return undo(tx, Resumed::NotFound).await;
        }
        let steps = sqlx::query_scalar!(
            "SELECT id FROM open_steps WHERE tenant_id = $1 AND run_id = $2 AND wait = 'blocked'
             ORDER BY id FOR UPDATE",
            tenant.0,
            run.0,
        )
        .fetch_all(&mut *tx)
        .await?;
        let (mut resumed, mut blocked) = (0, 0);
        for step in steps {
            if resume(&mut tx, tenant, step.into()).await? { resumed += 1 } else { blocked += 1 }
        }
        // What changed nothing was not done.
        if resumed > 0 {
            let detail = json!({ "resumed": resumed, "blocked": blocked });
            audit(&mut tx, tenant, actor, "run.resume", Some(run.0), Some(run), &detail).await?;
        }
        tx.commit().await?;
        if resumed > 0 {
            self.wake_tenant(tenant);
        }
        Ok(Resumed::Done { resumed, blocked })
    }
}

pub(crate) async fn find(tx: &mut Tx, tenant: TenantId, id: EffectId) -> Result<Option<Receipt>, StoreError> {
    let row = sqlx::query_as!(
        ReceiptRow,
        "SELECT * FROM receipts WHERE tenant_id = $1 AND id = $2",
        tenant.0,
        id.0,
    )
    .fetch_optional(&mut **tx)
    .await?;
    row.map(Receipt::try_from).transpose()
}

/// Every receipt of the slot that this one is of. The caller holds the slot's locks.
pub(crate) async fn slot(tx: &mut Tx, receipt: &Receipt) -> Result<Vec<Receipt>, StoreError> {
    let (slot_label, slot_ordinal) = slot_columns(&receipt.slot);
    let rows = sqlx::query_as!(
        ReceiptRow,
        "SELECT * FROM receipts
         WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4
           AND slot_label IS NOT DISTINCT FROM $5 AND slot_ordinal IS NOT DISTINCT FROM $6
         ORDER BY dispatch_number",
        receipt.tenant.0,
        receipt.place.lineage.0,
        receipt.place.node,
        &value::path_out(&receipt.place.iteration),
        slot_label,
        slot_ordinal,
    )
    .fetch_all(&mut **tx)
    .await?;
    rows.into_iter().map(Receipt::try_from).collect()
}
