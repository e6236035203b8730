//! First steps that a host takes on as their runs are admitted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use counterfoil_domain::id::{HostId, Place, step_id};
use counterfoil_domain::ports::NoFaults;
use counterfoil_store::admission::{Admission, Admitted, Keep};
use counterfoil_store::run::{RunContext, Trigger};
use counterfoil_store::settle::{NewStep, RunEndState, SettleVerdict, SettledState, Settlement};
use counterfoil_store::step::{Claimed, Fence};
use counterfoil_store::{Store, StoreConfig};
use futures::FutureExt as _;
use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uuid::Uuid;

use crate::world::{LEASE, World, one, ready, run_end, settled, settlement};

/// What a host has taken on, and how often it was asked.
struct Taken {
    host: HostId,
    steps: UnboundedReceiver<(Claimed, RunContext)>,
    asked: Arc<AtomicU32>,
}

/// Has a host take on whatever comes first.
fn keep(store: &Store) -> Taken {
    let (take, steps) = unbounded_channel();
    let (host, asked) = (HostId(Uuid::now_v7()), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&asked);
    store.keep_first_steps(Arc::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        let take = take.clone();
        let take = Box::new(move |step, run| take.send((step, run)).expect("the test takes it"));
        Some(Keep { host, lease: LEASE, take })
    }));
    Taken { host, steps, asked }
}

#[tokio::test]
async fn a_first_step_that_is_kept_is_as_one_that_is_claimed() {
    let world = World::new().await;
    let mut taken = keep(&world.store);
    let admission = world.admission(&["a", "b"]);
    let admitted = world.store.admit(&admission).await.expect("admits");
    let (step, run) = taken.steps.try_recv().expect("it has begun before the admission is answered");
    assert_eq!(admitted, Admitted::Begun { run: admission.run, at: run.admitted_at });
    let other = one(world.claim(LEASE).await);
    let as_claimed = Claimed {
        fence: Fence { step: step_id(admission.run, "a", &[]), lease: step.fence.lease, ..other.fence },
        place: Place { node: "a".into(), ..other.place.clone() },
        first_started_at: step.first_started_at,
        lease_expires_at: step.lease_expires_at,
        ..other.clone()
    };
    assert_eq!(step, as_claimed);
    let wanted = [(world.tenant, admission.run, vec![])];
    let read = world.store.run_contexts(&wanted).await.expect("reads").remove(&(admission.run, vec![]));
    assert_eq!(Some(run), read);
    let held = format!(
        "SELECT count(*) FROM open_steps
         WHERE lease_id = '{}' AND host_id = '{}' AND vt = started_at + interval '{} ms' AND started_at = first_started_at",
        step.fence.lease.0,
        taken.host.0,
        LEASE.as_millis()
    );
    assert_eq!(world.number(&held).await, 1);
    for (step, end) in [(step, None), (other, Some(run_end(RunEndState::Succeeded)))] {
        let verdict = world.store.settle(&Settlement { end, ..settlement(&step) }).await.expect("settles");
        assert!(matches!(verdict, SettleVerdict::Settled { next: None }), "{verdict:?}");
    }
}

