//! Many settlements in one transaction.
//!
//! Only the plain ones go together: at most one answer, which says that the effect took place, and no end of a run that
//! has more open. Whatever does not come out as hoped is left alone here and settled by itself, where its case is told.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use counterfoil_domain::ports::{Faults, Site};
use sqlx::PgPool;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::advance::{Kept, first_ready};
use super::answers::AnswerArrays;
use super::finish::{Ended, alone};
use super::hold::plain_commit;
use super::inline::insert_inline;
use super::{OpenArrays, RunEndState, Settlement};
use crate::StoreError;
use crate::transaction::{Tx, begin};
use crate::value;

/// What came of a settlement among others; none if it must be settled by itself.
pub(crate) type Together = Option<Ended>;

impl Settlement {
    /// Whether it may go with others.
    pub(super) fn is_plain(&self) -> bool {
        let answers = match self.writes.as_slice() {
            [] => true,
            [own] => plain_commit(own).is_some(),
            _ => false,
        };
        answers
            && self.own.is_empty()
            && self.containers.is_nothing()
            && !(self.containers.is_child && self.end.is_some())
            && self.open.iter().all(|step| step.container.is_none())
            && self.end.as_ref().is_none_or(|end| end.state != RunEndState::Cancelled)
    }
}

/// Settles steps as they come.
pub(crate) fn flush_settlements(
    pool: PgPool,
    faults: Arc<dyn Faults>,
) -> impl Fn(Vec<Settlement>) -> Pin<Box<dyn Future<Output = Vec<Together>> + Send>> + Clone + Send + 'static
{
    move |settlements| {
        let (pool, faults) = (pool.clone(), Arc::clone(&faults));
        Box::pin(async move {
            let flushed = match settlements.as_slice() {
                [one] => alone(&pool, &*faults, one).await.map(|ended| vec![Some(ended)]),
                many => flush(&pool, &*faults, many).await,
            };
            match flushed {
                Ok(flushed) => flushed,
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "steps did not settle together"
                    );
                    settlements.iter().map(|_| None).collect()
                }
            }
        })
    }
}

async fn flush(
    pool: &PgPool,
    faults: &dyn Faults,
    settlements: &[Settlement],
) -> Result<Vec<Together>, StoreError> {
    let mut tx = begin(pool).await?;
    let held = hold(&mut tx, settlements).await?;
    let going: Vec<(usize, &Settlement)> =
        settlements.iter().enumerate().filter(|(n, _)| held.contains(n)).collect();
    let mut flushed: Vec<Together> = settlements.iter().map(|_| None).collect();
    let inline = if going.is_empty() {
        vec![]
    } else {
        let columns = FinishColumns::new(&going);
        let rows = finish(&mut tx, &columns).await?;
        for (n, kept) in finished(&columns, rows) {
            flushed[n] = Some(Ended::Settled(kept));
        }
        going.iter().filter(|(n, _)| flushed[*n].is_some()).flat_map(|(_, one)| one.inline_steps()).collect()
    };
    insert_inline(&mut tx, &inline).await?;
    faults.reach(Site::InSettle);
    tx.commit().await?;
    faults.reach(Site::AfterSettle);
    Ok(flushed)
}

