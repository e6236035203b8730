//! Turns to upload: few at once, since each holds its whole component in memory, and one a tenant, so that nobody waits
//! behind all the uploads of somebody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::TenantId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::auth::{Author, Caller};
use crate::problem::Problem;
use crate::state::App;

/// Uploads at once, of all tenants.
const UPLOADS_MAX: usize = 4;

/// Who waits for a turn, in the order in which they came.
pub(crate) struct Uploads {
    host: Arc<Semaphore>,
    tenants: Mutex<HashMap<TenantId, Weak<AsyncMutex<()>>>>,
}

/// One of the uploads that are worked on at once.
#[derive(Debug)]
struct Turn {
    _of_host: OwnedSemaphorePermit,
    _of_tenant: OwnedMutexGuard<()>,
}

impl Uploads {
    pub(crate) fn new() -> Self {
        Self { host: Arc::new(Semaphore::new(UPLOADS_MAX)), tenants: Mutex::default() }
    }

    async fn turn(&self, tenant: TenantId) -> Result<Turn, Problem> {
        // The tenant's first: whoever waits for that takes no place from others.
        let of_tenant = self.of(tenant).lock_owned().await;
        let closed = |_| Problem::new(Code::Unavailable, "the host takes no uploads now");
        let of_host = Arc::clone(&self.host).acquire_owned().await.map_err(closed)?;
        Ok(Turn { _of_host: of_host, _of_tenant: of_tenant })
    }

    fn of(&self, tenant: TenantId) -> Arc<AsyncMutex<()>> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return turn;
        }
        tenants.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        tenants.insert(tenant, Arc::downgrade(&turn));
        turn
    }
}

/// Who uploads, whose turn it is now. It is waited for before the body is read.
#[derive(Debug)]
pub(crate) struct Uploader {
    pub(crate) caller: Caller<Author>,
    _turn: Turn,
}

impl FromRequestParts<Arc<App>> for Uploader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let turn = app.uploads.turn(caller.tenant).await?;
        Ok(Self { caller, _turn: turn })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_one_turn_and_leaves_the_others_theirs() {
        let uploads = Uploads::new();
        let now = |tenant: u128| uploads.turn(TenantId(Uuid::from_u128(tenant))).now_or_never();
        let first = now(1).expect("free");
        assert!(now(1).is_none(), "one at a time");
        let others = [2, 3, 4].map(|tenant| now(tenant).expect("another's"));
        assert!(now(5).is_none(), "{UPLOADS_MAX} at once");
        drop(first);
        assert!(now(1).expect("free again").is_ok());
        drop(others);
        assert!(now(5).expect("free").is_ok());
        assert_eq!(uploads.tenants.lock().expect("whole").len(), 1, "nobody is remembered");
    }
}
