//! Runs that a step of another run starts, and waits for.

use counterfoil_domain::id::{LineageId, RunId, StepId, TenantId, WorkflowId, WorkflowVersionId};
use serde_json::Value;

use super::signal::hold_run;
use crate::container::insert_containers;
use crate::error::Row;
use crate::run::RunState;
use crate::settle::{Inline, NewStep, OpenArrays, RunEnd, SettledStep, check_depth, insert_inline};
use crate::step::{Fence, hold};
use crate::transaction::{Tx, begin, undo};
use crate::value::Exact;
use crate::{Store, StoreError};

/// A run to be, and the step that starts it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildAdmission {
    /// The step's execution.
    pub fence: Fence,
    /// The step's run.
    pub parent: RunId,
    /// Whether the step waits for the end of the run.
    pub waits: bool,
    /// The run's id.
    pub run: RunId,
    /// Its lineage, which follows from the step's place.
    pub lineage: LineageId,
    /// Its workflow.
    pub workflow: WorkflowId,
    /// The version that it is pinned to.
    pub version: WorkflowVersionId,
    /// Runs above it.
    pub depth: u32,
    /// Its input.
    pub input: Value,
    /// Steps that settle with its admission.
    pub inline: Vec<SettledStep>,
    /// Steps that are open from then on.
    pub open: Vec<NewStep>,
    /// It ends with its admission.
    pub end: Option<RunEnd>,
}

/// What came of a wish to start a run, or to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildVerdict {
    /// The step waits, or goes on at once if there is nothing to wait for.
    Waiting,
    /// The step is not this execution's any more. Nothing was written.
    Lost,
}

/// The run that a step has started.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildRun {
    /// Which one.
    pub run: RunId,
    /// How it ended; none while it is open.
    pub ended: Option<RunState>,
    /// What came of it, if it succeeded.
    pub output: Option<Value>,
    /// Why it failed, if it did.
    pub error: Option<Value>,
}

impl Store {
    /// Starts a run in the transaction that makes its parent wait. If its lineage has an unfinished run, or the step has
    /// started one before, the parent waits for that.
    pub async fn start_child(&self, child: &ChildAdmission) -> Result<ChildVerdict, StoreError> {
        let outputs = child.inline.iter().filter_map(|step| step.output.as_ref());
        check_depth(outputs.chain([&child.input]))?;
        let mut tx = begin(self.pool()).await?;
        let tenant = child.fence.tenant;
        if !hold_run(&mut tx, tenant, child.parent).await? || hold(&mut tx, &child.fence).await?.is_none() {
            return undo(tx, ChildVerdict::Lost).await;
        }
        let known = sqlx::query_scalar!(
            r#"SELECT COALESCE(
                 (SELECT run_id FROM open_runs WHERE tenant_id = $1 AND lineage = $2),
                 (SELECT id FROM runs WHERE tenant_id = $1 AND workflow_id = $3 AND start_key = $4)) AS id"#,
            tenant.0,
            child.lineage.0,
            child.workflow.0,
            start_key(child.fence.step),
        )
        .fetch_one(&mut *tx)
        .await?;
        if known.is_none() {
            insert(&mut tx, child).await?;
        }
        let run = known.unwrap_or(child.run.0);
        sqlx::query!(
            "INSERT INTO waits (tenant_id, step_id, run_id, kind, name) VALUES ($1, $2, $3, 'child', $4)
             ON CONFLICT DO NOTHING",
            tenant.0,
            child.fence.step.0,
            child.parent.0,
            run.to_string(),
        )
        .execute(&mut *tx)
        .await?;
        let_go(&mut tx, &child.fence, child.waits).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(ChildVerdict::Waiting)
    }

    /// Lets a step wait again for the run that it has started.
    pub async fn wait_for_child(&self, fence: &Fence) -> Result<ChildVerdict, StoreError> {
        let mut tx = begin(self.pool()).await?;
        if hold(&mut tx, fence).await?.is_none() {
            return undo(tx, ChildVerdict::Lost).await;
        }
        let_go(&mut tx, fence, true).await?;
        tx.commit().await?;
        self.wake_tenant(fence.tenant);
        Ok(ChildVerdict::Waiting)
    }

    /// The run that a step has started, if it has.
    pub async fn child(&self, tenant: TenantId, step: StepId) -> Result<Option<ChildRun>, StoreError> {
        let found = sqlx::query!(
            "SELECT r.id, r.state, r.output, r.error FROM waits w
             JOIN runs r ON r.tenant_id = w.tenant_id AND r.id = w.name::uuid
             WHERE w.tenant_id = $1 AND w.step_id = $2 AND w.kind = 'child'",
            tenant.0,
            step.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(found) = found else { return Ok(None) };
        let row = Row { table: "runs", id: RunId(found.id) };
        let ended = match found.state.as_str() {
            "open" => None,
            state => Some(row.need("state", RunState::from_name(state))?),
        };
        Ok(Some(ChildRun { run: row.id, ended, output: found.output, error: found.error }))
    }

    /// Cancels the runs whose parents were cancelled. Returns how many there were.
    pub async fn cancel_due(&self) -> Result<usize, StoreError> {
        /// Enough for one look: the next one takes more.
        const RUNS_MAX: i64 = 100;
        let due = sqlx::query!("SELECT tenant_id, run_id FROM due_cancels ORDER BY since LIMIT $1", RUNS_MAX)
            .fetch_all(self.pool())
            .await?;
        for cancel in &due {
            let (tenant, run) = (TenantId(cancel.tenant_id), RunId(cancel.run_id));
            self.cancel_run(tenant, run, &counterfoil_domain::receipt::Actor::Host).await?;
            sqlx::query!(
                "DELETE FROM due_cancels WHERE tenant_id = $1 AND run_id = $2",
                cancel.tenant_id,
                cancel.run_id,
            )
            .execute(self.pool())
            .await?;
        }
        Ok(due.len())
    }
}

