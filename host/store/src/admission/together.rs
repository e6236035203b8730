//! Many admissions in one transaction, with one commit.
//!
//! Whatever needs a second look (two of one record or of one start key, a place that is taken meanwhile) is left alone here
//! and admitted by itself, where its case is told.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::LeaseId;
use counterfoil_domain::ports::{Faults, Site};
use sqlx::PgPool;
use uuid::Uuid;

use super::keep::found_again;
use super::refusal::{insert_refusals, of};
use super::{Admission, Admitted, Before, Keep, Lease, alone, at_once, is_exclusive, record_lock, refusal};
use crate::StoreError;
use crate::container::insert_containers;
use crate::error::Row;
use crate::run::Trigger;
use crate::settle::{OpenArrays, insert_inline};
use crate::transaction::{Tx, begin, undo};
use crate::value::json_text;

/// A run to be, and a place for its first step.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) admission: Admission,
    pub(crate) keep: Option<Keep>,
}

/// What came of an admission; none if it must be made by itself.
pub(crate) type Together = Option<Admitted>;

/// Admits runs as they come.
pub(crate) fn flush_admissions(
    pool: PgPool,
    faults: Arc<dyn Faults>,
) -> impl Fn(Vec<Wanted>) -> Pin<Box<dyn Future<Output = Vec<Together>> + Send>> + Clone + Send + 'static {
    move |wanted| {
        let (pool, faults) = (pool.clone(), Arc::clone(&faults));
        Box::pin(async move {
            // Where many come at once, their steps are claimed, which shares the host fairly.
            let (admissions, mut places): (Vec<_>, Vec<_>) =
                wanted.into_iter().map(|wanted| (wanted.admission, wanted.keep)).unzip();
            let flushed = match (admissions.as_slice(), places.as_mut_slice()) {
                ([one], [place]) => {
                    by_itself(&pool, &*faults, one, place.take()).await.map(|admitted| vec![admitted])
                }
                (many, _) => flush(&pool, many).await,
            };
            flushed.unwrap_or_else(|error| {
                // Each is tried by itself, so that one bad row fails none but its own.
                tracing::debug!(error = &error as &dyn std::error::Error, "runs were not admitted together");
                vec![None; admissions.len()]
            })
        })
    }
}

/// Admits one, and begins its first step if there is a place for that: here, so that it begins even if whoever admits it is
/// gone.
async fn by_itself(
    pool: &PgPool,
    faults: &dyn Faults,
    admission: &Admission,
    keep: Option<Keep>,
) -> Result<Together, StoreError> {
    let Some(Keep { host, lease: time, take }) = keep else {
        return alone(pool, admission).await;
    };
    faults.reach(Site::BeforeClaim);
    let lease = Lease { host, id: LeaseId(Uuid::now_v7()), time };
    let begun = match at_once(pool, admission, Some(&lease)).await {
        // If it was the answer alone that was lost, its first step has our lease, and nobody else begins it.
        Err(error) if error.leaves_it_open() => match at_once(pool, admission, Some(&lease)).await? {
            None => found_again(pool, admission, &lease).await?.map(Some),
            begun => begun,
        },
        begun => begun?,
    };
    match begun {
        Some(Some((step, run))) => {
            faults.reach(Site::AfterClaim);
            let at = run.admitted_at;
            take(step, run);
            Ok(Some(Admitted::Begun { run: admission.run, at }))
        }
        Some(None) => Ok(Some(Admitted::Started(admission.run))),
        None => alone(pool, admission).await,
    }
}

async fn flush(pool: &PgPool, admissions: &[Admission]) -> Result<Vec<Together>, StoreError> {
    let mut flushed: Vec<Together> = vec![None; admissions.len()];
    let going = first_of_each(admissions);
    let mut tx = begin(pool).await?;
    hold_records(&mut tx, &going).await?;
    let before = before(&mut tx, &going).await?;
    let (mut wanted, mut refused) = (vec![], vec![]);
    for ((n, admission), before) in going.into_iter().zip(before) {
        flushed[n] = Some(match (refusal(admission, &before), before.admitted) {
            (_, Some(admitted)) => admitted,
            (Some((code, detail)), None) => {
                if let Trigger::Event { event, .. } = admission.trigger {
                    refused.push(of(admission, event, code, detail.clone()));
                }
                Admitted::Refused { code, detail }
            }
            (None, None) => {
                wanted.push(admission);
                Admitted::Started(admission.run)
            }
        });
    }
    insert_refusals(&mut tx, &refused).await?;
    if !wanted.is_empty() && !insert(&mut tx, &wanted).await? {
        return undo(tx, vec![None; admissions.len()]).await;
    }
    let inline = wanted.iter().flat_map(|admission| admission.inline_steps());
    insert_inline(&mut tx, &inline.collect::<Vec<_>>()).await?;
    for admission in &wanted {
        insert_containers(&mut tx, admission.tenant, admission.run, &admission.open).await?;
    }
    tx.commit().await?;
    Ok(flushed)
}

