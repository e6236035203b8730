//! Where the rooms meet: the real ports, the loops and the server of one host.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use chrono::Utc;
use counterfoil_domain::id::HostId;
use counterfoil_domain::key::{ApiKey, Pepper};
use counterfoil_domain::ports::Faults;
use counterfoil_effects::client::{Client, ClientConfig, NameServers};
use counterfoil_effects::secrets::Secrets;
use counterfoil_effects::{Guard, GuardConfig};
use counterfoil_engine::{Engine, EngineConfig};
use counterfoil_sandbox::{Allocation, Budget, Guests, Program, Sandbox, SandboxConfig};
use counterfoil_store::Store;
use counterfoil_web::{LoginLinks, WebState};
use tokio::net::TcpListener;
use tokio::runtime::{self, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

use crate::config::{Config, ServerConfig};
use crate::exit::{Exit, Failure};

/// What is being answered when a host is told to stop may take this long: an upload is the longest.
const ANSWERS_END_MAX: Duration = Duration::from_secs(10);

/// A database that is restarted is back in seconds; what is away for longer than a minute is not restarted.
const RECORD_FOR: Duration = Duration::from_mins(1);
/// A database that is there lets go of its connections at once.
const GOODBYE_MAX: Duration = Duration::from_millis(800);

/// One host: it serves nobody and runs nothing until [`Host::run`].
pub(crate) struct Host {
    store: Store,
    engine: Engine,
    web: WebState,
    listener: TcpListener,
    url: Url,
    /// By which the database knows its leases.
    id: HostId,
    front: Front,
    /// How long what is under way may take when it stops.
    drain: Duration,
}

/// A runtime for what somebody waits for: requests, and steps of tenants that have little in flight. They do not queue behind all
/// that a burst gives the other one to do.
struct Front {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Front {
    const THREADS: usize = 2;

    fn new() -> anyhow::Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(Self::THREADS)
            .thread_name("front")
            .enable_all()
            .build()
            .context("the runtime for requests cannot be started")?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    /// Gives it connections of its own to the database, and the port.
    fn open(
        &self,
        store: &Store,
        listener: TcpListener,
        connections_max: u32,
    ) -> anyhow::Result<TcpListener> {
        let _here = self.handle.enter();
        store.open_lane((connections_max / 2).max(2));
        Ok(TcpListener::from_std(listener.into_std()?)?)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // As the other runtime's: what is still under way belongs to whoever takes it over.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Takes the port, before anything is started that takes longer.
pub(crate) async fn bind(config: &ServerConfig) -> anyhow::Result<TcpListener> {
    let listen = config.listen;
    TcpListener::bind(listen).await.map_err(|error| {
        Failure::new(Exit::Error, format!("cannot listen on {listen}: {error}"))
            .next("the same command with --listen 127.0.0.1:0, which takes a free port")
            .into()
    })
}

/// Is cancelled at the first SIGINT or SIGTERM; the second ends the process where it stands, which is safe anywhere.
pub(crate) fn told_to_stop() -> anyhow::Result<CancellationToken> {
    /// What a shell gives for a process that SIGINT ended.
    const INTERRUPTED: i32 = 130;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        for is_first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if is_first {
                tracing::info!("stopping: no new work is begun, and what is under way may end");
                told.cancel();
            }
        }
        std::process::exit(INTERRUPTED);
    });
    Ok(stop)
}

impl Host {
    /// Builds every part.
    ///
    /// # Errors
    /// This machine cannot hold such a host.
    pub(crate) fn new(
        config: &Config,
        store: Store,
        pepper: Pepper,
        faults: Arc<dyn Faults>,
        listener: TcpListener,
    ) -> anyhow::Result<Self> {
        if !config.effects.receipts {
            tracing::error!("calls are made WITHOUT receipts, as a test asked: nothing here is at most once");
        }
        let client = Client::new(ClientConfig {
            policy: config.effects.policy(),
            name_servers: NameServers::System,
            extra_roots: vec![],
            // Where a crash point is armed, the crash shall fall between the first byte and the rest.
            first_byte_alone: config.effects.crash_at.is_some(),
        })?;
        let guard = GuardConfig {
            lease: config.engine.lease,
            timeout: config.effects.timeout,
            answer_wait: config.effects.answer_wait,
            record_for: RECORD_FOR,
            absence_margin: config.effects.absence_margin,
            receipts: config.effects.receipts,
        };
        let front = Front::new()?;
        let listener = front.open(&store, listener, config.database.connections_max)?;
        let secrets = secrets(config);
        let guard = Arc::new(Guard::new(store.clone(), client, secrets.clone(), guard, Arc::clone(&faults)));
        let sandbox = SandboxConfig {
            cache_dir: config.data.blocks_dir(),
            cache_bytes_max: config.data.blocks_bytes_max,
            allocation: Allocation::Pooled,
            slots: config.engine.in_flight_max,
            limits: config.limits.step,
            guests: NonZeroU32::new(config.engine.runners).map_or(Guests::Here, Guests::Apart),
            program: Program::this()?,
            compile_budget: Budget::DEFAULT,
            heard_on: Some(front.handle.clone()),
        };
        let sandbox = Arc::new(Sandbox::new(sandbox, Arc::clone(&guard) as _)?);
        let id = HostId(Uuid::now_v7());
        let engine = EngineConfig {
            host: id,
            lease: config.engine.lease,
            renew_every: config.engine.renew,
            in_flight_max: config.engine.in_flight_max,
            poll_every: config.engine.poll,
            drain_for: config.engine.drain,
            limits: config.limits.step,
            keep: config.retention.keep(),
            // A guest in this process would keep the front's threads.
            quick: (config.engine.runners > 0).then(|| front.handle.clone()),
        };
        let engine = Engine::new(store.clone(), guard, Arc::clone(&sandbox) as _, faults, engine);
        let web = WebState {
            store: store.clone(),
            inspector: sandbox,
            sealer: Arc::new(secrets),
            addresses: config.effects.policy(),
            limits: config.limits.step,
            pepper,
            clock: Utc::now,
            random,
            cookies_secure: config.server.cookies_secure,
            login_links: LoginLinks::default(),
        };
        let url = format!("http://{}/", listener.local_addr()?).parse()?;
        Ok(Self { store, engine, web, listener, url, id, front, drain: config.engine.drain })
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// A path that signs a browser in as the holder of `key`, once.
    pub(crate) fn login_link(&self, key: &ApiKey) -> anyhow::Result<String> {
        let mut token = [0; 32];
        getrandom::fill(&mut token)?;
        Ok(self.web.login_links.open(key.prefix(), token, Utc::now()))
    }

    /// Serves and works until `stop`, and then until what is under way has ended.
    ///
    /// # Errors
    /// A part ended by itself.
    pub(crate) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { store, engine, web, listener, url, id, front, drain } = self;
        tracing::info!(%url, host = %id, "serving");
        let listening = CancellationToken::new();
        let wakes = tokio::spawn({
            let (store, listening) = (store.clone(), listening.clone());
            async move { store.listen(listening).await }
        });
        let working = async {
            let stop = stop.clone();
            tokio::spawn(async move { engine.run(stop).await }).await.context("the engine broke off")
        };
        let serving = serve(&front.handle, listener, web, &stop, ANSWERS_END_MAX.min(drain));
        let (worked, served) = tokio::join!(then_stop(working, &stop), then_stop(serving, &stop));
        listening.cancel();
        let goodbye = async {
            wakes.await.context("the wake-ups broke off")?;
            // What is still under way may have an answer to record in the last moment.
            if matches!(worked, Ok(true)) {
                store.close().await;
            }
            anyhow::Ok(())
        };
        if let Ok(said) = tokio::time::timeout(GOODBYE_MAX, goodbye).await {
            said?;
        } else {
            tracing::warn!("the database did not let go of its connections when the host stopped");
        }
        worked.and(served)?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// No part ends before it is told to, unless it is broken; then the others are told.
async fn then_stop<T>(part: impl Future<Output = T>, stop: &CancellationToken) -> T {
    let ended = part.await;
    stop.cancel();
    ended
}

async fn serve(
    front: &Handle,
    listener: TcpListener,
    web: WebState,
    stop: &CancellationToken,
    answers_end: Duration,
) -> anyhow::Result<()> {
    let mut serving = front.spawn(counterfoil_web::serve(listener, web, stop.clone().cancelled_owned()));
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(answers_end).await;
    };
    tokio::select! {
        served = &mut serving => served.context("the server broke off")?.context("the server ended"),
        () = too_late => {
            tracing::warn!("requests were still being answered when the host stopped");
            serving.abort();
            Ok(())
        }
    }
}

/// Secrets of connections, under the keys of the configured file.
pub(crate) fn secrets(config: &Config) -> Secrets {
    Secrets::new(config.secrets.keys_file.clone(), random)
}

/// Fills the slice with random bytes, fit for secrets.
///
/// # Panics
/// If the operating system has none, which it has from boot on; without them no secret can be made.
pub(crate) fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system has random bytes");
}
