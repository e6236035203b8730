//! An execution that settles its step: the step's end, its answers, what follows, and the run's own end, all or nothing.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{LeaseId, Place, StepId};
use counterfoil_domain::ports::Site;

use super::{NewStep, OpenArrays, RunEndState, SettleVerdict, Settlement, Written, insert_inline, write};
use crate::receipt::lose_dispatched;
use crate::run::{STEP_CANCELLED, end_run};
use crate::step::{Claimed, Fence, Wait};
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError};

impl Store {
    /// Settles a step, with everything that follows from its end.
    pub async fn settle(&self, settlement: &Settlement) -> Result<SettleVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        let Some(open_steps) = hold_with_run(&mut tx, settlement).await? else {
            return undo(tx, SettleVerdict::Lost).await;
        };
        for own in &settlement.writes {
            match write(&mut tx, &settlement.fence, own).await? {
                Written::Done => {}
                Written::Moved => return undo(tx, SettleVerdict::Lost).await,
                Written::Exists => return undo(tx, SettleVerdict::Rerun).await,
            }
        }
        if is_cancelled(settlement) {
            let (tenant, own) = (settlement.fence.tenant, [settlement.fence.step]);
            lose_dispatched(&mut tx, tenant, settlement.lineage, &own, STEP_CANCELLED).await?;
        }
        let Some(kept) = advance(&mut tx, settlement).await? else {
            return undo(tx, SettleVerdict::Unanswered).await;
        };
        let (tenant, run) = (settlement.fence.tenant, settlement.run);
        insert_inline(&mut tx, tenant, run, settlement.lineage, &settlement.inline).await?;
        if let Some(end) = &settlement.end {
            let has_others = open_steps > 1 || !settlement.open.is_empty();
            end_run(&mut tx, tenant, run, settlement.lineage, end, has_others).await?;
        }
        self.inner.faults.reach(Site::InSettle);
        tx.commit().await?;
        self.inner.faults.reach(Site::AfterSettle);
        let next = kept.and_then(|kept| claimed(settlement, &kept));
        if settlement.open.len() > usize::from(next.is_some()) {
            self.wake();
        }
        Ok(SettleVerdict::Settled { next })
    }
}

/// A run that is cancelled takes its steps with it, whatever is known of their effects: their receipts stay open to
/// resolution.
fn is_cancelled(settlement: &Settlement) -> bool {
    settlement.end.as_ref().is_some_and(|end| end.state == RunEndState::Cancelled)
}

/// Locks the run and then the step, and says how many steps the run has open. None if the step is not this execution's.
async fn hold_with_run(tx: &mut Tx, settlement: &Settlement) -> Result<Option<i32>, StoreError> {
    let open_steps = sqlx::query_scalar!(
        // The run's lock is taken where its CTE is read, the step's when the join is done.
        "WITH run AS MATERIALIZED (
             SELECT tenant_id, run_id, open_steps FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE
         )
         SELECT run.open_steps FROM run
         JOIN open_steps s ON s.tenant_id = run.tenant_id AND s.run_id = run.run_id
         WHERE s.tenant_id = $1 AND s.id = $3 AND s.lease_id = $4
         FOR UPDATE OF s",
        settlement.fence.tenant.0,
        settlement.run.0,
        settlement.fence.step.0,
        settlement.fence.lease.0,
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(open_steps)
}

/// The lease of the step that this host keeps.
struct Kept {
    lease: LeaseId,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
}

/// Moves the step to the settled ones and opens its successors. The outer none says that a receipt of its place has no
/// answer, and that nothing was written; the inner one that no successor is kept.
async fn advance(tx: &mut Tx, settlement: &Settlement) -> Result<Option<Option<Kept>>, StoreError> {
    let settled = &settlement.settled;
    let open = OpenArrays::new(settlement.run, &settlement.open);
    let kept = settlement.keep.and_then(|_| kept_step(settlement)).map(|kept| open.ids[kept.0]);
    let row = sqlx::query!(
        // Whether every receipt is answered is looked at here, in a statement that began after the step was locked: a
        // dispatch that was under way has been committed by then, and none can begin any more.
        r#"WITH gone AS (
             DELETE FROM open_steps s
             WHERE s.tenant_id = $1 AND s.id = $2 AND ($3 OR NOT EXISTS (
                 SELECT FROM receipts r
                 WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration
                   AND r.state IN ('dispatched', 'unknown')))
             RETURNING *
         ), settled AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output, error, choice, logs, queued_at, started_at)
             SELECT tenant_id, run_id, id, lineage, node, iteration, $4, attempt, losses,
                 $5::json, $6::json, $7, $8::json, queued_at, started_at
             FROM gone
         ), opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, lineage, node, iteration, wait, block,
                 vt, lease_id, host_id, first_started_at, started_at)
             SELECT gone.tenant_id, s.id, gone.run_id, gone.lineage, s.node, s.iteration::int[], s.wait, s.block,
                 now() + CASE WHEN s.id = $15 THEN $17 ELSE s.delay END,
                 CASE WHEN s.id = $15 THEN gen_random_uuid() END,
                 CASE WHEN s.id = $15 THEN $16::uuid END,
                 CASE WHEN s.id = $15 THEN now() END,
                 CASE WHEN s.id = $15 THEN now() END
             FROM gone CROSS JOIN UNNEST(
                 $9::uuid[], $10::text[], $11::text[], $12::text[], $13::interval[], $14::bytea[]
             ) AS s (id, node, iteration, wait, delay, block)
             RETURNING lease_id, vt, started_at
         ), counted AS (
             UPDATE open_runs r SET open_steps = r.open_steps - 1 + $18
             FROM gone WHERE r.tenant_id = gone.tenant_id AND r.run_id = gone.run_id
         )
         SELECT kept.lease_id AS "lease?", kept.started_at AS "since?", kept.vt AS "until?"
         FROM gone LEFT JOIN opened kept ON kept.lease_id IS NOT NULL"#,
        settlement.fence.tenant.0,
        settlement.fence.step.0,
        is_cancelled(settlement),
        settled.state.name(),
        settled.output.as_ref().map(Exact) as Option<Exact<'_>>,
        settled.error.as_ref().map(Exact) as Option<Exact<'_>>,
        settled.choice,
        settlement.logs.as_ref().map(Exact) as Option<Exact<'_>>,
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.blocks as &[Option<Vec<u8>>],
        kept,
        settlement.keep.map(|(host, _)| host.0),
        settlement.keep.map(|(_, lease)| value::interval(lease)),
        open.count(),
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.map(|row| Some(Kept { lease: row.lease?.into(), since: row.since?, until: row.until? })))
}

/// The successor that a host keeps: the first that is ready.
fn kept_step(settlement: &Settlement) -> Option<(usize, &NewStep)> {
    settlement.open.iter().enumerate().find(|(_, step)| step.wait == Wait::Ready && step.delay.is_zero())
}

/// A new step as its keeper has it.
fn claimed(settlement: &Settlement, kept: &Kept) -> Option<Claimed> {
    let (_, step) = kept_step(settlement)?;
    let id: StepId = counterfoil_domain::id::step_id(settlement.run, &step.node, &step.iteration);
    Some(Claimed {
        fence: Fence { tenant: settlement.fence.tenant, step: id, lease: kept.lease },
        run: settlement.run,
        place: Place {
            lineage: settlement.lineage,
            node: step.node.clone(),
            iteration: step.iteration.clone(),
        },
        attempt: 1,
        wait: Wait::Ready,
        losses: 0,
        block: step.block,
        first_started_at: kept.since,
        lease_expires_at: kept.until,
        queued_at: kept.since,
    })
}
