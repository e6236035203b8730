//! The end of an execution that does not settle its step.

use std::time::Duration;

use counterfoil_domain::timeline::Ended;
use serde_json::Value;
use sqlx::PgConnection;

use super::{Fence, Wait};
use crate::StoreError;
use crate::value::{self, Exact};

/// How a step is left.
#[derive(Debug)]
pub(crate) struct Leave<'a> {
    /// What it waits for now; what it waited for before, if none is given.
    pub(crate) wait: Option<Wait>,
    /// When it is due again; never by itself, if none is given.
    pub(crate) delay: Option<Duration>,
    /// The next execution is another attempt.
    pub(crate) next_attempt: bool,
    /// What the execution came to.
    pub(crate) ended: Ended,
    pub(crate) error: Option<&'a Value>,
    pub(crate) logs: Option<&'a Value>,
}

impl<'a> Leave<'a> {
    pub(crate) const fn hand_back(delay: Duration, why: Option<&'a Value>, lost: bool) -> Self {
        Self {
            wait: None,
            delay: Some(delay),
            next_attempt: false,
            ended: if lost { Ended::Lost } else { Ended::HandedBack },
            error: why,
            logs: None,
        }
    }
}

/// Takes the lease off the step, and keeps what its execution came to. False if it was not this execution's any more.
///
/// Losses are counted in a row, so that every end but a handing back starts the count anew.
pub(crate) async fn leave(
    connection: &mut PgConnection,
    fence: &Fence,
    leave: &Leave<'_>,
) -> Result<bool, StoreError> {
    let left = sqlx::query!(
        "WITH held AS (
             SELECT tenant_id, id, run_id, lease_id, attempt, host_id, started_at FROM open_steps
             WHERE tenant_id = $1 AND id = $2 AND lease_id = $3
             FOR UPDATE
         ), left_by AS (
             INSERT INTO step_attempts
                 (tenant_id, run_id, step_id, lease_id, attempt, host_id, started_at, ended, error, logs)
             SELECT tenant_id, run_id, id, lease_id, attempt, host_id, started_at, $4, $5, $6 FROM held
         )
         UPDATE open_steps s
         SET lease_id = NULL, host_id = NULL,
             wait = COALESCE($7, s.wait), vt = COALESCE(now() + $8::interval, 'infinity'),
             attempt = s.attempt + $9::bool::int,
             losses = CASE $4 WHEN 'handed_back' THEN s.losses WHEN 'lost' THEN s.losses + 1 ELSE 0 END,
             error = COALESCE($5, s.error)
         FROM held WHERE s.tenant_id = $1 AND s.id = $2",
        fence.tenant.0,
        fence.step.0,
        fence.lease.0,
        leave.ended.name(),
        leave.error.map(Exact) as Option<Exact<'_>>,
        leave.logs.map(Exact) as Option<Exact<'_>>,
        leave.wait.map(Wait::name),
        leave.delay.map(value::interval),
        leave.next_attempt,
    )
    .execute(&mut *connection)
    .await?;
    Ok(left.rows_affected() == 1)
}
