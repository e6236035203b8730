//! Room within a connection's rate: a step takes it, or takes a turn.

use std::time::Duration;

use counterfoil_domain::id::TenantId;

use crate::step::Fence;
use crate::{Store, StoreError};

/// Whether a call may be made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It may, and it counts as made.
    Free,
    /// Not before its turn, which is kept for the step until then.
    Full {
        /// Time until the turn.
        wait: Duration,
    },
}

impl Store {
    /// Takes room for one call of a step through a connection, by the database's clock.
    ///
    /// Calls are spread by the generic cell rate algorithm: each is due `every` after the one before, and may be `ahead` of
    /// that. A step that finds no room gets a turn behind all others that wait, so that it comes back once and at the right
    /// time. A turn that is missed by more than one call is lost; whatever comes late, `tat` alone decides how much is sent.
    ///
    /// Source of the algorithm: ATM Forum, Traffic Management Specification 4.1, section 4.4.2 (virtual scheduling).
    pub async fn take_room(
        &self,
        tenant: TenantId,
        connection: &str,
        fence: &Fence,
    ) -> Result<Room, StoreError> {
        let room = sqlx::query!(
            // The clock is read once the row is locked: whoever waited for the lock asks about the time after it.
            r#"WITH rate AS MATERIALIZED (
                 SELECT r.every, r.ahead, r.tat, r.tail, s.turn_at
                 FROM connection_rates r
                 LEFT JOIN open_steps s ON s.tenant_id = $1 AND s.id = $3 AND s.lease_id = $4
                 WHERE r.tenant_id = $1 AND r.connection = $2
                 FOR UPDATE OF r
             ), asked AS MATERIALIZED (
                 SELECT *, clock_timestamp() AS now FROM rate
             ), judged AS (
                 SELECT *, greatest(tat, tail, now) AS place,
                     -- Woken early; a turn that lies behind the queue's end is of a rate that was declared before.
                     coalesce(turn_at > now AND turn_at + ahead < tail, false) AS is_early,
                     -- It may go, or misses by less than a call because the one before it was late.
                     coalesce(turn_at <= now AND (tat - ahead <= now
                         OR (turn_at > now - every AND tat - ahead <= now + every)), false) AS is_its_turn
                 FROM asked
             ), decided AS (
                 SELECT *, NOT (is_early OR is_its_turn) AS takes_place,
                     CASE WHEN is_early THEN turn_at WHEN is_its_turn THEN tat - ahead ELSE place - ahead END AS turn
                 FROM judged
             ), counted AS (
                 UPDATE connection_rates r
                 SET tat = CASE WHEN turn <= now THEN greatest(d.tat, now) + d.every ELSE d.tat END,
                     tail = CASE WHEN takes_place THEN place + d.every ELSE d.tail END
                 FROM decided d WHERE r.tenant_id = $1 AND r.connection = $2
             ), kept AS (
                 UPDATE open_steps s SET turn_at = CASE WHEN turn > now THEN turn END
                 FROM decided
                 WHERE s.tenant_id = $1 AND s.id = $3 AND s.lease_id = $4
                   AND s.turn_at IS DISTINCT FROM CASE WHEN turn > now THEN turn END
             )
             SELECT EXTRACT(EPOCH FROM turn - now)::float8 AS "wait!" FROM decided"#,
            tenant.0,
            connection,
            fence.step.0,
            fence.lease.0,
        )
        .fetch_optional(&self.inner.claims)
        .await?;
        // Without a row the rate was taken away a moment ago.
        let wait = room.map_or(0.0, |room| room.wait);
        if wait <= 0.0 {
            return Ok(Room::Free);
        }
        Ok(Room::Full { wait: Duration::try_from_secs_f64(wait).unwrap_or_default() })
    }
}
