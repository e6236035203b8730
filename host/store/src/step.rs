//! Open steps: who may work on them, and until when.

mod claim;
mod due;
mod leave;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::{Digest, LeaseId, Place, RunId, StepId, TenantId, WorkflowId};
use uuid::Uuid;

pub use self::claim::{ClaimRequest, Take};
pub use self::due::Line;
pub(crate) use self::leave::{Leave, leave};

use crate::error::Row;
use crate::transaction::Tx;
use crate::value::{self, text_enum};
use crate::{Store, StoreError};

/// What proves that an execution owns its step. Every write of the execution carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Whose step.
    pub tenant: TenantId,
    /// Which step.
    pub step: StepId,
    /// Which execution of it.
    pub lease: LeaseId,
}

text_enum! {
    /// What an open step waits for, or waited for before it was claimed.
    Wait {
        /// Nothing: it may be claimed.
        Ready = "ready",
        /// The end of a delay; then the wait has been served.
        Delay = "delay",
        /// The time of its next attempt.
        Retry = "retry",
        /// An approval or an awaited event.
        Signal = "signal",
        /// A child run, or the steps inside it.
        Child = "child",
        /// An external worker.
        Worker = "worker",
        /// An outcome that is unknown.
        Blocked = "blocked",
    }
}

/// A step, held by one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Proof of ownership.
    pub fence: Fence,
    /// The run it belongs to.
    pub run: RunId,
    /// The workflow that the run is one of.
    pub workflow: WorkflowId,
    /// Where in the work it is.
    pub place: Place,
    /// Which try, from 1.
    pub attempt: u32,
    /// What it waited for.
    pub wait: Wait,
    /// Hosts lost in a row while they held it.
    pub losses: u32,
    /// The block that it runs, where it runs one.
    pub block: Option<Digest>,
    /// When any execution of it first began.
    pub first_started_at: DateTime<Utc>,
    /// From when on another host may claim it.
    pub lease_expires_at: DateTime<Utc>,
    /// From when on this execution could have begun.
    pub due_at: DateTime<Utc>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// No execution of it came before this one, in its run.
    pub is_first: bool,
}

impl Claimed {
    /// The line that it waited in.
    pub const fn queue(&self) -> Queue {
        Queue { tenant: self.fence.tenant, workflow: self.workflow }
    }

    /// Whether nothing of its place has been executed before, in any run of its lineage.
    pub fn is_first_of_lineage(&self) -> bool {
        self.is_first && self.run.0 == self.place.lineage.0
    }
}

/// The columns of a claimed step, as every statement that hands one out returns them.
pub(crate) struct ClaimedRow {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) run_id: Uuid,
    pub(crate) workflow_id: Uuid,
    pub(crate) lineage: Uuid,
    pub(crate) node: String,
    pub(crate) iteration: Vec<i32>,
    pub(crate) attempt: i32,
    pub(crate) wait: String,
    pub(crate) losses: i32,
    pub(crate) block: Option<Vec<u8>>,
    pub(crate) lease_id: Uuid,
    pub(crate) first_started_at: DateTime<Utc>,
    pub(crate) vt: DateTime<Utc>,
    pub(crate) due_at: DateTime<Utc>,
    pub(crate) queued_at: DateTime<Utc>,
    pub(crate) is_first: bool,
}

impl TryFrom<ClaimedRow> for Claimed {
    type Error = StoreError;

    fn try_from(columns: ClaimedRow) -> Result<Self, StoreError> {
        let step = StepId(columns.id);
        let row = Row { table: "open_steps", id: step };
        let digest = |bytes: Vec<u8>| value::digest(&row, "block", &bytes);
        Ok(Self {
            fence: Fence { tenant: columns.tenant_id.into(), step, lease: columns.lease_id.into() },
            run: columns.run_id.into(),
            workflow: columns.workflow_id.into(),
            place: Place {
                lineage: columns.lineage.into(),
                node: columns.node,
                iteration: value::path_in(&columns.iteration),
            },
            attempt: value::count(&row, "attempt", columns.attempt)?,
            wait: row.need("wait", Wait::from_name(&columns.wait))?,
            losses: value::count(&row, "losses", columns.losses)?,
            block: columns.block.map(digest).transpose()?,
            first_started_at: columns.first_started_at,
            lease_expires_at: columns.vt,
            due_at: columns.due_at,
            queued_at: columns.queued_at,
            is_first: columns.is_first,
        })
    }
}

