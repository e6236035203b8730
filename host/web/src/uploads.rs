//! Uploads: a component arrives on disk, at its sender's pace, and waits there for its turn to be held in memory. One at a
//! time of each tenant, so that nobody waits behind all the uploads of somebody else.

use std::collections::HashMap;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts as _, Request};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::limits::UPLOAD_BYTES_MAX;
use http_body_util::BodyExt as _;
use tempfile::SpooledTempFile;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::auth::{Author, Caller};
use crate::problem::Problem;
use crate::state::App;

/// Uploads that are worked on at once, of all tenants: each is held in memory whole.
const UPLOADS_MAX: usize = 4;
/// Uploads that arrive at once: each may have its size on disk.
const ARRIVING_MAX: usize = 64;
/// Time for one to arrive: the largest over a slow line.
const ARRIVES_WITHIN: Duration = Duration::from_mins(10);
/// What is kept in memory while it arrives: a block of a compiled language goes to no disk.
const ARRIVING_BYTES_MAX: usize = 256 << 10;

/// Who waits for a turn, in the order in which they came.
pub(crate) struct Uploads {
    working: Semaphore,
    arriving: Semaphore,
    tenants: Mutex<HashMap<TenantId, Weak<AsyncMutex<()>>>>,
}

impl Uploads {
    pub(crate) fn new() -> Self {
        Self {
            working: Semaphore::new(UPLOADS_MAX),
            arriving: Semaphore::new(ARRIVING_MAX),
            tenants: Mutex::default(),
        }
    }

    /// The tenant's own turn, which it has from before its component arrives until the end.
    async fn of_tenant(&self, tenant: TenantId) -> OwnedMutexGuard<()> {
        self.of(tenant).lock_owned().await
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

/// A component that has arrived, and whose it is.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) caller: Caller<Author>,
    component: SpooledTempFile,
    _of_tenant: OwnedMutexGuard<()>,
}

impl Upload {
    /// The component, once it is its turn to be held in memory.
    pub(crate) async fn held<'a>(&mut self, app: &'a App) -> Result<(Vec<u8>, SemaphorePermit<'a>), Problem> {
        let turn = app.uploads.working.acquire().await.map_err(|_| closed())?;
        let mut bytes = Vec::new();
        self.component
            .rewind()
            .and_then(|()| self.component.read_to_end(&mut bytes))
            .map_err(|error| unkept(&error))?;
        Ok((bytes, turn))
    }
}

impl FromRequest<Arc<App>> for Upload {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        let of_tenant = app.uploads.of_tenant(caller.tenant).await;
        let _arriving = app.uploads.arriving.acquire().await.map_err(|_| closed())?;
        let component = timeout(ARRIVES_WITHIN, arrive(body)).await.unwrap_or_else(|_| {
            let within = ARRIVES_WITHIN.as_secs();
            Err(Problem::bad_request(format!("the component did not arrive within {within} s")))
        })?;
        Ok(Self { caller, component, _of_tenant: of_tenant })
    }
}

/// Takes what comes, up to the limit.
async fn arrive(mut body: Body) -> Result<SpooledTempFile, Problem> {
    let mut component = SpooledTempFile::new(ARRIVING_BYTES_MAX);
    let mut arrived = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad_request("the body ended before it was complete"))?;
        let Ok(data) = frame.into_data() else { continue };
        arrived += data.len() as u64;
        if arrived > UPLOAD_BYTES_MAX {
            return Err(Problem::new(
                Code::TooLarge,
                format!("the body is larger than {UPLOAD_BYTES_MAX} bytes"),
            ));
        }
        component.write_all(&data).map_err(|error| unkept(&error))?;
    }
    Ok(component)
}

fn closed() -> Problem {
    Problem::new(Code::Unavailable, "the host takes no uploads now")
}

fn unkept(error: &io::Error) -> Problem {
    tracing::error!(error = error as &dyn std::error::Error, "an upload could not be kept while it arrived");
    Problem::new(Code::Unavailable, "the host has no room for the component now")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_tenant_has_one_turn_and_leaves_the_others_theirs() {
        let uploads = Uploads::new();
        let now = |tenant: u128| uploads.of_tenant(TenantId(Uuid::from_u128(tenant))).now_or_never();
        let first = now(1).expect("free");
        assert!(now(1).is_none(), "one at a time");
        let others: Vec<_> = (2..100).map(|tenant| now(tenant).expect("another's")).collect();
        drop(first);
        assert!(now(1).is_some());
        drop(others);
        assert!(now(2).is_some());
        assert_eq!(uploads.tenants.lock().expect("whole").len(), 1, "nobody is remembered");
    }

    #[tokio::test]
    async fn what_arrives_is_taken_up_to_the_limit_and_given_back_whole() {
        let bytes_max = usize::try_from(UPLOAD_BYTES_MAX).expect("fits");
        for len in [0, ARRIVING_BYTES_MAX, ARRIVING_BYTES_MAX + 1, bytes_max] {
            let bytes: Vec<u8> = (0..len).map(|index| index.to_le_bytes()[0]).collect();
            let mut component = arrive(Body::from(bytes.clone())).await.expect("arrives");
            let mut back = Vec::new();
            component.rewind().and_then(|()| component.read_to_end(&mut back)).expect("read");
            assert!(back == bytes, "{len}");
            assert_eq!(component.is_rolled(), len > ARRIVING_BYTES_MAX, "{len}");
        }
        assert!(arrive(Body::from(vec![0; bytes_max + 1])).await.is_err());
    }
}
