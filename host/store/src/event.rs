//! The outbox: typed facts that may start runs, each published once all that it starts has been admitted or refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EventId, RunId, TenantId, WorkflowId, WorkflowVersionId};
use serde_json::Value;
use uuid::Uuid;

use crate::value;
use crate::{Store, StoreError};

/// An event to record.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Its id; recording it again changes nothing.
    pub id: EventId,
    /// Its type.
    pub event_type: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// What it says.
    pub data: Value,
}

/// An event that a publisher holds.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldEvent {
    /// Whose.
    pub tenant: TenantId,
    /// Its id.
    pub id: EventId,
    /// Its type.
    pub event_type: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// What it says, or why that cannot be read.
    pub data: Result<Value, String>,
    /// When it was recorded.
    pub recorded_at: DateTime<Utc>,
    /// What proves that this publisher holds it.
    pub hold: Uuid,
}

/// An active workflow that an event type may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its name.
    pub workflow_name: String,
    /// Its active version.
    pub version: WorkflowVersionId,
    /// Which of the version's triggers.
    pub ordinal: u32,
    /// The workflow is paused.
    pub paused: bool,
}

/// What came of a wish to record an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It is new.
    New,
    /// It was known, and stays as it is.
    Known,
    /// An event of its id was known that says something else, and that one stays: what was not taken.
    Differs(Vec<&'static str>),
}

/// An event, and what it came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventView {
    /// Its type.
    pub event_type: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// When it was recorded.
    pub recorded_at: DateTime<Utc>,
    /// When every workflow had started a run for it or refused to.
    pub published_at: Option<DateTime<Utc>>,
    /// By workflow; empty until it is published, and where no workflow has a trigger for it.
    pub outcomes: Vec<Outcome>,
}

/// What an event came to for one workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The workflow's name.
    pub workflow: String,
    /// The run that it started.
    pub run: Option<RunId>,
    /// Why it started none: code and detail.
    pub refusal: Option<(String, String)>,
    /// When that was decided.
    pub at: DateTime<Utc>,
}

impl Store {
    /// Records events, and says of each what came of it. One whose id is known already is left as it is.
    pub async fn record_events(
        &self,
        tenant: TenantId,
        events: &[NewEvent],
    ) -> Result<Vec<Recorded>, StoreError> {
        let ids: Vec<Uuid> = events.iter().map(|event| event.id.0).collect();
        let types: Vec<String> = events.iter().map(|event| event.event_type.clone()).collect();
        let records: Vec<Option<String>> = events.iter().map(|event| event.record.clone()).collect();
        let data: Vec<String> = events.iter().map(|event| event.data.to_string()).collect();
        let inserted = sqlx::query_scalar!(
            "INSERT INTO events (tenant_id, id, type, record_id, data)
             SELECT $1, e.id, e.type, e.record_id, e.data::json
             FROM UNNEST($2::uuid[], $3::text[], $4::text[], $5::text[]) AS e (id, type, record_id, data)
             ON CONFLICT (tenant_id, id) DO NOTHING
             RETURNING id",
            tenant.0,
            &ids,
            &types,
            &records as &[Option<String>],
            &data,
        )
        .fetch_all(self.pool())
        .await?;
        self.wake_outbox();
        let mut new: BTreeSet<Uuid> = inserted.into_iter().collect();
        // The first of those that share an id within the batch is the one that was taken.
        let is_new: Vec<bool> = ids.iter().map(|id| new.remove(id)).collect();
        if is_new.iter().all(|is_new| *is_new) {
            return Ok(vec![Recorded::New; events.len()]);
        }
        let known = self.known(tenant, &ids).await?;
        let recorded = events.iter().zip(is_new).map(|(event, is_new)| match known.get(&event.id.0) {
            Some(known) if !is_new => known.beside(event),
            _ => Recorded::New,
        });
        Ok(recorded.collect())
    }

