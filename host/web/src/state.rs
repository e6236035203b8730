//! What the handlers work with.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use counterfoil_domain::key::Pepper;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::{ComponentInspector, SecretSealer};
use counterfoil_store::Store;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use crate::aside::Aside;
use crate::login_link::LoginLinks;
use crate::metrics::Metrics;
use crate::uploads::Uploads;

/// What the server needs from its process.
#[derive(Clone)]
pub struct WebState {
    /// The database.
    pub store: Store,
    /// Checks uploads.
    pub inspector: Arc<dyn ComponentInspector>,
    /// Seals the secrets of connections.
    pub sealer: Arc<dyn SecretSealer>,
    /// Addresses that calls may reach: a connection is judged by them when it is set.
    pub addresses: AddressPolicy,
    /// What the operator grants to one execution of a block.
    pub limits: StepLimits,
    /// The installation's secret: keys are hashed and cookies signed with it.
    pub pepper: Pepper,
    /// The present time, for what is not decided by the database's clock: ids and the end of a session.
    pub clock: fn() -> DateTime<Utc>,
    /// Fills the slice with random bytes, fit for secrets.
    pub random: fn(&mut [u8]),
    /// Whether browsers are to send the session cookie over https alone.
    pub cookies_secure: bool,
    /// One-time links by which a browser is signed in without typing a key.
    pub login_links: LoginLinks,
}

impl std::fmt::Debug for WebState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebState").finish_non_exhaustive()
    }
}

impl WebState {
    pub(crate) fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    /// A `UUIDv7`.
    pub(crate) fn new_id(&self) -> Uuid {
        let mut random = [0; 10];
        (self.random)(&mut random);
        let ms = u64::try_from(self.now().timestamp_millis()).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }
}

/// [`WebState`], and what the server itself keeps.
pub(crate) struct App {
    pub(crate) web: WebState,
    pub(crate) metrics: Metrics,
    /// Where what may take long is computed.
    pub(crate) aside: Aside,
    /// Turns to upload.
    pub(crate) uploads: Uploads,
    /// Room for workers that wait for work.
    pub(crate) polls: Semaphore,
    /// The server is to end: nobody waits any longer.
    pub(crate) stopping: watch::Sender<bool>,
}

/// Each is a connection and a look at the database now and then; whoever comes when there is no room is answered at once.
const POLLS_MAX: usize = 1_000;

impl App {
    pub(crate) fn new(web: WebState) -> Self {
        Self {
            web,
            metrics: Metrics::new(),
            aside: Aside::new(),
            uploads: Uploads::new(),
            polls: Semaphore::new(POLLS_MAX),
            stopping: watch::Sender::new(false),
        }
    }
}

impl std::ops::Deref for App {
    type Target = WebState;

    fn deref(&self) -> &WebState {
        &self.web
    }
}

/// The state of every handler.
pub(crate) type Shared = axum::extract::State<Arc<App>>;
