//! Events, answers to requests and audit rows that are past their time: they go a page at a time, the oldest first.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Retention;
use crate::error::Row;
use crate::transaction::{Tx, begin, undo};
use crate::value::interval;
use crate::{Store, StoreError};

/// What came of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Of which table.
    pub what: Prunable,
    /// Rows that were looked at.
    pub looked_at: u64,
    /// Those of them that are gone now.
    pub gone: u64,
}

/// What goes by its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prunable {
    /// Events, and what came of each for each workflow.
    Events,
    /// Answers that are kept for the repeats of requests.
    Requests,
    /// What operators did.
    Audit,
}

impl Prunable {
    const ALL: [Self; 3] = [Self::Events, Self::Requests, Self::Audit];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Requests => "requests",
            Self::Audit => "audit",
        }
    }

    fn keep(self, retention: &Retention) -> Option<Duration> {
        match self {
            Self::Events => retention.keep.events,
            Self::Requests => retention.keep.requests,
            Self::Audit => retention.keep.audit,
        }
    }
}

/// Where a round stands: behind the row of this time and id.
#[derive(Clone, Copy)]
struct Place {
    at: DateTime<Utc>,
    id: Uuid,
}

/// A page that was looked at.
struct Page {
    looked_at: i64,
    gone: i64,
    last: Option<Place>,
}

