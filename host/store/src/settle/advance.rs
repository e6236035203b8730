//! A step that settles and is followed by others.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{LeaseId, LineageId, Place, RunId, TenantId, WorkflowId, step_id};
use uuid::Uuid;

use super::{NewStep, OpenArrays, Settlement};
use crate::StoreError;
use crate::step::{Claimed, Fence, Wait};
use crate::transaction::Tx;
use crate::value::{self, Exact};

/// The lease of the step that this host keeps.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) lease: LeaseId,
    pub(crate) since: DateTime<Utc>,
    pub(super) until: DateTime<Utc>,
    pub(super) workflow: WorkflowId,
}

impl Kept {
    /// From its columns, which are all there or none.
    pub(crate) fn of(
        lease: Option<Uuid>,
        since: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
        workflow: Option<Uuid>,
    ) -> Option<Self> {
        Some(Self { lease: lease?.into(), since: since?, until: until?, workflow: workflow?.into() })
    }

    /// The new step whose lease it is, as its keeper has it.
    pub(crate) fn claimed(
        &self,
        tenant: TenantId,
        run: RunId,
        lineage: LineageId,
        step: &NewStep,
    ) -> Claimed {
        let id = step_id(run, &step.node, &step.iteration);
        Claimed {
            fence: Fence { tenant, step: id, lease: self.lease },
            run,
            workflow: self.workflow,
            place: Place { lineage, node: step.node.clone(), iteration: step.iteration.clone() },
            attempt: 1,
            wait: Wait::Ready,
            losses: 0,
            block: step.block,
            first_started_at: self.since,
            lease_expires_at: self.until,
            due_at: self.since,
            queued_at: self.since,
            is_first: true,
        }
    }
}

/// Moves the step to the settled ones and opens its successors; so many others of the run were cancelled by it. The outer none says that a receipt of its place has no
/// answer, and that nothing was written; the inner one that no successor is kept.
///
/// Whether every receipt is answered is looked at here, in a statement that began after the step was locked: a dispatch that
/// was under way has been committed by then, and none can begin any more.
pub(super) async fn advance(
    tx: &mut Tx,
    settlement: &Settlement,
    cancelled: i32,
) -> Result<Option<Option<Kept>>, StoreError> {
    let settled = &settlement.settled;
    let open = OpenArrays::new(settlement.run, &settlement.open);
    let kept = settlement.keep.and_then(|_| first_ready(&settlement.open)).map(|kept| open.ids[kept.0]);
    let row = sqlx::query!(
        r#"WITH gone AS (
             DELETE FROM open_steps s
             WHERE s.tenant_id = $1 AND s.id = $2 AND NOT EXISTS (
                 SELECT FROM receipts r
                 WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration
                   AND r.state IN ('dispatched', 'unknown'))
             RETURNING *
         ), settled AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output, error, choice, logs, queued_at, started_at)
             SELECT tenant_id, run_id, id, lineage, node, iteration, $3, attempt, losses,
                 $4::json, $5::json, $6, $7::json, queued_at, started_at
             FROM gone
         ), opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block,
                 vt, lease_id, host_id, first_started_at, started_at)
             SELECT gone.tenant_id, s.id, gone.run_id, gone.workflow_id, gone.lineage, s.node, s.iteration::int[],
                 s.wait, s.block,
                 CASE WHEN s.id = $14 THEN now() + $16 WHEN s.wait = 'child' THEN 'infinity'
                      ELSE COALESCE(s.until, now() + s.delay) END,
                 CASE WHEN s.id = $14 THEN gen_random_uuid() END,
                 CASE WHEN s.id = $14 THEN $15::uuid END,
                 CASE WHEN s.id = $14 THEN now() END,
                 CASE WHEN s.id = $14 THEN now() END
             FROM gone CROSS JOIN UNNEST(
                 $8::uuid[], $9::text[], $10::text[], $11::text[], $12::interval[], $13::bytea[],
                 $18::timestamptz[]
             ) AS s (id, node, iteration, wait, delay, block, until)
             RETURNING lease_id, vt, started_at, workflow_id
         ), counted AS (
             UPDATE open_runs r SET open_steps = r.open_steps - 1 + $17
             FROM gone WHERE r.tenant_id = gone.tenant_id AND r.run_id = gone.run_id
         )
         SELECT kept.lease_id AS "lease?", kept.started_at AS "since?", kept.vt AS "until?",
             kept.workflow_id AS "workflow?"
         FROM gone LEFT JOIN opened kept ON kept.lease_id IS NOT NULL"#,
        settlement.fence.tenant.0,
        settlement.fence.step.0,
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
        open.count() - cancelled,
        &open.untils as &[Option<DateTime<Utc>>],
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.map(|row| Kept::of(row.lease, row.since, row.until, row.workflow)))
}

/// The step that a host keeps of those that are opened: the first that is ready.
pub(crate) fn first_ready(open: &[NewStep]) -> Option<(usize, &NewStep)> {
    let is_ready = |step: &NewStep| step.wait == Wait::Ready && step.delay.is_zero() && step.until.is_none();
    open.iter().enumerate().find(|(_, step)| is_ready(step))
}

/// A new step as its keeper has it.
pub(super) fn claimed(settlement: &Settlement, kept: &Kept) -> Option<Claimed> {
    let (_, step) = first_ready(&settlement.open)?;
    Some(kept.claimed(settlement.fence.tenant, settlement.run, settlement.lineage, step))
}
