//! What comes in becomes a run, or a refusal with its reason, once.

mod keep;
mod refusal;
mod together;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::block::WantedLimits;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{HostId, LeaseId, RunId, TenantId, WorkflowId, WorkflowVersionId};
pub use counterfoil_domain::workflow::definition::DedupMode as Dedup;
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

pub(crate) use self::keep::Keeping;
pub use self::keep::{Keep, Keeper};
pub use self::refusal::Refusal;
pub(crate) use self::refusal::flush_refusals;
use self::refusal::{insert_refusals, of};
pub(crate) use self::together::{Together, Wanted, flush_admissions};

use crate::container::insert_containers;
use crate::error::Row;
use crate::run::{RunContext, Trigger};
use crate::settle::{
    Inline, Kept, NewStep, OpenArrays, RunEnd, SettledStep, check_depth, first_ready, insert_inline,
};
use crate::step::Claimed;
use crate::transaction::{Tx, begin, undo};
use crate::value::{self, Exact};
use crate::{Store, StoreError, tenant};

/// A run to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// Whose.
    pub tenant: TenantId,
    /// Its id, which is its lineage's too.
    pub run: RunId,
    /// Its workflow.
    pub workflow: WorkflowId,
    /// The version that it is pinned to.
    pub version: WorkflowVersionId,
    /// What starts at most one run of the workflow.
    pub start_key: String,
    /// What starts it.
    pub trigger: Trigger,
    /// The record that it is about.
    pub record: Option<String>,
    /// What the record may start.
    pub dedup: Dedup,
    /// The event, as expressions will see it.
    pub event: Value,
    /// The run's input.
    pub input: Value,
    /// Steps that settle with the admission.
    pub inline: Vec<SettledStep>,
    /// Steps that are open from then on.
    pub open: Vec<NewStep>,
    /// The run ends with its admission.
    pub end: Option<RunEnd>,
}

/// What came of an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// The run exists from now on.
    Started(RunId),
    /// So it does, and its first step is under way on this host.
    Begun {
        /// The run.
        run: RunId,
        /// When it was admitted.
        at: DateTime<Utc>,
    },
    /// The start key had started this run before.
    Exists(RunId),
    /// There is no run, now or before.
    Refused {
        /// Which rule.
        code: Code,
        /// In words.
        detail: String,
    },
}

/// An admission that finds its place taken looks again at who took it; more than twice would be a bug.
const TRIES_MAX: usize = 3;

impl Store {
    /// Admits a run, or refuses it, in one transaction with the delivery that says so.
    pub async fn admit(&self, admission: &Admission) -> Result<Admitted, StoreError> {
        let outputs = admission.inline.iter().filter_map(|step| step.output.as_ref());
        let end = admission.end.as_ref().and_then(|end| end.output.as_ref());
        check_depth(outputs.chain(end).chain([&admission.input]))?;
        let wanted = Wanted { keep: self.place_for(admission), admission: admission.clone() };
        let mut admitted = self.lane().admissions.submit(wanted).await?;
        for _ in 0..TRIES_MAX {
            match admitted {
                // Its own run stands there already where the answer to an earlier commit was lost.
                Some(Admitted::Started(run) | Admitted::Exists(run)) if run == admission.run => {
                    self.wake_admitted(admission);
                    return Ok(Admitted::Started(run));
                }
                Some(Admitted::Begun { run, at }) => {
                    if admission.open.len() > 1 {
                        self.wake_admitted(admission);
                    }
                    return Ok(Admitted::Begun { run, at });
                }
                Some(admitted) => return Ok(admitted),
                None => {}
            }
            admitted = alone(self.pool(), admission).await?;
        }
        Err(StoreError::Unstorable("an admission whose place is taken by nobody"))
    }
}

