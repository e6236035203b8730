//! Uploads: a component arrives on disk, at its sender's pace, and waits there for its turn to be held in memory. One at a
//! time of each tenant.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts as _, Request};
use counterfoil_domain::code::Code;
use counterfoil_domain::limits::UPLOAD_BYTES_MAX;
use http_body_util::BodyExt as _;
use tempfile::SpooledTempFile;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::auth::{Author, Caller};
use crate::problem::Problem;
use crate::state::App;
use crate::turns::{Turn, Turns};

/// Uploads that are worked on at once, of all tenants: each is held in memory whole.
const UPLOADS_MAX: usize = 4;
/// Uploads that arrive at once: each may have its size on disk.
const ARRIVING_MAX: usize = 64;
/// How fast one has to arrive, on an average: places are held by sending, and not by being slow.
const PACE: Pace = Pace { grace: Duration::from_secs(10), bytes_per_s: 64 << 10 };
/// What is kept in memory while it arrives: a block of a compiled language goes to no disk.
const ARRIVING_BYTES_MAX: usize = 256 << 10;

/// How fast a body arrives at least.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// For what a connection needs to become fast, and for pauses.
    grace: Duration,
    bytes_per_s: u64,
}

impl Pace {
    /// When more than this must have arrived.
    fn time_of(self, arrived: u64) -> Duration {
        self.grace + Duration::from_millis(arrived.saturating_mul(1_000) / self.bytes_per_s)
    }
}

/// Who waits for a turn, in the order in which they came.
pub(crate) struct Uploads {
    working: Semaphore,
    arriving: Semaphore,
    turns: Turns,
}

impl Uploads {
    pub(crate) fn new() -> Self {
        Self {
            working: Semaphore::new(UPLOADS_MAX),
            arriving: Semaphore::new(ARRIVING_MAX),
            turns: Turns::default(),
        }
    }
}

/// A component that has arrived, and whose it is.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) caller: Caller<Author>,
    component: SpooledTempFile,
    /// From before it arrives until the end.
    _of_tenant: Turn,
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
        let of_tenant = app.uploads.turns.of_tenant(caller.tenant).await;
        let _arriving = app.uploads.arriving.acquire().await.map_err(|_| closed())?;
        let component = arrive(body, PACE).await?;
        Ok(Self { caller, component, _of_tenant: of_tenant })
    }
}

/// Takes what comes, up to the limit, as long as it comes fast enough.
async fn arrive(mut body: Body, pace: Pace) -> Result<SpooledTempFile, Problem> {
    let mut component = SpooledTempFile::new(ARRIVING_BYTES_MAX);
    let (began, mut arrived) = (Instant::now(), 0);
    while let Some(frame) = timeout_at(began + pace.time_of(arrived), body.frame()).await.map_err(|_| {
        let Pace { grace, bytes_per_s } = pace;
        Problem::bad_request(format!(
            "the component arrives too slowly: {arrived} bytes in {} s, where {} s and one for every {bytes_per_s} \
             bytes are given",
            began.elapsed().as_secs(),
            grace.as_secs()
        ))
    })? {
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
    use super::*;

    #[tokio::test]
    async fn what_arrives_is_taken_up_to_the_limit_and_given_back_whole() {
        let bytes_max = usize::try_from(UPLOAD_BYTES_MAX).expect("fits");
        for len in [0, ARRIVING_BYTES_MAX, ARRIVING_BYTES_MAX + 1, bytes_max] {
            let bytes: Vec<u8> = (0..len).map(|index| index.to_le_bytes()[0]).collect();
            let mut component = arrive(Body::from(bytes.clone()), PACE).await.expect("arrives");
            let mut back = Vec::new();
            component.rewind().and_then(|()| component.read_to_end(&mut back)).expect("read");
            assert!(back == bytes, "{len}");
            assert_eq!(component.is_rolled(), len > ARRIVING_BYTES_MAX, "{len}");
        }
        assert!(arrive(Body::from(vec![0; bytes_max + 1]), PACE).await.is_err());
    }

    #[tokio::test]
    async fn what_arrives_too_slowly_is_let_go() {
        let pace = Pace { grace: Duration::from_millis(200), bytes_per_s: 1_000 };
        // So many bytes every 20 ms, and so many times.
        for (len, times, is_taken) in [(0, 1_000, false), (1, 1_000, false), (200, 30, true)] {
            let pieces = futures::stream::unfold(0, move |sent| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                (sent < times).then(|| (Ok::<_, io::Error>(vec![7; len]), sent + 1))
            });
            let began = Instant::now();
            let arrived = arrive(Body::from_stream(pieces), pace).await;
            assert_eq!(arrived.is_ok(), is_taken, "{len}");
            assert!(began.elapsed() < Duration::from_secs(10), "{len}: {:?}", began.elapsed());
        }
    }
}