/// Locks the open step that `fence` names, so that nobody dispatches, settles or resumes it meanwhile, and says where
/// it is. None if it is not this execution's any more.
///
/// An expired lease that nobody has claimed is still its owner's: the claim is what takes it away.
pub(crate) async fn hold(tx: &mut Tx, fence: &Fence) -> Result<Option<Place>, StoreError> {
    let held = sqlx::query!(
        "SELECT lineage, node, iteration FROM open_steps
         WHERE tenant_id = $1 AND id = $2 AND lease_id = $3
         FOR UPDATE",
        fence.tenant.0,
        fence.step.0,
        fence.lease.0,
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(held.map(|held| Place {
        lineage: held.lineage.into(),
        node: held.node,
        iteration: value::path_in(&held.iteration),
    }))
}

/// The open step of a place, whichever run of the lineage is unfinished.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenStep {
    pub(crate) id: StepId,
    pub(crate) is_blocked: bool,
}

/// Locks the open step of a place, if there is one. Whoever settles what was unknown does so first, and only then looks:
/// otherwise a step could be blocked at the moment at which its last unknown receipt is settled, and nobody would see it.
pub(crate) async fn hold_place(
    tx: &mut Tx,
    tenant: TenantId,
    place: &Place,
) -> Result<Option<OpenStep>, StoreError> {
    let held = sqlx::query!(
        "SELECT s.id, s.wait FROM open_runs r
         JOIN open_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.run_id
         WHERE r.tenant_id = $1 AND r.lineage = $2 AND s.node = $3 AND s.iteration = $4
         FOR UPDATE OF s",
        tenant.0,
        place.lineage.0,
        place.node,
        &value::path_out(&place.iteration),
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(held.map(|held| OpenStep { id: held.id.into(), is_blocked: held.wait == Wait::Blocked.name() }))
}

/// Lets a blocked step go on, in the same attempt, unless a receipt of its place is still open. The caller holds the
/// step's lock. True if it goes on.
pub(crate) async fn resume(tx: &mut Tx, tenant: TenantId, step: StepId) -> Result<bool, StoreError> {
    let resumed = sqlx::query!(
        "UPDATE open_steps s SET wait = 'ready', vt = now()
         WHERE s.tenant_id = $1 AND s.id = $2 AND s.wait = 'blocked' AND NOT EXISTS (
             SELECT FROM receipts r
             WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
               AND r.node = s.node AND r.iteration = s.iteration
               AND r.state IN ('dispatched', 'unknown'))",
        tenant.0,
        step.0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(resumed.rows_affected() == 1)
}

impl Store {
    /// Extends the leases that are still held, from now. Returns those; the others were lost.
    ///
    /// A step that another transaction of its owner has locked is not waited for: it is still held, and the next renewal
    /// will extend it. So a renewal is never behind a slow settle, and cannot deadlock with one.
    pub async fn renew(&self, fences: &[Fence], lease: Duration) -> Result<Vec<LeaseId>, StoreError> {
        let tenants: Vec<Uuid> = fences.iter().map(|fence| fence.tenant.0).collect();
        let steps: Vec<Uuid> = fences.iter().map(|fence| fence.step.0).collect();
        let leases: Vec<Uuid> = fences.iter().map(|fence| fence.lease.0).collect();
        let held = sqlx::query_scalar!(
            r#"WITH mine AS (
                 SELECT s.tenant_id, s.id, s.lease_id
                 FROM UNNEST($1::uuid[], $2::uuid[], $3::uuid[]) AS f (tenant_id, id, lease_id)
                 CROSS JOIN LATERAL (
                     SELECT tenant_id, id, lease_id FROM open_steps
                     WHERE tenant_id = f.tenant_id AND id = f.id AND lease_id = f.lease_id
                     OFFSET 0
                 ) s
             ), free AS (
                 SELECT s.tenant_id, s.id FROM mine CROSS JOIN LATERAL (
                     SELECT tenant_id, id FROM open_steps
                     WHERE tenant_id = mine.tenant_id AND id = mine.id AND lease_id = mine.lease_id
                     FOR UPDATE SKIP LOCKED
                 ) s
             ), renewed AS (
                 UPDATE open_steps s SET vt = now() + $4 FROM free
                 WHERE s.tenant_id = free.tenant_id AND s.id = free.id
             )
             SELECT lease_id AS "lease_id!" FROM mine"#,
            &tenants,
            &steps,
            &leases,
            value::interval(lease),
        )
        .fetch_all(self.pool())
        .await?;
        Ok(held.into_iter().map(LeaseId).collect())
    }

    /// Gives a step back unworked, to be claimed after `delay`; no loss is counted. False if it was not this execution's
    /// any more.
    pub async fn hand_back(&self, fence: &Fence, delay: Duration) -> Result<bool, StoreError> {
        let mut connection = self.pool().acquire().await?;
        let gone = leave(&mut connection, fence, &Leave::hand_back(delay, None, false)).await?;
        if gone {
            self.wake_tenant(fence.tenant);
        }
        Ok(gone)
    }
}