impl Store {
    /// Sees to it that what is not kept for ever has its rounds, and nothing else.
    pub(super) async fn set_out_rounds(&self, retention: &Retention) -> Result<(), StoreError> {
        let due: Vec<&str> = Prunable::ALL
            .into_iter()
            .filter(|what| what.keep(retention).is_some())
            .map(Prunable::name)
            .collect();
        sqlx::query!(
            "WITH none AS (DELETE FROM pruning_rounds WHERE what <> ALL ($1))
             INSERT INTO pruning_rounds (what)
             SELECT what FROM UNNEST($1::text[]) AS w (what)
             WHERE NOT EXISTS (SELECT FROM pruning_rounds r WHERE r.what = w.what)
             ON CONFLICT DO NOTHING",
            &due as &[&str],
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Goes one page further on the round that is due first, and takes away what is past its time there. None if no round is
    /// due, or others are at all of them.
    pub async fn prune(&self, retention: &Retention) -> Result<Option<Pruned>, StoreError> {
        let mut tx = begin(self.pool()).await?;
        // What is lost of it in a crash is done again.
        sqlx::query!("SELECT set_config('synchronous_commit', 'off', true)").fetch_one(&mut *tx).await?;
        let Some((what, after)) = take_round(&mut tx).await? else { return undo(tx, None).await };
        // Another host's configuration may have set out what this one keeps.
        let keep = what.keep(retention).unwrap_or(Duration::MAX);
        let limit = i64::from(retention.prune_page);
        let page = match what {
            Prunable::Events => prune_events(&mut tx, keep, after, limit).await?,
            Prunable::Requests => prune_requests(&mut tx, keep, limit).await?,
            Prunable::Audit => prune_audit(&mut tx, keep, after, limit).await?,
        };
        sqlx::query!(
            "UPDATE pruning_rounds SET
                 after_at = CASE WHEN $2 THEN NULL ELSE $3::timestamptz END,
                 after_id = CASE WHEN $2 THEN NULL ELSE $4::uuid END,
                 clean_at = CASE WHEN $2 THEN begun_at ELSE clean_at END,
                 -- A round that was long, since much stays, is made as rarely.
                 due_at = CASE WHEN $2 THEN now() + GREATEST($5::interval, 10 * (now() - begun_at)) ELSE now() END
             WHERE what = $1",
            what.name(),
            page.looked_at < limit,
            page.last.map(|last| last.at),
            page.last.map(|last| last.id),
            interval(retention.walk_every),
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        let row = Row { table: "pruning_rounds", id: what.name() };
        let looked_at = row.read("looked_at", u64::try_from(page.looked_at))?;
        Ok(Some(Pruned { what, looked_at, gone: row.read("gone", u64::try_from(page.gone))? }))
    }
}

/// Takes the round that is due first, for as long as the transaction lasts.
async fn take_round(tx: &mut Tx) -> Result<Option<(Prunable, Place)>, StoreError> {
    let found = sqlx::query!(
        "UPDATE pruning_rounds r SET begun_at = CASE WHEN r.after_at IS NULL THEN now() ELSE r.begun_at END
         FROM (
             SELECT what FROM pruning_rounds WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
         ) due
         WHERE r.what = due.what
         RETURNING r.what, r.after_at, r.after_id"
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(found) = found else { return Ok(None) };
    let row = Row { table: "pruning_rounds", id: &found.what };
    let what = row.need("what", Prunable::ALL.into_iter().find(|what| what.name() == found.what))?;
    let at = found.after_at.unwrap_or(DateTime::UNIX_EPOCH);
    Ok(Some((what, Place { at, id: found.after_id.unwrap_or(Uuid::nil()) })))
}

/// Takes events away, with what came of them.
async fn prune_events(tx: &mut Tx, keep: Duration, after: Place, limit: i64) -> Result<Page, StoreError> {
    let found = sqlx::query!(
        // An event stays while a run is there that it started or that emitted it, and, where some workflow waits for its type,
        // while a run is open that may have to look back at it: none that was admitted later does.
        r#"WITH page AS MATERIALIZED (
             SELECT tenant_id, id, recorded_at FROM events
             WHERE NOT pending AND recorded_at < now() - $1::interval AND (recorded_at, id) > ($2, $3)
             ORDER BY recorded_at, id LIMIT $4
         ), past AS (
             SELECT e.tenant_id, e.id FROM page JOIN events e ON e.tenant_id = page.tenant_id AND e.id = page.id
             WHERE NOT EXISTS (
                   SELECT FROM deliveries d JOIN runs r ON r.tenant_id = d.tenant_id AND r.id = d.run_id
                   WHERE d.tenant_id = e.tenant_id AND d.event_id = e.id)
               AND NOT EXISTS (
                   SELECT FROM deliveries d
                   JOIN runs r ON r.tenant_id = d.tenant_id AND r.lineage = d.run_id AND r.lineage <> r.id
                   WHERE d.tenant_id = e.tenant_id AND d.event_id = e.id)
               AND NOT EXISTS (SELECT FROM receipts x WHERE x.tenant_id = e.tenant_id AND x.id = e.id)
               AND NOT (
                   EXISTS (SELECT FROM listened_types l WHERE l.tenant_id = e.tenant_id AND l.event_type = e.type)
                   AND e.recorded_at >= COALESCE((
                       -- Ids are made by the clocks of hosts, which agree to within a day.
                       SELECT r.admitted_at - interval '1 day' FROM open_runs o
                       JOIN runs r ON r.tenant_id = o.tenant_id AND r.id = o.run_id
                       WHERE o.tenant_id = e.tenant_id ORDER BY o.run_id LIMIT 1), 'infinity'))
             FOR UPDATE OF e SKIP LOCKED
         ), told AS (
             DELETE FROM deliveries d USING past WHERE d.tenant_id = past.tenant_id AND d.event_id = past.id
         ), gone AS (
             DELETE FROM events e USING past WHERE e.tenant_id = past.tenant_id AND e.id = past.id
             RETURNING e.id
         ), last AS (SELECT recorded_at, id FROM page ORDER BY recorded_at DESC, id DESC LIMIT 1)
         SELECT (SELECT count(*) FROM page) AS "looked_at!", (SELECT count(*) FROM gone) AS "gone!",
             (SELECT recorded_at FROM last) AS last_at, (SELECT id FROM last) AS last_id"#,
        interval(keep),
        after.at,
        after.id,
        limit,
    )
    .fetch_one(&mut **tx)
    .await?;
    let last = found.last_at.zip(found.last_id).map(|(at, id)| Place { at, id });
    Ok(Page { looked_at: found.looked_at, gone: found.gone, last })
}

/// Takes kept answers away, and what was begun under a key and never answered.
async fn prune_requests(tx: &mut Tx, keep: Duration, limit: i64) -> Result<Page, StoreError> {
    let gone = sqlx::query!(
        // By their place, which cannot change while they are locked: a plan by their keys may read all of them.
        "DELETE FROM idempotent_requests WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM idempotent_requests WHERE begun_at < now() - $1::interval
             ORDER BY begun_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        interval(keep),
        limit,
    )
    .execute(&mut **tx)
    .await?;
    let gone = gone.rows_affected().cast_signed();
    // All that was looked at is gone, so that the next page begins where this one did.
    Ok(Page { looked_at: gone, gone, last: None })
}

/// Takes audit rows away, but for those of runs that are there.
async fn prune_audit(tx: &mut Tx, keep: Duration, after: Place, limit: i64) -> Result<Page, StoreError> {
    let found = sqlx::query!(
        // Nobody changes them, so that their place is theirs.
        r#"WITH page AS MATERIALIZED (
             SELECT ctid AS place, tenant_id, id, at, run_id FROM audit
             WHERE at < now() - $1::interval AND (at, id) > ($2, $3)
             ORDER BY at, id LIMIT $4
         ), gone AS (
             DELETE FROM audit WHERE ctid = ANY (ARRAY(
                 SELECT place FROM page
                 WHERE (SELECT r.id FROM runs r WHERE r.tenant_id = page.tenant_id AND r.id = page.run_id) IS NULL))
             RETURNING id
         ), last AS (SELECT at, id FROM page ORDER BY at DESC, id DESC LIMIT 1)
         SELECT (SELECT count(*) FROM page) AS "looked_at!", (SELECT count(*) FROM gone) AS "gone!",
             (SELECT at FROM last) AS last_at, (SELECT id FROM last) AS last_id"#,
        interval(keep),
        after.at,
        after.id,
        limit,
    )
    .fetch_one(&mut **tx)
    .await?;
    let last = found.last_at.zip(found.last_id).map(|(at, id)| Place { at, id });
    Ok(Page { looked_at: found.looked_at, gone: found.gone, last })
}
