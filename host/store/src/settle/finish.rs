//! An execution that settles its step: the step's end, its answers, what follows, and the run's own end, all or nothing.

use counterfoil_domain::ports::Site;

use super::advance::{advance, claimed};
use super::conclude::conclude;
use super::hold::hold_with_run;
use super::own::{Change, OwnEffect, write_own};
use super::{SettleVerdict, SettledState, Settlement, Written, insert_inline, write};
use crate::transaction::{begin, undo};
use crate::{Store, StoreError};

impl Store {
    /// Settles a step, with everything that follows from its end.
    pub async fn settle(&self, settlement: &Settlement) -> Result<SettleVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let Some(held) = hold_with_run(&mut tx, settlement).await? else {
            return undo(tx, SettleVerdict::Lost).await;
        };
        let written = if held.is_committed { &settlement.writes[1..] } else { &settlement.writes[..] };
        for own in written {
            match write(&mut tx, &settlement.fence, own).await? {
                Written::Done => {}
                Written::Moved => return undo(tx, SettleVerdict::Lost).await,
                Written::Exists => return undo(tx, SettleVerdict::Rerun).await,
            }
        }
        if !settlement.own.is_empty() {
            if settlement.settled.state != SettledState::Succeeded {
                return Err(StoreError::Unstorable("a step that did not succeed changes nothing"));
            }
            if !write_own(&mut tx, settlement).await? {
                return undo(tx, SettleVerdict::Rerun).await;
            }
        }
        let kept = match &settlement.end {
            None => advance(&mut tx, settlement).await?,
            Some(end) => conclude(&mut tx, settlement, end, held.open_steps).await?.then_some(None),
        };
        let Some(kept) = kept else {
            return undo(tx, SettleVerdict::Unanswered).await;
        };
        let (tenant, run) = (settlement.fence.tenant, settlement.run);
        insert_inline(&mut tx, tenant, run, settlement.lineage, &settlement.inline).await?;
        self.inner.faults.reach(Site::InSettle);
        tx.commit().await?;
        self.inner.faults.reach(Site::AfterSettle);
        let next = kept.and_then(|kept| claimed(settlement, &kept));
        let has_emitted = |own: &OwnEffect| matches!(own.change, Change::Emit { .. });
        if settlement.open.len() > usize::from(next.is_some()) || settlement.own.iter().any(has_emitted) {
            self.wake();
        }
        Ok(SettleVerdict::Settled { next })
    }
}