impl Admission {
    /// The run as its first step finds it, whose admission is whole in one statement.
    fn begun(&self, first: &Kept, limits: WantedLimits) -> RunContext {
        RunContext {
            run: self.run,
            lineage: self.run.0.into(),
            workflow: self.workflow,
            version: self.version,
            event: self.event.clone(),
            input: self.input.clone(),
            admitted_at: first.since,
            depth: 0,
            limits,
            outputs: vec![],
        }
    }

    /// Its first step under its lease, and the run as that finds it.
    fn begin(&self, kept: &Kept, first: &NewStep, limits: WantedLimits) -> (Claimed, RunContext) {
        let run = self.begun(kept, limits);
        (kept.claimed(self.tenant, run.run, run.lineage, first), run)
    }

    /// Its steps that were never open.
    fn inline_steps(&self) -> impl Iterator<Item = Inline<'_>> {
        let (tenant, run) = (self.tenant, self.run);
        self.inline.iter().map(move |step| Inline { tenant, run, lineage: run.0.into(), step })
    }
}

/// Admits a run in a transaction of its own. None if somebody else committed what stands in the way after this looked.
async fn alone(pool: &PgPool, admission: &Admission) -> Result<Option<Admitted>, StoreError> {
    // Whatever stands in its way then is told below.
    if is_one_statement(admission) && at_once(pool, admission, None).await?.is_some() {
        return Ok(Some(Admitted::Started(admission.run)));
    }
    let mut tx = begin(pool).await?;
    hold_record(&mut tx, admission).await?;
    let before = before(&mut tx, admission).await?;
    if before.admitted.is_some() {
        return undo(tx, before.admitted).await;
    }
    if let Some((code, detail)) = refusal(admission, &before) {
        if let Trigger::Event { event, .. } = admission.trigger {
            insert_refusals(&mut tx, &[of(admission, event, code, detail.clone())]).await?;
        }
        tx.commit().await?;
        return Ok(Some(Admitted::Refused { code, detail }));
    }
    if insert(&mut tx, admission, None).await?.is_none() {
        return undo(tx, None).await;
    }
    insert_inline(&mut tx, &admission.inline_steps().collect::<Vec<_>>()).await?;
    insert_containers(&mut tx, admission.tenant, admission.run, &admission.open).await?;
    tx.commit().await?;
    Ok(Some(Admitted::Started(admission.run)))
}

/// What a host keeps a first step under. Its id is chosen before the step is there, so that it is known again where the answer to
/// the commit was lost.
#[derive(Debug, Clone, Copy)]
struct Lease {
    host: HostId,
    id: LeaseId,
    time: Duration,
}

/// Admits a run in one statement, with its first step leased if there is a place for that. None if something stands in the
/// way.
async fn at_once(
    pool: &PgPool,
    admission: &Admission,
    keep: Option<&Lease>,
) -> Result<Option<Option<(Claimed, RunContext)>>, StoreError> {
    insert(&mut *pool.acquire().await?, admission, keep).await
}

/// Whether nothing but its own start key can stand in its way, and everything of it goes into one statement: that inserts
/// all of it or nothing.
fn is_one_statement(admission: &Admission) -> bool {
    !is_exclusive(admission)
        && !matches!(admission.trigger, Trigger::Event { .. })
        && admission.inline.is_empty()
        && admission.open.iter().all(|step| step.container.is_none())
}

/// Whether the record limits what may start.
fn is_exclusive(admission: &Admission) -> bool {
    admission.dedup != Dedup::EveryTime && admission.record.is_some()
}

/// What admissions of one record take in turn. Two records with one hash wait for each other for nothing, which is harmless.
fn record_lock(admission: &Admission) -> Option<String> {
    let record = admission.record.as_ref().filter(|_| is_exclusive(admission))?;
    Some(format!("{}/{}/{record}", admission.tenant, admission.workflow))
}

/// Lets one admission of a record look at a time, until its transaction ends.
async fn hold_record(tx: &mut Tx, admission: &Admission) -> Result<(), StoreError> {
    if let Some(key) = record_lock(admission) {
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key).execute(&mut **tx).await?;
    }
    Ok(())
}

