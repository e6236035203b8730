//! Events that runs wait for.

use std::collections::BTreeSet;

use counterfoil_domain::id::{RunId, TenantId};
use uuid::Uuid;

use super::SIGNALS_PER_RUN_MAX;
use super::begin::{hold_type, tell_unheard};
use super::signal::wake_waiting;
use crate::event::HeldEvent;
use crate::transaction::begin;
use crate::{Store, StoreError};

impl Store {
    /// Hands events to the runs that wait for them. Handing one over again changes nothing.
    pub async fn hand_to_runs(&self, events: &[HeldEvent]) -> Result<(), StoreError> {
        let tenants: Vec<Uuid> = events.iter().map(|event| event.tenant.0).collect();
        let types: Vec<&str> = events.iter().map(|event| event.event_type.as_str()).collect();
        let listened = sqlx::query!(
            r#"SELECT DISTINCT l.tenant_id AS "tenant_id!", l.event_type AS "event_type!"
             FROM UNNEST($1::uuid[], $2::text[]) AS e (tenant_id, event_type)
             JOIN listened_types l USING (tenant_id, event_type)"#,
            &tenants,
            &types as &[&str],
        )
        .fetch_all(self.pool())
        .await?;
        // In one order everywhere, so that two batches do not wait for each other crosswise.
        let listened: BTreeSet<(Uuid, String)> =
            listened.into_iter().map(|row| (row.tenant_id, row.event_type)).collect();
        for (tenant, event_type) in listened {
            let of_type: Vec<Uuid> = events
                .iter()
                .filter(|event| event.tenant.0 == tenant && event.event_type == event_type)
                .map(|event| event.id.0)
                .collect();
            self.hand_type(tenant.into(), &event_type, &of_type).await?;
        }
        Ok(())
    }

    async fn hand_type(&self, tenant: TenantId, event_type: &str, events: &[Uuid]) -> Result<(), StoreError> {
        let mut tx = begin(self.pool()).await?;
        hold_type(&mut tx, tenant, event_type, false).await?;
        let runs = sqlx::query_scalar!(
            "SELECT run_id FROM open_runs r
             WHERE r.tenant_id = $1 AND EXISTS (
                 SELECT FROM waits w JOIN events e ON e.tenant_id = w.tenant_id AND e.id = ANY ($3)
                 WHERE w.tenant_id = r.tenant_id AND w.run_id = r.run_id AND w.kind = 'event' AND w.name = $2
                   AND (w.record_id IS NULL OR w.record_id = e.record_id))
             ORDER BY run_id FOR UPDATE",
            tenant.0,
            event_type,
            events,
        )
        .fetch_all(&mut *tx)
        .await?;
        let unheard = sqlx::query!(
            r#"WITH wanted AS (
                 SELECT DISTINCT w.run_id, e.id, e.recorded_at
                 FROM waits w JOIN events e ON e.tenant_id = w.tenant_id AND e.id = ANY ($3)
                 WHERE w.tenant_id = $1 AND w.kind = 'event' AND w.name = $2 AND w.run_id = ANY ($4)
                   AND (w.record_id IS NULL OR w.record_id = e.record_id)
                   AND NOT EXISTS (
                       SELECT FROM signals s WHERE s.tenant_id = $1 AND s.run_id = w.run_id AND s.id = e.id)
             ), placed AS (
                 SELECT run_id, id, row_number() OVER (PARTITION BY run_id ORDER BY recorded_at, id) + (
                     SELECT count(*) FROM signals s
                     WHERE s.tenant_id = $1 AND s.run_id = wanted.run_id AND s.taken_by IS NULL) AS place
                 FROM wanted
             ), kept AS (
                 INSERT INTO signals (tenant_id, run_id, id, kind, name, record_id, data, sent_by, received_at)
                 SELECT e.tenant_id, placed.run_id, e.id, 'event', e.type, e.record_id, e.data, 'event', e.recorded_at
                 FROM placed JOIN events e ON e.tenant_id = $1 AND e.id = placed.id
                 WHERE placed.place <= $5
                 ON CONFLICT DO NOTHING
             )
             SELECT run_id, count(*) AS "events!" FROM placed WHERE place > $5 GROUP BY run_id ORDER BY run_id"#,
            tenant.0,
            event_type,
            events,
            &runs,
            SIGNALS_PER_RUN_MAX,
        )
        .fetch_all(&mut *tx)
        .await?;
        for run in unheard {
            tell_unheard(&mut tx, tenant, run.run_id.into(), event_type, run.events).await?;
        }
        for run in &runs {
            wake_waiting(&mut tx, tenant, RunId(*run), "event", event_type).await?;
        }
        tx.commit().await?;
        if !runs.is_empty() {
            self.wake_tenant(tenant);
        }
        Ok(())
    }
}
