//! What a request has computed whose size a tenant chooses: aside from the threads that answer everybody.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::TenantId;
use tokio::sync::Semaphore;
use tracing::Span;

use crate::problem::Problem;
use crate::turns::Turns;

/// Computations at once, of all tenants: whoever asks for something small finds a processor even on a small host.
const COMPUTATIONS_MAX: usize = 2;

/// Where it is computed.
#[derive(Debug)]
pub(crate) struct Aside {
    turns: Turns,
    room: Arc<Semaphore>,
}

impl Aside {
    pub(crate) fn new() -> Self {
        Self { turns: Turns::default(), room: Arc::new(Semaphore::new(COMPUTATIONS_MAX)) }
    }

    /// Computes, one thing at a time of each tenant. What has begun keeps its place until it is done, whether or not anybody
    /// waits for it any longer.
    ///
    /// # Errors
    /// If the computation breaks off.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        tenant: TenantId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turns.of_tenant(tenant).await;
        let place = Arc::clone(&self.room).acquire_owned().await.map_err(|_| broken())?;
        let span = Span::current();
        let computing = tokio::task::spawn_blocking(move || {
            let _held = (turn, place);
            span.in_scope(work)
        });
        computing.await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "a computation broke off");
            broken()
        })
    }
}

fn broken() -> Problem {
    Problem::new(Code::Internal, "what was asked for could not be computed")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;
    use futures::future::poll_immediate;
    use uuid::Uuid;

    use super::*;

    fn tenant(number: u128) -> TenantId {
        TenantId(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn who_hangs_up_keeps_the_place_until_the_computation_is_done() {
        let aside = Aside::new();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut asked = Box::pin(aside.compute(tenant(1), move || {
            begun.send(()).expect("somebody listens");
            released.recv()
        }));
        assert!(poll_immediate(&mut asked).await.is_none());
        has_begun.await.expect("it begins");
        drop(asked);

        assert_eq!(aside.room.available_permits(), COMPUTATIONS_MAX - 1, "it computes on");
        let mut next = Box::pin(aside.compute(tenant(1), || 2));
        assert!(poll_immediate(&mut next).await.is_none(), "one at a time");
        assert_eq!(aside.compute(tenant(2), || 3).await.expect("another's"), 3);
        assert!(next.as_mut().now_or_never().is_none(), "one at a time");
        release.send(()).expect("it waits");
        assert_eq!(next.await.expect("its turn has come"), 2);
        assert_eq!(aside.room.available_permits(), COMPUTATIONS_MAX, "nothing is kept");
    }

    #[tokio::test]
    async fn what_breaks_off_gives_its_place_back() {
        let aside = Aside::new();
        let broken: Result<(), Problem> = aside.compute(tenant(1), || panic!("on purpose")).await;
        assert_eq!(broken.expect_err("it broke off").status().as_u16(), 500);
        assert_eq!(aside.compute(tenant(1), || 1).await.expect("it is free"), 1);
    }
}
