//! The first step of a run, leased with its admission to the host that admits it: where there is room for it, nothing has
//! to be claimed and nothing read again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_domain::fair_share::Queue;
use counterfoil_domain::id::{Digest, HostId, step_id};
use sqlx::PgPool;

use super::{Admission, Lease, is_one_statement};
use crate::run::RunContext;
use crate::settle::{Kept, first_ready};
use crate::step::Claimed;
use crate::value::interval;
use crate::{Store, StoreError, tenant};

/// A place for the first step of a run.
pub struct Keep {
    /// Who has it.
    pub host: HostId,
    /// How long the step is leased for.
    pub lease: Duration,
    /// Begins the step, once it is leased and durable. Dropped where there is no such step.
    pub take: Box<dyn FnOnce(Claimed, RunContext) + Send>,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Says whether a host takes on a step of this line, with this block, as soon as it is admitted.
pub type Keeper = dyn Fn(Queue, Option<Digest>) -> Option<Keep> + Send + Sync;

/// Who is asked; nobody at first.
#[derive(Default)]
pub(crate) struct Keeping(Mutex<Option<Arc<Keeper>>>);

impl Store {
    /// Has `keeper` asked from now on, before a run is admitted through this store.
    pub fn keep_first_steps(&self, keeper: Arc<Keeper>) {
        *self.inner.keeping.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    }

    /// A place for the first step of a run that is admitted in one statement.
    pub(super) fn place_for(&self, admission: &Admission) -> Option<Keep> {
        if !is_one_statement(admission) {
            return None;
        }
        let (_, first) = first_ready(&admission.open)?;
        let keeper = self.inner.keeping.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        keeper(Queue { tenant: admission.tenant, workflow: admission.workflow }, first.block)
    }
}

/// The first step of a run whose admission was committed and not answered, if it is still under its lease, which is made to last
/// anew.
pub(super) async fn found_again(
    pool: &PgPool,
    admission: &Admission,
    lease: &Lease,
) -> Result<Option<(Claimed, RunContext)>, StoreError> {
    let Some((_, first)) = first_ready(&admission.open) else { return Ok(None) };
    let found = sqlx::query!(
        "UPDATE open_steps s SET vt = now() + $4 FROM tenants t
         WHERE s.tenant_id = $1 AND s.id = $2 AND s.lease_id = $3 AND s.vt > now() AND t.id = $1
         RETURNING s.lease_id, s.started_at, s.vt, s.workflow_id, t.memory_bytes_max, t.cpu_ms_max, t.wall_ms_max",
        admission.tenant.0,
        step_id(admission.run, &first.node, &first.iteration).0,
        lease.id.0,
        interval(lease.time),
    )
    .fetch_optional(pool)
    .await?;
    let Some(found) = found else { return Ok(None) };
    let kept = Kept::of(found.lease_id, found.started_at, Some(found.vt), Some(found.workflow_id));
    let limits = [found.memory_bytes_max, found.cpu_ms_max, found.wall_ms_max];
    let limits = tenant::limits(admission.tenant, limits)?;
    Ok(kept.map(|kept| admission.begin(&kept, first, limits)))
}