/// Those that nothing in the same batch stands in the way of, in the order in which every batch inserts: opposite orders
/// deadlock.
fn first_of_each(admissions: &[Admission]) -> Vec<(usize, &Admission)> {
    let (mut keys, mut records) = (HashSet::new(), HashSet::new());
    let mut going: Vec<_> = admissions
        .iter()
        .enumerate()
        .filter(|(_, admission)| {
            let Admission { tenant, workflow, start_key, record, .. } = admission;
            let is_first = keys.insert((tenant, workflow, start_key));
            let is_first_of_record = !is_exclusive(admission) || records.insert((tenant, workflow, record));
            is_first && is_first_of_record
        })
        .collect();
    going.sort_by_key(|(_, one)| (one.tenant.0, one.workflow.0, &one.start_key));
    going
}

async fn hold_records(tx: &mut Tx, going: &[(usize, &Admission)]) -> Result<(), StoreError> {
    let keys: Vec<String> = going.iter().filter_map(|(_, admission)| record_lock(admission)).collect();
    if !keys.is_empty() {
        sqlx::query!(
            "SELECT pg_advisory_xact_lock(hash) FROM (
                 SELECT DISTINCT hashtextextended(key, 0) AS hash FROM UNNEST($1::text[]) AS k (key) ORDER BY hash
             ) ordered",
            &keys,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// What there is before each of them, in their order.
async fn before(tx: &mut Tx, going: &[(usize, &Admission)]) -> Result<Vec<Before>, StoreError> {
    let admissions = || going.iter().map(|(_, admission)| *admission);
    let tenants: Vec<Uuid> = admissions().map(|one| one.tenant.0).collect();
    let workflows: Vec<Uuid> = admissions().map(|one| one.workflow.0).collect();
    let start_keys: Vec<&str> = admissions().map(|one| one.start_key.as_str()).collect();
    let events: Vec<Option<Uuid>> = admissions().map(|one| one.trigger.columns().0).collect();
    // Only a record that limits what may start is looked for.
    let records: Vec<Option<&str>> =
        admissions().map(|one| one.record.as_deref().filter(|_| is_exclusive(one))).collect();
    let found = sqlx::query!(
        r#"SELECT
             (SELECT id FROM runs r
              WHERE r.tenant_id = w.tenant_id AND r.workflow_id = w.workflow_id AND start_key = w.key) AS run,
             d.refusal AS "refusal?", d.detail AS "detail?",
             w.record_id IS NOT NULL AND (EXISTS (
                 SELECT FROM runs r
                 WHERE r.tenant_id = w.tenant_id AND r.workflow_id = w.workflow_id AND r.record_id = w.record_id
             ) OR EXISTS (
                 SELECT FROM forgotten_records f
                 WHERE f.tenant_id = w.tenant_id AND f.workflow_id = w.workflow_id AND f.record_id = w.record_id
             )) AS "record_has_run!",
             w.record_id IS NOT NULL AND EXISTS (
                 SELECT FROM runs r
                 WHERE r.tenant_id = w.tenant_id AND r.workflow_id = w.workflow_id AND r.record_id = w.record_id
                   AND r.state = 'open'
             ) AS "record_has_open_run!"
         FROM UNNEST($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::text[])
             WITH ORDINALITY AS w (tenant_id, workflow_id, key, event_id, record_id, n)
         LEFT JOIN deliveries d
             ON d.tenant_id = w.tenant_id AND d.event_id = w.event_id AND d.workflow_id = w.workflow_id
         ORDER BY w.n"#,
        &tenants,
        &workflows,
        &start_keys as &[&str],
        &events as &[Option<Uuid>],
        &records as &[Option<&str>],
    )
    .fetch_all(&mut **tx)
    .await?;
    found
        .into_iter()
        .zip(admissions())
        .map(|(found, admission)| {
            let row = Row { table: "deliveries", id: &admission.start_key };
            Ok(Before {
                admitted: super::earlier(&row, found.run, found.refusal, found.detail)?,
                record_has_run: found.record_has_run,
                record_has_open_run: found.record_has_open_run,
            })
        })
        .collect()
}

/// Inserts runs with their open steps and deliveries. False if something of one is there already: then the transaction is of
/// no use any more.
async fn insert(tx: &mut Tx, admissions: &[&Admission]) -> Result<bool, StoreError> {
    let columns = Columns::new(admissions);
    let open = &columns.open;
    let inserted = sqlx::query!(
        r#"WITH want AS MATERIALIZED (SELECT * FROM UNNEST(
                 $1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::uuid[], $8::int[],
                 $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bool[], $16::int[]
             ) AS w (tenant_id, id, workflow_id, version_id, start_key, trigger, event_id, ordinal,
                 record_id, event, input, end_state, output, error, exclusive, open_steps)), run AS (
             INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, event_id, ordinal,
                 record_id, event, input, state, ended_at, output, error)
             SELECT tenant_id, id, id, workflow_id, version_id, start_key, trigger, event_id, ordinal,
                 record_id, event::json, input::json, COALESCE(end_state, 'open'),
                 CASE WHEN end_state IS NOT NULL THEN now() END, output::json, error::json
             FROM want
             ON CONFLICT DO NOTHING
             RETURNING id
         ), open_run AS (
             INSERT INTO open_runs (tenant_id, run_id, lineage, workflow_id, record_id, exclusive, open_steps)
             SELECT tenant_id, id, id, workflow_id, record_id, exclusive, open_steps FROM want WHERE end_state IS NULL
             ON CONFLICT DO NOTHING
             RETURNING run_id
         ), delivery AS (
             INSERT INTO deliveries (tenant_id, event_id, workflow_id, version_id, run_id)
             SELECT tenant_id, event_id, workflow_id, version_id, id FROM want WHERE event_id IS NOT NULL
             ON CONFLICT DO NOTHING
             RETURNING run_id
         ), opened AS (
             INSERT INTO open_steps (tenant_id, id, run_id, workflow_id, lineage, node, iteration, wait, block, vt)
             SELECT s.tenant_id, s.id, s.run_id, s.workflow_id, s.run_id, s.node, s.iteration::int[], s.wait, s.block,
                 CASE WHEN s.wait = 'child' THEN 'infinity' ELSE COALESCE(s.until, now() + s.delay) END FROM UNNEST(
                 $17::uuid[], $18::uuid[], $19::uuid[], $20::text[], $21::text[], $22::text[], $23::interval[],
                 $24::bytea[], $25::timestamptz[], $26::uuid[]
             ) AS s (tenant_id, run_id, id, node, iteration, wait, delay, block, until, workflow_id)
         )
         SELECT (SELECT count(*) FROM run) = (SELECT count(*) FROM want)
            AND (SELECT count(*) FROM open_run) = (SELECT count(*) FROM want WHERE end_state IS NULL)
            AND (SELECT count(*) FROM delivery) = (SELECT count(*) FROM want WHERE event_id IS NOT NULL) AS "whole!""#,
        &columns.tenants,
        &columns.runs,
        &columns.workflows,
        &columns.versions,
        &columns.start_keys as &[&str],
        &columns.triggers as &[&str],
        &columns.events as &[Option<Uuid>],
        &columns.ordinals as &[Option<i32>],
        &columns.records as &[Option<&str>],
        &columns.seen,
        &columns.inputs,
        &columns.end_states as &[Option<&str>],
        &columns.end_outputs as &[Option<String>],
        &columns.end_errors as &[Option<String>],
        &columns.are_exclusive,
        &columns.open_steps,
        &columns.open_tenants,
        &columns.open_runs,
        &open.ids,
        &open.nodes,
        &open.iterations,
        &open.waits,
        &open.delays,
        &open.blocks as &[Option<Vec<u8>>],
        &open.untils as &[Option<DateTime<Utc>>],
        &columns.open_workflows,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(inserted.whole)
}

