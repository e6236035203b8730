//! An execution that met an outcome which is unknown.

use counterfoil_domain::id::{Place, TenantId};
use counterfoil_domain::receipt::UNRECORDED;
use counterfoil_domain::timeline::Ended;

use super::{BlockVerdict, Blocking, Written, write};
use crate::receipt::{apply, lose_all};
use crate::step::{Leave, Wait, hold, leave};
use crate::transaction::{Tx, begin, undo};
use crate::value;
use crate::{Store, StoreError};

impl Store {
    /// Blocks a step until what is unknown of it is settled. If that has happened meanwhile, the step is ready again, in
    /// the same attempt.
    pub async fn block(&self, blocking: &Blocking) -> Result<BlockVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // The step first, then its receipts: whoever settles one does the same, so that one of the two sees the other.
        let Some(place) = hold(&mut tx, &blocking.fence).await? else {
            return undo(tx, BlockVerdict::Lost).await;
        };
        for own in &blocking.writes {
            match write(&mut tx, &blocking.fence, own).await? {
                Written::Done => {}
                Written::Moved => return undo(tx, BlockVerdict::Lost).await,
                Written::Exists => return undo(tx, BlockVerdict::Rerun).await,
            }
        }
        for transition in &blocking.lose {
            // Lost to a late answer, or to a person: then there is one unknown less.
            apply(&mut tx, transition).await?;
        }
        let is_blocked = lose_the_rest(&mut tx, blocking.fence.tenant, &place).await?;
        let mut left = Leave {
            wait: Some(Wait::Blocked),
            delay: None,
            next_attempt: false,
            ended: Ended::Blocked,
            error: Some(&blocking.error),
            logs: blocking.logs.as_ref(),
        };
        if !is_blocked {
            left = Leave {
                wait: Some(Wait::Ready),
                delay: Some(std::time::Duration::ZERO),
                ended: Ended::HandedBack,
                ..left
            };
        }
        leave(&mut tx, &blocking.fence, &left).await?;
        tx.commit().await?;
        if is_blocked {
            return Ok(BlockVerdict::Blocked);
        }
        self.wake_tenant(blocking.fence.tenant);
        Ok(BlockVerdict::Resumed)
    }
}

/// Moves every receipt of the place that is still dispatched to unknown, and looks whether one is unknown then.
async fn lose_the_rest(tx: &mut Tx, tenant: TenantId, place: &Place) -> Result<bool, StoreError> {
    let iteration = value::path_out(&place.iteration);
    let dispatched = sqlx::query_scalar!(
        "SELECT id FROM receipts
         WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4 AND state = 'dispatched'",
        tenant.0,
        place.lineage.0,
        place.node,
        &iteration,
    )
    .fetch_all(&mut **tx)
    .await?;
    lose_all(tx, tenant, dispatched, UNRECORDED).await?;
    let is_unknown = sqlx::query_scalar!(
        r#"SELECT EXISTS (
             SELECT FROM receipts
             WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4 AND state = 'unknown') AS "exists!""#,
        tenant.0,
        place.lineage.0,
        place.node,
        &iteration,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(is_unknown)
}