/// What is there before an admission.
struct Before {
    /// What became of the same start key, or of the same event.
    admitted: Option<Admitted>,
    record_has_run: bool,
    record_has_open_run: bool,
}

/// Looks at what there is. A statement of its own, after the record's lock, so that it sees what was committed under it.
async fn before(tx: &mut Tx, admission: &Admission) -> Result<Before, StoreError> {
    let event = match admission.trigger {
        Trigger::Api | Trigger::Run { .. } => None,
        Trigger::Event { event, .. } => Some(event),
    };
    let found = sqlx::query!(
        r#"SELECT
             (SELECT id FROM runs WHERE tenant_id = $1 AND workflow_id = $2 AND start_key = $3) AS run,
             d.refusal, d.detail AS "detail?",
             EXISTS (
                 SELECT FROM runs WHERE tenant_id = $1 AND workflow_id = $2 AND record_id = $5
             ) OR EXISTS (
                 SELECT FROM forgotten_records WHERE tenant_id = $1 AND workflow_id = $2 AND record_id = $5
             ) AS "record_has_run!",
             EXISTS (
                 SELECT FROM runs
                 WHERE tenant_id = $1 AND workflow_id = $2 AND record_id = $5 AND state = 'open'
             ) AS "record_has_open_run!"
         FROM (SELECT) AS one
         LEFT JOIN deliveries d ON d.tenant_id = $1 AND d.event_id = $4 AND d.workflow_id = $2"#,
        admission.tenant.0,
        admission.workflow.0,
        admission.start_key,
        event.map(|event| event.0),
        admission.record,
    )
    .fetch_one(&mut **tx)
    .await?;
    let row = Row { table: "deliveries", id: &admission.start_key };
    Ok(Before {
        admitted: earlier(&row, found.run, found.refusal, found.detail)?,
        record_has_run: found.record_has_run,
        record_has_open_run: found.record_has_open_run,
    })
}

/// What became of the same start key or event before.
fn earlier(
    row: &Row<&String>,
    run: Option<Uuid>,
    refusal: Option<String>,
    detail: Option<String>,
) -> Result<Option<Admitted>, StoreError> {
    Ok(match (run, refusal) {
        (Some(run), _) => Some(Admitted::Exists(run.into())),
        (None, Some(refusal)) => {
            let code = row.need("refusal", Code::from_name(&refusal))?;
            Some(Admitted::Refused { code, detail: detail.unwrap_or_default() })
        }
        (None, None) => None,
    })
}

/// Why the record may not start this run.
fn refusal(admission: &Admission, before: &Before) -> Option<(Code, String)> {
    match admission.dedup {
        Dedup::OncePerRecord if before.record_has_run => {
            Some((Code::DuplicateTrigger, "the record has had its run of this workflow".into()))
        }
        Dedup::NotWhileRunning if before.record_has_open_run => {
            Some((Code::AlreadyRunning, "a run of this workflow for the record is unfinished".into()))
        }
        _ => None,
    }
}