/// What starts at most one run for a step.
fn start_key(step: StepId) -> String {
    format!("step:{step}")
}

async fn insert(tx: &mut Tx, child: &ChildAdmission) -> Result<(), StoreError> {
    let tenant = child.fence.tenant;
    let open = OpenArrays::new(child.run, &child.open);
    let end = child.end.as_ref();
    sqlx::query!(
        "WITH child AS (
             INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, parent_run_id,
                 parent_step_id, depth, event, input, state, ended_at, output, error)
             VALUES ($1, $2, $3, $4, $5, $6, 'run', $7, $8, $9, 'null', $10,
                 COALESCE($11, 'open'), CASE WHEN $11 IS NOT NULL THEN now() END, $12, $13)
         ), open_run AS (
             INSERT INTO open_runs (tenant_id, run_id, lineage, workflow_id, exclusive, open_steps)
             SELECT $1, $2, $3, $4, false, cardinality($14::uuid[]) WHERE $11 IS NULL
         )
         INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block, vt)
         SELECT $1, s.id, $2, $4, $3, s.node, s.iteration::int[], s.wait, s.block,
             CASE WHEN s.wait = 'child' THEN 'infinity' ELSE COALESCE(s.until, now() + s.delay) END
         FROM UNNEST(
             $14::uuid[], $15::text[], $16::text[], $17::text[], $18::interval[], $19::bytea[], $20::timestamptz[]
         ) AS s (id, node, iteration, wait, delay, block, until)",
        tenant.0,
        child.run.0,
        child.lineage.0,
        child.workflow.0,
        child.version.0,
        start_key(child.fence.step),
        child.parent.0,
        child.fence.step.0,
        child.depth.cast_signed(),
        Exact(&child.input) as Exact<'_>,
        end.map(|end| end.state.name()),
        end.and_then(|end| end.output.as_ref()).map(Exact) as Option<Exact<'_>>,
        end.and_then(|end| end.error.as_ref()).map(Exact) as Option<Exact<'_>>,
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.blocks as &[Option<Vec<u8>>],
        &open.untils as &[Option<chrono::DateTime<chrono::Utc>>],
    )
    .execute(&mut **tx)
    .await?;
    let inline = |step| Inline { tenant, run: child.run, lineage: child.lineage, step };
    insert_inline(tx, &child.inline.iter().map(inline).collect::<Vec<_>>()).await?;
    insert_containers(tx, tenant, child.run, &child.open).await
}

/// Until the run ends, if it is waited for and has not. Its end wakes the step afterwards: it waits for the step's lock, and
/// finds it waiting.
async fn let_go(tx: &mut Tx, fence: &Fence, waits: bool) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH child AS (
             SELECT NOT $4 OR r.state <> 'open' AS is_over FROM waits w
             JOIN runs r ON r.tenant_id = w.tenant_id AND r.id = w.name::uuid
             WHERE w.tenant_id = $1 AND w.step_id = $2
         )
         UPDATE open_steps s
         SET lease_id = NULL, host_id = NULL, losses = 0,
             wait = CASE WHEN is_over THEN 'ready' ELSE 'child' END,
             vt = CASE WHEN is_over THEN now() ELSE 'infinity' END
         FROM child WHERE s.tenant_id = $1 AND s.id = $2 AND s.lease_id = $3",
        fence.tenant.0,
        fence.step.0,
        fence.lease.0,
        waits,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Makes the step due that waits for a run, in the transaction that ends the run.
pub(crate) async fn end_child(tx: &mut Tx, tenant: TenantId, run: RunId) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE open_steps s SET wait = 'ready', vt = now()
         FROM waits w
         WHERE w.tenant_id = $1 AND w.kind = 'child' AND w.name = $2
           AND s.tenant_id = $1 AND s.id = w.step_id AND s.wait = 'child' AND s.lease_id IS NULL",
        tenant.0,
        run.0.to_string(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Remembers the types of events that a workflow waits for.
pub(crate) async fn bind_types(tx: &mut Tx, tenant: TenantId, types: &[String]) -> Result<(), StoreError> {
    if types.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO listened_types (tenant_id, event_type) SELECT $1, UNNEST($2::text[]) ON CONFLICT DO NOTHING",
        tenant.0,
        types,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