    async fn known(&self, tenant: TenantId, ids: &[Uuid]) -> Result<BTreeMap<Uuid, Known>, StoreError> {
        let known = sqlx::query_as!(
            Known,
            r#"SELECT id, type AS event_type, record_id, data::text AS "data!" FROM events
             WHERE tenant_id = $1 AND id = ANY ($2)"#,
            tenant.0,
            ids,
        )
        .fetch_all(self.pool())
        .await?;
        Ok(known.into_iter().map(|known| (known.id, known)).collect())
    }

    /// Takes pending events for a time, the oldest of each tenant first, and of no tenant more than its share of `limit`.
    /// Tenants whose ids are behind `after` come first, so that with the last of one batch as `after` of the next they
    /// take turns. No lock is held meanwhile; a publisher that dies lets its hold run out.
    pub async fn hold_events(
        &self,
        limit: u32,
        time: Duration,
        after: Option<TenantId>,
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let rows = sqlx::query!(
            // A loose index scan: from each tenant's first pending event to the next tenant's.
            r#"WITH RECURSIVE tenant AS (
                 (SELECT tenant_id FROM events WHERE pending ORDER BY tenant_id, recorded_at LIMIT 1)
                 UNION ALL
                 SELECT next.tenant_id FROM tenant CROSS JOIN LATERAL (
                     SELECT tenant_id FROM events WHERE pending AND tenant_id > tenant.tenant_id
                     ORDER BY tenant_id, recorded_at LIMIT 1
                 ) next
             ), turn AS MATERIALIZED (
                 SELECT tenant_id, GREATEST(1, $1 / count(*) OVER ()) AS share FROM tenant
                 ORDER BY tenant_id <= $3, tenant_id
                 LIMIT $1
             ), due AS (
                 SELECT of_tenant.* FROM turn CROSS JOIN LATERAL (
                     SELECT tenant_id, id FROM events
                     WHERE tenant_id = turn.tenant_id AND pending AND (hold_until IS NULL OR hold_until <= now())
                     ORDER BY recorded_at
                     LIMIT turn.share
                     FOR UPDATE SKIP LOCKED
                 ) of_tenant
             ), hold AS MATERIALIZED (SELECT gen_random_uuid() AS id)
             UPDATE events e SET hold_id = hold.id, hold_until = now() + $2
             FROM due CROSS JOIN hold
             WHERE e.tenant_id = due.tenant_id AND e.id = due.id
             RETURNING e.tenant_id, e.id, e.type AS event_type, e.record_id, e.data::text AS "data!", e.recorded_at,
                 e.hold_id AS "hold_id!""#,
            i64::from(limit),
            value::interval(time),
            after.map_or(Uuid::nil(), |after| after.0),
        )
        .fetch_all(&self.inner.claims)
        .await?;
        let mut events: Vec<HeldEvent> = rows
            .into_iter()
            .map(|event| HeldEvent {
                tenant: event.tenant_id.into(),
                id: event.id.into(),
                event_type: event.event_type,
                record: event.record_id,
                // What the database takes for JSON is not all that can be read here, and one event spoils no other.
                data: serde_json::from_str(&event.data).map_err(|error| error.to_string()),
                recorded_at: event.recorded_at,
                hold: event.hold_id,
            })
            .collect();
        events.sort_by_key(|event| event.recorded_at);
        Ok(events)
    }

    /// Extends a hold from now, for those of the events that are still under it.
    pub async fn extend_hold(
        &self,
        hold: Uuid,
        ids: &[(TenantId, EventId)],
        time: Duration,
    ) -> Result<u64, StoreError> {
        let (tenants, events): (Vec<Uuid>, Vec<Uuid>) =
            ids.iter().map(|(tenant, event)| (tenant.0, event.0)).unzip();
        let extended = sqlx::query!(
            "UPDATE events e SET hold_until = now() + $4
             FROM UNNEST($2::uuid[], $3::uuid[]) AS p (tenant_id, id)
             WHERE e.tenant_id = p.tenant_id AND e.id = p.id AND e.hold_id = $1 AND e.pending",
            hold,
            &tenants,
            &events,
            value::interval(time),
        )
        .execute(&self.inner.claims)
        .await?;
        Ok(extended.rows_affected())
    }

    /// Marks events published that are still under this hold, and says how many were.
    pub async fn publish_events(&self, hold: Uuid, ids: &[(TenantId, EventId)]) -> Result<u64, StoreError> {
        let tenants: Vec<Uuid> = ids.iter().map(|(tenant, _)| tenant.0).collect();
        let events: Vec<Uuid> = ids.iter().map(|(_, event)| event.0).collect();
        let published = sqlx::query!(
            "UPDATE events e SET pending = false, published_at = now(), hold_id = NULL, hold_until = NULL
             FROM UNNEST($2::uuid[], $3::uuid[]) AS p (tenant_id, id)
             WHERE e.tenant_id = p.tenant_id AND e.id = p.id AND e.hold_id = $1 AND e.pending",
            hold,
            &tenants,
            &events,
        )
        .execute(&self.inner.claims)
        .await?;
        Ok(published.rows_affected())
    }

    /// The workflows that events of a type may start, in a stable order.
    pub async fn bindings(&self, tenant: TenantId, event_type: &str) -> Result<Vec<Binding>, StoreError> {
        let bindings = sqlx::query!(
            "SELECT b.workflow_id, w.name, b.version_id, b.ordinal, w.paused FROM bindings b
             JOIN workflows w ON w.tenant_id = b.tenant_id AND w.id = b.workflow_id
             WHERE b.tenant_id = $1 AND b.event_type = $2
             ORDER BY w.name, b.ordinal",
            tenant.0,
            event_type,
        )
        .fetch_all(self.pool())
        .await?;
        Ok(bindings
            .into_iter()
            .map(|binding| Binding {
                workflow: binding.workflow_id.into(),
                workflow_name: binding.name,
                version: binding.version_id.into(),
                ordinal: binding.ordinal.cast_unsigned(),
                paused: binding.paused,
            })
            .collect())
    }

    /// An event and what it came to; none if there is no such event.
    pub async fn event(&self, tenant: TenantId, event: EventId) -> Result<Option<EventView>, StoreError> {
        let known = sqlx::query!(
            "SELECT type AS event_type, record_id, recorded_at, published_at FROM events
             WHERE tenant_id = $1 AND id = $2",
            tenant.0,
            event.0,
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(known) = known else { return Ok(None) };
        let deliveries = sqlx::query!(
            "SELECT w.name, d.run_id, d.refusal, d.detail, d.at FROM deliveries d
             JOIN workflows w ON w.tenant_id = d.tenant_id AND w.id = d.workflow_id
             WHERE d.tenant_id = $1 AND d.event_id = $2
             ORDER BY w.name",
            tenant.0,
            event.0,
        )
        .fetch_all(self.pool())
        .await?;
        let outcomes = deliveries.into_iter().map(|delivery| Outcome {
            workflow: delivery.name,
            run: delivery.run_id.map(RunId),
            refusal: delivery.refusal.map(|code| (code, delivery.detail)),
            at: delivery.at,
        });
        Ok(Some(EventView {
            event_type: known.event_type,
            record: known.record_id,
            recorded_at: known.recorded_at,
            published_at: known.published_at,
            outcomes: outcomes.collect(),
        }))
    }
}

/// What is compared of an event that was recorded before.
struct Known {
    id: Uuid,
    event_type: String,
    record_id: Option<String>,
    data: String,
}

impl Known {
    fn beside(&self, event: &NewEvent) -> Recorded {
        let same_data = serde_json::from_str::<Value>(&self.data).is_ok_and(|data| data == event.data);
        let parts = [
            ("type", self.event_type == event.event_type),
            ("record", self.record_id == event.record),
            ("data", same_data),
        ];
        let differs: Vec<&str> = parts.into_iter().filter(|(_, same)| !same).map(|(part, _)| part).collect();
        if differs.is_empty() { Recorded::Known } else { Recorded::Differs(differs) }
    }
}