/// Inserts the run with its open steps and its delivery, and leases the first step that is ready, if somebody keeps that. None
/// if something of it is there already: then the transaction is of no use any more.
async fn insert(
    connection: &mut PgConnection,
    admission: &Admission,
    keep: Option<&Lease>,
) -> Result<Option<Option<(Claimed, RunContext)>>, StoreError> {
    let (event, ordinal) = admission.trigger.columns();
    let open = OpenArrays::new(admission.run, &admission.open);
    let end = admission.end.as_ref();
    let first = keep.and_then(|_| first_ready(&admission.open));
    let inserted = sqlx::query!(
        // The unique keys are the backstop: of two that looked before either wrote, one inserts nothing here.
        r#"WITH run AS (
             INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, event_id, ordinal,
                 record_id, event, input, state, ended_at, output, error)
             VALUES ($1, $2, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
                 COALESCE($12, 'open'), CASE WHEN $12 IS NOT NULL THEN now() END, $13, $14)
             ON CONFLICT DO NOTHING
             RETURNING tenant_id, id
         ), open_run AS (
             INSERT INTO open_runs (tenant_id, run_id, lineage, workflow_id, record_id, exclusive, open_steps)
             SELECT tenant_id, id, id, $3, $9, $15, cardinality($16::uuid[]) FROM run WHERE $12 IS NULL
             ON CONFLICT DO NOTHING
             RETURNING run_id
         ), delivery AS (
             INSERT INTO deliveries (tenant_id, event_id, workflow_id, version_id, run_id)
             SELECT tenant_id, $7, $3, $4, id FROM run WHERE $7 IS NOT NULL
             ON CONFLICT DO NOTHING
             RETURNING run_id
         ), opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block, vt,
                 lease_id, host_id, first_started_at, started_at)
             SELECT run.tenant_id, s.id, run.id, $3, run.id, s.node, s.iteration::int[], s.wait, s.block,
                 CASE WHEN s.id = $23 THEN now() + $25 WHEN s.wait = 'child' THEN 'infinity'
                      ELSE COALESCE(s.until, now() + s.delay) END,
                 CASE WHEN s.id = $23 THEN $26::uuid END,
                 CASE WHEN s.id = $23 THEN $24::uuid END,
                 CASE WHEN s.id = $23 THEN now() END,
                 CASE WHEN s.id = $23 THEN now() END
             FROM run CROSS JOIN UNNEST(
                 $16::uuid[], $17::text[], $18::text[], $19::text[], $20::interval[], $21::bytea[], $22::timestamptz[]
             ) AS s (id, node, iteration, wait, delay, block, until)
             RETURNING lease_id, started_at, vt, workflow_id
         )
         SELECT (SELECT count(*) FROM run) = 1
            AND (SELECT count(*) FROM open_run) = ($12 IS NULL)::int
            AND (SELECT count(*) FROM delivery) = ($7 IS NOT NULL)::int AS "whole!",
            kept.lease_id AS "lease?", kept.started_at AS "since?", kept.vt AS "until?", kept.workflow_id AS "workflow?",
            t.memory_bytes_max AS "memory_bytes_max?", t.cpu_ms_max AS "cpu_ms_max?", t.wall_ms_max AS "wall_ms_max?"
         FROM (SELECT) AS one
         LEFT JOIN opened kept ON kept.lease_id IS NOT NULL
         LEFT JOIN tenants t ON t.id = $1 AND kept.lease_id IS NOT NULL"#,
        admission.tenant.0,
        admission.run.0,
        admission.workflow.0,
        admission.version.0,
        admission.start_key,
        admission.trigger.name(),
        event,
        ordinal,
        admission.record,
        Exact(&admission.event) as Exact<'_>,
        Exact(&admission.input) as Exact<'_>,
        end.map(|end| end.state.name()),
        end.and_then(|end| end.output.as_ref()).map(Exact) as Option<Exact<'_>>,
        end.and_then(|end| end.error.as_ref()).map(Exact) as Option<Exact<'_>>,
        is_exclusive(admission),
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.blocks as &[Option<Vec<u8>>],
        &open.untils as &[Option<DateTime<Utc>>],
        first.map(|(index, _)| open.ids[index]),
        keep.map(|keep| keep.host.0),
        keep.map(|keep| value::interval(keep.time)),
        keep.map(|keep| keep.id.0),
    )
    .fetch_one(&mut *connection)
    .await?;
    if !inserted.whole {
        return Ok(None);
    }
    let kept = Kept::of(inserted.lease, inserted.since, inserted.until, inserted.workflow);
    let Some((kept, (_, first))) = kept.zip(first) else { return Ok(Some(None)) };
    let limits = [inserted.memory_bytes_max, inserted.cpu_ms_max, inserted.wall_ms_max];
    Ok(Some(Some(admission.begin(&kept, first, tenant::limits(admission.tenant, limits)?))))
}
