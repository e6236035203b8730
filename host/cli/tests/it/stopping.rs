//! A host that is told to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use counterfoil_testkit::host::Host;
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::world::World;

const DRAIN: Duration = Duration::from_secs(1);
/// What a host that waits for an answer takes longer than, however busy this machine is with others that do not.
const PATIENCE: Duration = Duration::from_secs(8);

/// A wire to the database that can be frozen: it takes what is sent, and says nothing more.
struct Wire {
    dir: tempfile::TempDir,
    frozen: Arc<watch::Sender<bool>>,
    /// How often something was sent into it since.
    unanswered: Arc<watch::Sender<usize>>,
}

impl Wire {
    fn to(server: PathBuf) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432"))?;
        let frozen = Arc::new(watch::Sender::new(false));
        let unanswered = Arc::new(watch::Sender::new(0));
        let (freezing, counting) = (Arc::clone(&frozen), Arc::clone(&unanswered));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.expect("connects");
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass_on(from_client, to_server, freezing.subscribe(), Arc::clone(&counting)));
                tokio::spawn(pass_on(from_server, to_client, freezing.subscribe(), Arc::clone(&counting)));
            }
        });
        Ok(Self { dir, frozen, unanswered })
    }
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
    unanswered: Arc<watch::Sender<usize>>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if *frozen.borrow_and_update() {
            unanswered.send_modify(|count| *count += 1);
            let _ = frozen.wait_for(|frozen| !frozen).await;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn a_host_stops_in_time_although_its_database_says_nothing() -> anyhow::Result<()> {
    let world = World::bare("stopping").await?;
    let options = world.database.options();
    let socket = options.get_socket().context("the server of the tests has a socket")?;
    let wire = Wire::to(socket.join(format!(".s.PGSQL.{}", options.get_port())))?;
    let in_url = |path: &Path| path.to_string_lossy().replace('/', "%2F");
    let mut config = world.host(3_000).with("COUNTERFOIL__ENGINE__DRAIN_MS", &DRAIN.as_millis());
    config.database_url = format!(
        "postgres:///{}?host={}&port=5432&user={}&sslmode=disable",
        options.get_database().context("a name")?,
        in_url(wire.dir.path()),
        options.get_username(),
    );
    for is_frozen in [false, true] {
        let mut host = Host::start(&config, &world.key).await?;
        wire.frozen.send_replace(is_frozen);
        if is_frozen {
            let mut unanswered = wire.unanswered.subscribe();
            tokio::time::timeout(PATIENCE, unanswered.wait_for(|count| *count >= 3)).await??;
        }
        let told = Instant::now();
        host.signal(Signal::SIGTERM)?;
        let status = host.ended().await?;
        assert!(told.elapsed() < DRAIN + PATIENCE / 2, "{:?}: {}", told.elapsed(), host.log());
        assert_eq!(status.code(), Some(0), "{}", host.log());
        assert_eq!(host.log().contains("WARN"), is_frozen, "{}", host.log());
    }
    Ok(())
}