/// Locks the runs in the order of their ids, then the steps, and writes the answers. Returns those that can settle now.
async fn hold(tx: &mut Tx, settlements: &[Settlement]) -> Result<Vec<usize>, StoreError> {
    let columns = HoldColumns::new(settlements);
    let held = sqlx::query!(
        // A run is locked before its steps are. Each is looked for by its key, however few the planner believes that there
        // are.
        r#"WITH want AS MATERIALIZED (
             SELECT * FROM UNNEST(
                 $1::int[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::bool[], $7::uuid[], $8::text[],
                 $9::int[], $10::text[], $11::bytea[], $12::bool[], $13::text[], $14::text[]
             ) AS w (n, tenant_id, run_id, id, lease_id, is_end, receipt_id, answer_kind,
                 answer_status, answer_headers, answer_body, answer_truncated, reason, provider_receipt_id)
         ), run AS MATERIALIZED (
             SELECT r.* FROM (SELECT DISTINCT tenant_id, run_id FROM want ORDER BY tenant_id, run_id) w
             CROSS JOIN LATERAL (
                 SELECT r.tenant_id, r.run_id, r.open_steps FROM open_runs r
                 WHERE r.tenant_id = w.tenant_id AND r.run_id = w.run_id
                 FOR UPDATE
             ) r
         ), step AS MATERIALIZED (
             SELECT want.n FROM want
             JOIN run ON run.tenant_id = want.tenant_id AND run.run_id = want.run_id
             CROSS JOIN LATERAL (
                 SELECT FROM open_steps s
                 WHERE s.tenant_id = want.tenant_id AND s.id = want.id AND s.lease_id = want.lease_id
                   AND (NOT want.is_end OR run.open_steps = 1)
                 FOR UPDATE
             ) s
         ), answered AS (
             UPDATE receipts r SET state = 'committed', answered_at = now(), answer_kind = want.answer_kind,
                 answer_status = want.answer_status, answer_headers = want.answer_headers::json,
                 answer_body = want.answer_body, answer_truncated = want.answer_truncated, reason = want.reason,
                 provider_receipt_id = want.provider_receipt_id
             FROM want JOIN step ON step.n = want.n
             WHERE r.tenant_id = want.tenant_id AND r.id = want.receipt_id AND r.state = 'dispatched'
             RETURNING want.n
         )
         SELECT step.n AS "n!" FROM step JOIN want ON want.n = step.n
         WHERE want.receipt_id IS NULL OR EXISTS (SELECT FROM answered WHERE answered.n = step.n)"#,
        &columns.numbers,
        &columns.tenants,
        &columns.runs,
        &columns.steps,
        &columns.leases,
        &columns.are_ends,
        &columns.receipts as &[Option<Uuid>],
        &columns.answers.kinds as &[Option<&str>],
        &columns.answers.statuses as &[Option<i32>],
        &columns.answers.headers as &[Option<String>],
        &columns.answers.bodies as &[Option<&[u8]>],
        &columns.answers.truncated as &[Option<bool>],
        &columns.answers.reasons as &[Option<&str>],
        &columns.answers.provider_ids as &[Option<&str>],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(held.into_iter().filter_map(|row| usize::try_from(row.n).ok()).collect())
}

#[derive(Default)]
struct HoldColumns<'a> {
    numbers: Vec<i32>,
    tenants: Vec<Uuid>,
    runs: Vec<Uuid>,
    steps: Vec<Uuid>,
    leases: Vec<Uuid>,
    are_ends: Vec<bool>,
    receipts: Vec<Option<Uuid>>,
    answers: AnswerArrays<'a>,
}

impl<'a> HoldColumns<'a> {
    fn new(settlements: &'a [Settlement]) -> Self {
        let mut columns = Self::default();
        for (n, settlement) in (0..).zip(settlements) {
            let commit = settlement.writes.first().and_then(plain_commit);
            columns.numbers.push(n);
            columns.tenants.push(settlement.fence.tenant.0);
            columns.runs.push(settlement.run.0);
            columns.steps.push(settlement.fence.step.0);
            columns.leases.push(settlement.fence.lease.0);
            columns.are_ends.push(settlement.end.is_some());
            columns.receipts.push(commit.map(|commit| commit.receipt.0));
            columns.answers.push(commit);
        }
        columns
    }
}