/// One array a column.
#[derive(Default)]
struct Columns<'a> {
    tenants: Vec<Uuid>,
    runs: Vec<Uuid>,
    workflows: Vec<Uuid>,
    versions: Vec<Uuid>,
    start_keys: Vec<&'a str>,
    triggers: Vec<&'static str>,
    events: Vec<Option<Uuid>>,
    ordinals: Vec<Option<i32>>,
    records: Vec<Option<&'a str>>,
    seen: Vec<String>,
    inputs: Vec<String>,
    end_states: Vec<Option<&'static str>>,
    end_outputs: Vec<Option<String>>,
    end_errors: Vec<Option<String>>,
    are_exclusive: Vec<bool>,
    open_steps: Vec<i32>,
    /// Whose each of the steps in `open` is.
    open_tenants: Vec<Uuid>,
    open_runs: Vec<Uuid>,
    open_workflows: Vec<Uuid>,
    open: OpenArrays,
}

impl<'a> Columns<'a> {
    fn new(admissions: &[&'a Admission]) -> Self {
        let mut columns = Self::default();
        for admission in admissions {
            let end = admission.end.as_ref();
            let (event, ordinal) = admission.trigger.columns();
            columns.tenants.push(admission.tenant.0);
            columns.runs.push(admission.run.0);
            columns.workflows.push(admission.workflow.0);
            columns.versions.push(admission.version.0);
            columns.start_keys.push(&admission.start_key);
            columns.triggers.push(admission.trigger.name());
            columns.events.push(event);
            columns.ordinals.push(ordinal);
            columns.records.push(admission.record.as_deref());
            columns.seen.push(admission.event.to_string());
            columns.inputs.push(admission.input.to_string());
            columns.end_states.push(end.map(|end| end.state.name()));
            columns.end_outputs.push(end.and_then(|end| json_text(end.output.as_ref())));
            columns.end_errors.push(end.and_then(|end| json_text(end.error.as_ref())));
            columns.are_exclusive.push(is_exclusive(admission));
            columns.open_steps.push(i32::try_from(admission.open.len()).unwrap_or(i32::MAX));
            columns.open.extend(admission.run, &admission.open);
            columns.open_tenants.resize(columns.open.ids.len(), admission.tenant.0);
            columns.open_runs.resize(columns.open.ids.len(), admission.run.0);
            columns.open_workflows.resize(columns.open.ids.len(), admission.workflow.0);
        }
        columns
    }
}
