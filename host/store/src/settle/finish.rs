//! An execution that settles its step: the step's end, its answers, what follows, and the run's own end, all or nothing.

use counterfoil_domain::id::{Place, step_id};
use counterfoil_domain::ports::{Faults, Site};
use sqlx::PgPool;

use super::advance::{Kept, advance, claimed};
use super::conclude::conclude;
use super::hold::hold_with_run;
use super::inline::insert_inline;
use super::own::{Change, OwnEffect, write_own};
use super::{SettleVerdict, SettledState, SettledStep, Settlement, Written, write};
use crate::container::{Containers, close, end_part, insert_containers, undo as undo_effects};
use crate::transaction::{Tx, begin, undo};
use crate::waiting::{end_child, end_wait};
use crate::{Store, StoreError};

/// What came of a settlement.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is durable, with the step that its host keeps, if it keeps one.
    Settled(Option<Kept>),
    Lost,
    Unanswered,
    Rerun,
}

impl Store {
    /// Settles a step, with everything that follows from its end.
    pub async fn settle(&self, settlement: &Settlement) -> Result<SettleVerdict, StoreError> {
        settlement.check_depth()?;
        let together = if settlement.is_plain() {
            self.lane().settlements.submit(settlement.clone()).await?
        } else {
            None
        };
        let ended = match together {
            Some(ended) => ended,
            None => alone(self.pool(), &*self.inner.faults, settlement).await?,
        };
        Ok(match ended {
            Ended::Settled(kept) => {
                let next = kept.and_then(|kept| claimed(settlement, &kept));
                let has_opened =
                    settlement.end.is_none() && settlement.open.len() > usize::from(next.is_some());
                let has_emitted = |own: &OwnEffect| matches!(own.change, Change::Emit { .. });
                if has_opened
                    || settlement.containers.join.is_some()
                    || settlement.containers.is_child
                    || settlement.own.iter().any(has_emitted)
                {
                    self.wake_tenant(settlement.fence.tenant);
                }
                SettleVerdict::Settled { next }
            }
            Ended::Lost => SettleVerdict::Lost,
            Ended::Unanswered => SettleVerdict::Unanswered,
            Ended::Rerun => SettleVerdict::Rerun,
        })
    }
}

/// Settles one step in a transaction of its own.
pub(super) async fn alone(
    pool: &PgPool,
    faults: &dyn Faults,
    settlement: &Settlement,
) -> Result<Ended, StoreError> {
    let mut tx = begin(pool).await?;
    let Some(held) = hold_with_run(&mut tx, settlement).await? else {
        return undo(tx, Ended::Lost).await;
    };
    let written = if held.is_committed { &settlement.writes[1..] } else { &settlement.writes[..] };
    for own in written {
        match write(&mut tx, &settlement.fence, own).await? {
            Written::Done => {}
            Written::Moved => return undo(tx, Ended::Lost).await,
            Written::Exists => return undo(tx, Ended::Rerun).await,
        }
    }
    if !settlement.own.is_empty() {
        if settlement.settled.state != SettledState::Succeeded {
            return Err(StoreError::Unstorable("a step that did not succeed changes nothing"));
        }
        if !write_own(&mut tx, settlement).await? {
            return undo(tx, Ended::Rerun).await;
        }
    }
    if let Some(end) = settlement.containers.waited
        && !end_wait(&mut tx, settlement.fence.tenant, settlement.fence.step.0, end).await?
    {
        return undo(tx, Ended::Rerun).await;
    }
    let cancelled = in_containers(&mut tx, settlement).await?;
    let kept = match &settlement.end {
        None => advance(&mut tx, settlement, cancelled).await?,
        Some(end) => conclude(&mut tx, settlement, end, held.open_steps - cancelled).await?.then_some(None),
    };
    let Some(kept) = kept else {
        return undo(tx, Ended::Unanswered).await;
    };
    let inline: Vec<_> = settlement.inline_steps().collect();
    insert_inline(&mut tx, &inline).await?;
    insert_containers(&mut tx, settlement.fence.tenant, settlement.run, &settlement.open).await?;
    if settlement.containers.is_child && settlement.end.is_some() {
        end_child(&mut tx, settlement.fence.tenant, settlement.run).await?;
    }
    faults.reach(Site::InSettle);
    tx.commit().await?;
    faults.reach(Site::AfterSettle);
    Ok(Ended::Settled(kept))
}

/// What the end of the step means for the containers around it, and for itself if it is one. Returns how many steps were
/// cancelled.
async fn in_containers(tx: &mut Tx, settlement: &Settlement) -> Result<i32, StoreError> {
    let Containers { join, undone, closes, .. } = &settlement.containers;
    let (tenant, run) = (settlement.fence.tenant, settlement.run);
    for undone in undone {
        undo_effects(tx, tenant, settlement.lineage, undone).await?;
    }
    let cancelled = match closes {
        None => 0,
        Some(closes) => {
            let SettledStep { step, node, iteration, .. } = &settlement.settled;
            let (node, iteration) = (node.clone(), iteration.clone());
            let place = Place { lineage: settlement.lineage, node, iteration };
            close(tx, tenant, run, (*step, &place), *closes).await?
        }
    };
    if let Some(join) = join {
        end_part(tx, tenant, step_id(run, &join.node, &join.iteration), &join.part).await?;
    }
    Ok(cancelled)
}