/// Moves steps to the settled ones, opens their successors, and ends runs. Returns those whose receipts are all answered,
/// which is looked at here: in a statement that began after the steps were locked.
async fn finish(tx: &mut Tx, columns: &FinishColumns<'_>) -> Result<Vec<FinishedRow>, StoreError> {
    let (open, open_numbers) = (&columns.open, &columns.open_numbers);
    let rows = sqlx::query_as!(
        FinishedRow,
        r#"WITH want AS MATERIALIZED (
             SELECT * FROM UNNEST(
                 $1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                 $9::int[], $10::uuid[], $11::uuid[], $12::interval[], $13::text[], $14::text[], $15::text[]
             ) AS w (n, tenant_id, id, state, output, error, choice, logs,
                 opened, kept_id, host_id, lease, end_state, end_output, end_error)
         ), gone AS (
             DELETE FROM open_steps s USING want
             WHERE s.tenant_id = want.tenant_id AND s.id = want.id AND NOT EXISTS (
                 SELECT FROM receipts r
                 WHERE r.tenant_id = s.tenant_id AND r.lineage = s.lineage
                   AND r.node = s.node AND r.iteration = s.iteration
                   AND r.state IN ('dispatched', 'unknown'))
             RETURNING s.tenant_id, s.id, s.run_id, s.workflow_id, s.lineage, s.node, s.iteration, s.attempt,
                 s.losses, s.queued_at, s.started_at, want.n, want.state, want.output, want.error AS settled_error, want.choice, want.logs,
                 want.opened, want.kept_id, want.host_id AS keeper, want.lease, want.end_state, want.end_output,
                 want.end_error
         ), settled AS (
             INSERT INTO settled_steps (tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output, error, choice, logs, queued_at, started_at)
             SELECT tenant_id, run_id, id, lineage, node, iteration, state, attempt, losses,
                 output::json, settled_error::json, choice, logs::json, queued_at, started_at
             FROM gone
         ), opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block,
                 vt, lease_id, host_id, first_started_at, started_at)
             SELECT gone.tenant_id, o.id, gone.run_id, gone.workflow_id, gone.lineage, o.node, o.iteration::int[],
                 o.wait, o.block,
                 CASE WHEN o.id = gone.kept_id THEN now() + gone.lease ELSE COALESCE(o.until, now() + o.delay) END,
                 CASE WHEN o.id = gone.kept_id THEN gen_random_uuid() END,
                 CASE WHEN o.id = gone.kept_id THEN gone.keeper END,
                 CASE WHEN o.id = gone.kept_id THEN now() END,
                 CASE WHEN o.id = gone.kept_id THEN now() END
             FROM gone JOIN UNNEST(
                 $16::int[], $17::uuid[], $18::text[], $19::text[], $20::text[], $21::interval[], $22::bytea[],
                 $23::timestamptz[]
             ) AS o (n, id, node, iteration, wait, delay, block, until) ON o.n = gone.n
             RETURNING id, lease_id, vt, started_at, workflow_id
         ), counted AS (
             UPDATE open_runs r SET open_steps = r.open_steps + change.steps
             FROM (
                 -- One statement changes a row once, however many of a run's steps settle in it.
                 SELECT tenant_id, run_id, sum(opened - 1)::int AS steps FROM gone
                 WHERE end_state IS NULL GROUP BY tenant_id, run_id
             ) change
             WHERE r.tenant_id = change.tenant_id AND r.run_id = change.run_id AND change.steps <> 0
         ), closed AS (
             DELETE FROM open_runs r USING gone
             WHERE gone.end_state IS NOT NULL AND r.tenant_id = gone.tenant_id AND r.run_id = gone.run_id
         ), ended AS (
             UPDATE runs r SET state = gone.end_state, ended_at = now(), output = gone.end_output::json,
                 error = gone.end_error::json
             FROM gone
             WHERE gone.end_state IS NOT NULL AND r.tenant_id = gone.tenant_id AND r.id = gone.run_id
               AND r.state = 'open'
         )
         -- A join would compare each with each: what belongs together is found by the caller.
         SELECT n, NULL::uuid AS kept, NULL::uuid AS lease, NULL::timestamptz AS since, NULL::timestamptz AS until,
             NULL::uuid AS workflow
         FROM gone
         UNION ALL
         SELECT NULL, id, lease_id, started_at, vt, workflow_id FROM opened WHERE lease_id IS NOT NULL"#,
        &columns.numbers,
        &columns.tenants,
        &columns.steps,
        &columns.states as &[&str],
        &columns.outputs as &[Option<String>],
        &columns.errors as &[Option<String>],
        &columns.choices as &[Option<&str>],
        &columns.logs as &[Option<String>],
        &columns.opened,
        &columns.kept as &[Option<Uuid>],
        &columns.keepers as &[Option<Uuid>],
        &columns.leases as &[Option<PgInterval>],
        &columns.end_states as &[Option<&str>],
        &columns.end_outputs as &[Option<String>],
        &columns.end_errors as &[Option<String>],
        open_numbers,
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.blocks as &[Option<Vec<u8>>],
        &open.untils as &[Option<DateTime<Utc>>],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows)
}