#[tokio::test]
async fn what_is_not_one_ready_step_at_once_is_left_to_be_claimed() {
    let world = World::new().await;
    let mut taken = keep(&world.store);
    let plain = || world.admission(&["a"]);
    let later = |delay| NewStep { delay, ..ready("a") };
    let inline = |of: &Admission| vec![settled(of.run, "s", SettledState::Succeeded)];
    for (admission, claimed) in [
        (Admission { open: vec![later(Duration::from_mins(1))], ..plain() }, 0),
        (Admission { open: vec![], end: Some(run_end(RunEndState::Succeeded)), ..plain() }, 0),
        (
            {
                let one = plain();
                Admission { inline: inline(&one), ..one }
            },
            1,
        ),
        (Admission { trigger: Trigger::Event { event: Uuid::now_v7().into(), ordinal: 0 }, ..plain() }, 1),
    ] {
        assert_eq!(world.store.admit(&admission).await.expect("admits"), Admitted::Started(admission.run));
        assert_eq!(world.claim(LEASE).await.len(), claimed, "{admission:?}");
    }
    assert_eq!(taken.asked.load(Ordering::Relaxed), 0);

    // A place is given back where the start key has had its run.
    let first = plain();
    world.store.admit(&first).await.expect("admits");
    taken.steps.try_recv().expect("has begun");
    let again = Admission { start_key: first.start_key.clone(), ..plain() };
    assert_eq!(world.store.admit(&again).await.expect("admits"), Admitted::Exists(first.run));
    assert!(taken.steps.is_empty());
    assert_eq!(taken.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_runs_is_kept_or_claimed() {
    const RUNS: usize = 32;
    let world = World::new().await;
    let mut taken = keep(&world.store);
    let admissions: Vec<_> = (0..RUNS).map(|_| world.admission(&["a"])).collect();
    join_all(admissions.iter().map(|admission| world.store.admit(admission))).await;
    let mut steps = world.claim(LEASE).await;
    while let Ok((kept, _)) = taken.steps.try_recv() {
        steps.push(kept);
    }
    let mut runs: Vec<_> = steps.iter().map(|step| step.run).collect();
    runs.sort_by_key(|run| run.0);
    assert_eq!(runs, admissions.iter().map(|admission| admission.run).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_step_begins_even_if_whoever_started_its_run_is_gone() {
    let world = World::new().await;
    let mut taken = keep(&world.store);
    let admission = world.admission(&["a"]);
    assert!(world.store.admit(&admission).now_or_never().is_none(), "it takes a while");
    let (step, _) = taken.steps.recv().await.expect("begins");
    assert_eq!(step.run, admission.run);
}

/// A wire to the database that loses the next answer that has a row, and breaks off with it.
struct Wire {
    dir: tempfile::TempDir,
    loses: Arc<AtomicBool>,
}

impl Wire {
    fn to(server: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).expect("listens");
        let loses = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&loses);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.expect("connects");
                tokio::spawn(pass_on(client, server, Arc::clone(&cut)));
            }
        });
        Self { dir, loses }
    }
}

/// Passes everything on, until an answer is lost.
async fn pass_on(client: UnixStream, server: UnixStream, loses: Arc<AtomicBool>) {
    /// `BindComplete`, and the first letter of `DataRow`. All of an answer is sent once its statement is committed.
    const ROW: &[u8] = b"2\0\0\0\x04D";
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
        let answer = &bytes[..read];
        let has_row = answer.windows(ROW.len()).any(|window| window == ROW);
        if has_row && loses.swap(false, Ordering::SeqCst) {
            break;
        }
        if to_client.write_all(answer).await.is_err() {
            break;
        }
    }
    asking.abort();
}

/// It was committed, and whoever sent it does not know: the host begins what it has leased all the same.
#[tokio::test]
async fn a_first_step_begins_although_the_answer_to_its_admission_was_lost() {
    let world = World::new().await;
    let options = world.database.options();
    let socket = options.get_socket().expect("the server of the tests has a socket").clone();
    let wire = Wire::to(socket.join(format!(".s.PGSQL.{}", options.get_port())));
    let in_url = |path: &Path| path.to_string_lossy().replace('/', "%2F");
    let url = format!(
        "postgres:///{}?host={}&port=5432&user={}&sslmode=disable",
        options.get_database().expect("a name"),
        in_url(wire.dir.path()),
        options.get_username(),
    );
    let store =
        Store::connect(StoreConfig { url, connections_max: 2 }, Arc::new(NoFaults)).await.expect("connects");
    let mut taken = keep(&store);
    for loses in [false, true] {
        let admission = world.admission(&["a", "b"]);
        wire.loses.store(loses, Ordering::SeqCst);
        let admitted = store.admit(&admission).await.expect("admits");
        assert!(!wire.loses.load(Ordering::SeqCst), "an answer was lost");
        let (step, run) = taken.steps.try_recv().expect("it has begun before the admission is answered");
        assert_eq!(admitted, Admitted::Begun { run: admission.run, at: run.admitted_at });
        assert!(taken.steps.is_empty(), "and once");
        let other = one(world.claim(LEASE).await);
        assert_eq!((other.run, other.place.node.as_str()), (admission.run, "b"));
        let wanted = [(world.tenant, admission.run, vec![])];
        let read = world.store.run_contexts(&wanted).await.expect("reads").remove(&(admission.run, vec![]));
        assert_eq!(Some(run), read);
        for (step, end) in [(step, None), (other, Some(run_end(RunEndState::Succeeded)))] {
            let verdict =
                world.store.settle(&Settlement { end, ..settlement(&step) }).await.expect("settles");
            assert!(matches!(verdict, SettleVerdict::Settled { next: None }), "{verdict:?}");
        }
    }
}
