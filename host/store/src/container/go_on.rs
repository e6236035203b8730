//! A container that waits on, with more of it begun.

use counterfoil_domain::workflow::advance::PartStanding;

use super::open::insert_parts;
use super::{GoOn, GoOnVerdict, insert_containers, undo};
use crate::settle::{Inline, OpenArrays, check_depth, insert_inline};
use crate::step::hold;
use crate::transaction::{Tx, begin, undo as roll_back};
use crate::{Store, StoreError};

impl Store {
    /// Lets a container wait for its parts again, after it began some more.
    pub async fn go_on(&self, more: &GoOn) -> Result<GoOnVerdict, StoreError> {
        check_depth(more.inline.iter().filter_map(|step| step.output.as_ref()))?;
        let tenant = more.fence.tenant;
        let mut tx = begin(self.pool()).await?;
        let run = sqlx::query_scalar!(
            "SELECT run_id FROM open_runs WHERE tenant_id = $1 AND run_id = $2 FOR UPDATE",
            tenant.0,
            more.run.0,
        )
        .fetch_optional(&mut *tx)
        .await?;
        if run.is_none() || hold(&mut tx, &more.fence).await?.is_none() {
            return roll_back(tx, GoOnVerdict::Lost).await;
        }
        open(&mut tx, more).await?;
        insert_containers(&mut tx, tenant, more.run, &more.open).await?;
        let inline = |step| Inline { tenant, run: more.run, lineage: more.lineage, step };
        insert_inline(&mut tx, &more.inline.iter().map(inline).collect::<Vec<_>>()).await?;
        for undone in &more.undone {
            undo(&mut tx, tenant, more.lineage, undone).await?;
        }
        if !more.parts.is_empty() {
            insert_parts(&mut tx, tenant, more.fence.step.0, &more.parts).await?;
        }
        wait(&mut tx, more).await?;
        tx.commit().await?;
        self.wake_tenant(tenant);
        Ok(GoOnVerdict::Waiting)
    }
}

async fn open(tx: &mut Tx, more: &GoOn) -> Result<(), StoreError> {
    if more.open.is_empty() {
        return Ok(());
    }
    let open = OpenArrays::new(more.run, &more.open);
    sqlx::query!(
        "WITH opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block, vt)
             SELECT $1, s.id, $2, r.workflow_id, $3, s.node, s.iteration::int[], s.wait, s.block,
                 CASE WHEN s.wait = 'child' THEN 'infinity' ELSE COALESCE(s.until, now() + s.delay) END
             FROM open_runs r CROSS JOIN UNNEST(
                 $4::uuid[], $5::text[], $6::text[], $7::text[], $8::interval[], $9::timestamptz[], $10::bytea[]
             ) AS s (id, node, iteration, wait, delay, until, block)
             WHERE r.tenant_id = $1 AND r.run_id = $2
         )
         UPDATE open_runs SET open_steps = open_steps + $11 WHERE tenant_id = $1 AND run_id = $2",
        more.fence.tenant.0,
        more.run.0,
        more.lineage.0,
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.untils as &[Option<chrono::DateTime<chrono::Utc>>],
        &open.blocks as &[Option<Vec<u8>>],
        open.count(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Counts what began, and lets go of the container: until a part of it is done, unless one was meanwhile.
async fn wait(tx: &mut Tx, more: &GoOn) -> Result<(), StoreError> {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let succeeded = more.done.iter().filter(|part| part.counts).count();
    let running = more.parts.iter().filter(|part| part.standing == PartStanding::Running).count();
    let from_waiting = more.parts.iter().filter(|part| part.item.is_some()).count();
    sqlx::query!(
        "WITH counted AS (
             UPDATE containers SET awaits = awaits - $4, tolerates = tolerates - $5 + $6,
                 room = room - $7, waiting = waiting - $8
             WHERE tenant_id = $1 AND step_id = $2
             RETURNING awaits <= 0 OR tolerates < 0 OR (waiting > 0 AND room > 0) AS is_due
         )
         UPDATE open_steps s
         SET lease_id = NULL, host_id = NULL, losses = 0,
             wait = CASE WHEN is_due THEN 'ready' ELSE 'child' END,
             vt = CASE WHEN is_due THEN now() ELSE 'infinity' END
         FROM counted WHERE s.tenant_id = $1 AND s.id = $2 AND s.lease_id = $3",
        more.fence.tenant.0,
        more.fence.step.0,
        more.fence.lease.0,
        count(succeeded),
        count(more.done.len() - succeeded),
        more.tolerates,
        count(running),
        count(from_waiting),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