/// Either a settlement that is done, or a step that is kept.
struct FinishedRow {
    n: Option<i32>,
    kept: Option<Uuid>,
    lease: Option<Uuid>,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    workflow: Option<Uuid>,
}

/// The settlements that are done, each with the step that its host keeps.
fn finished(
    columns: &FinishColumns<'_>,
    rows: Vec<FinishedRow>,
) -> impl Iterator<Item = (usize, Option<Kept>)> {
    let gone: HashSet<i32> = rows.iter().filter_map(|row| row.n).collect();
    let kept = |row: FinishedRow| Some((row.kept?, Kept::of(row.lease, row.since, row.until, row.workflow)?));
    let mut kept: HashMap<Uuid, Kept> = rows.into_iter().filter_map(kept).collect();
    let settlements = columns.numbers.iter().zip(&columns.kept);
    settlements.filter(move |(n, _)| gone.contains(n)).filter_map(move |(n, kept_id)| {
        Some((usize::try_from(*n).ok()?, kept_id.and_then(|id| kept.remove(&id))))
    })
}

#[derive(Default)]
struct FinishColumns<'a> {
    numbers: Vec<i32>,
    tenants: Vec<Uuid>,
    steps: Vec<Uuid>,
    states: Vec<&'static str>,
    outputs: Vec<Option<String>>,
    errors: Vec<Option<String>>,
    choices: Vec<Option<&'a str>>,
    logs: Vec<Option<String>>,
    opened: Vec<i32>,
    kept: Vec<Option<Uuid>>,
    keepers: Vec<Option<Uuid>>,
    leases: Vec<Option<PgInterval>>,
    end_states: Vec<Option<&'static str>>,
    end_outputs: Vec<Option<String>>,
    end_errors: Vec<Option<String>>,
    /// Which settlement each of the steps in `open` follows.
    open_numbers: Vec<i32>,
    open: OpenArrays,
}

impl<'a> FinishColumns<'a> {
    fn new(settlements: &[(usize, &'a Settlement)]) -> Self {
        let mut columns = Self::default();
        for (n, settlement) in settlements {
            let n = i32::try_from(*n).unwrap_or(i32::MAX);
            let settled = &settlement.settled;
            let end = settlement.end.as_ref();
            let keep = settlement.keep.filter(|_| end.is_none());
            // What a run that ends would open is not opened.
            let open = if end.is_some() { &[][..] } else { &settlement.open[..] };
            columns.numbers.push(n);
            columns.tenants.push(settlement.fence.tenant.0);
            columns.steps.push(settlement.fence.step.0);
            columns.states.push(settled.state.name());
            columns.outputs.push(value::json_text(settled.output.as_ref()));
            columns.errors.push(value::json_text(settled.error.as_ref()));
            columns.choices.push(settled.choice.as_deref());
            columns.logs.push(value::json_text(settlement.logs.as_ref()));
            let first_opened = columns.open.ids.len();
            columns.open.extend(settlement.run, open);
            columns.opened.push(i32::try_from(open.len()).unwrap_or(i32::MAX));
            columns.open_numbers.resize(columns.open.ids.len(), n);
            let kept = keep.and_then(|_| first_ready(&settlement.open));
            columns.kept.push(kept.map(|(index, _)| columns.open.ids[first_opened + index]));
            columns.keepers.push(keep.map(|(host, _)| host.0));
            columns.leases.push(keep.map(|(_, lease)| value::interval(lease)));
            columns.end_states.push(end.map(|end| end.state.name()));
            columns.end_outputs.push(end.and_then(|end| value::json_text(end.output.as_ref())));
            columns.end_errors.push(end.and_then(|end| value::json_text(end.error.as_ref())));
        }
        columns
    }
}
