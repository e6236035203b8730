//! Guests in processes of their own: what such a process has, and what its end costs.

use std::fs;
use std::num::NonZeroU32;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{
    ComponentInspector as _, EffectPort, StepEnd, StepJob, StepReport, StepRunner as _,
};
use counterfoil_sandbox::{Allocation, Guests, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::processes::{Process, children, until};
use crate::run::model_call;
use crate::{House, ROOMY, config, job, output, trapped};

const PATIENCE: Duration = Duration::from_mins(1);

/// A port that answers when it is let, and knows what it was asked.
struct Gate {
    let_through: Semaphore,
    asked: AtomicUsize,
    answered: AtomicUsize,
    waiting: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Self> {
        let [asked, answered, waiting] = [0; 3].map(AtomicUsize::new);
        Arc::new(Self { let_through: Semaphore::new(0), asked, answered, waiting })
    }

    fn counts(&self) -> (usize, usize) {
        (self.asked.load(Ordering::SeqCst), self.answered.load(Ordering::SeqCst))
    }

    async fn until_asked(&self, calls: usize) {
        until(PATIENCE, || (self.counts().0 >= calls).then_some(())).await;
    }
}

#[async_trait]
impl EffectPort for Gate {
    async fn perform(&self, _execution: LeaseId, _call: EffectCall) -> EffectReply {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(&self.waiting);
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.let_through.acquire().await.expect("open").forget();
        self.answered.fetch_add(1, Ordering::SeqCst);
        EffectReply::Answered(Answer::Model("{}".into()))
    }
}

/// A sandbox with this many runners.
fn apart(runners: u32, gate: &Arc<Gate>) -> Arc<House> {
    apart_with(runners, 8, gate)
}

fn apart_with(runners: u32, slots: u32, gate: &Arc<Gate>) -> Arc<House> {
    let cache = tempfile::tempdir().expect("a directory");
    let guests = Guests::Apart(NonZeroU32::new(runners).expect("some"));
    let config = SandboxConfig { guests, slots, ..config(cache.path()) };
    let sandbox = Sandbox::new(config, Arc::clone(gate) as _).expect("a sandbox");
    Arc::new(House { sandbox, cache })
}

fn run(house: &Arc<House>, job: StepJob) -> JoinHandle<StepReport> {
    let house = Arc::clone(house);
    tokio::spawn(async move { house.sandbox.run(job).await })
}

/// The runners of this process. Each test has a process of its own.
fn runners() -> Vec<Process> {
    let is_runner = |child: &Process| !child.is_zombie && child.read("cmdline").contains("__run\0");
    children().into_iter().filter(is_runner).collect()
}

fn the_runner() -> Process {
    let mut runners = runners();
    assert_eq!(runners.len(), 1, "{runners:?}");
    runners.remove(0)
}

fn signal(process: &Process, signal: Signal) {
    kill(Pid::from_raw(process.id), signal).expect("ours");
}

async fn until_ended(process: &Process) {
    until(PATIENCE, || Process::find(process.id).is_none().then_some(())).await;
}

/// A block that makes one call, and then says `"done"`.
fn caller() -> Guest {
    let mut guest = Guest::performing(&model_call(), "");
    let done = guest.text("\"done\"");
    guest.running_instead(format!("(call $perform (i32.const 256) (i32.const 128)) (call $ok {done})"))
}

#[tokio::test]
async fn a_runner_has_a_socket_and_nothing_else() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    let running = run(&house, job(component));
    gate.until_asked(1).await;
    let runner = the_runner();
    assert_eq!(runner.read("environ"), "");
    let open = fs::read_dir(format!("/proc/{}/fd", runner.id)).expect("listed");
    let open = open.map(|entry| fs::read_link(entry.expect("an entry").path()).expect("a link"));
    let mut open: Vec<String> = open.map(|path| path.to_string_lossy().into_owned()).collect();
    // Memory, and what the runtime waits with, have no name that anybody else could open.
    open.retain(|path| !path.starts_with("/memfd:") && !path.starts_with("anon_inode:"));
    let mut sockets: Vec<_> = open.extract_if(.., |path| path.starts_with("socket:")).collect();
    sockets.sort();
    sockets.dedup();
    assert_eq!(
        sockets.len(),
        3,
        "one to the host, and a pair that the runtime wakes itself with: {sockets:?}"
    );
    open.retain(|path| path != &format!("/proc/{}/pagemap", runner.id));
    open.sort();
    assert!(
        matches!(&open[..], [null, errors] if null == "/dev/null" && errors.starts_with("pipe:")),
        "{open:?}"
    );
    let threads = fs::read_dir(format!("/proc/{}/task", runner.id)).expect("listed");
    let threads: Vec<String> = threads
        .map(|thread| fs::read_to_string(thread.expect("a thread").path().join("status")).expect("read"))
        .collect();
    assert_eq!(threads.len(), 3, "one for guests, one that loads them, one for their clock");
    for thread in threads {
        assert!(thread.contains("\nSeccomp:\t2\n") && thread.contains("\nNoNewPrivs:\t1\n"), "{thread}");
    }
    assert_eq!(runner.read("oom_score_adj").trim(), "500");
    gate.let_through.add_permits(1);
    assert_eq!(running.await.expect("ran").end, output("\"done\""));
    drop(house);
    until_ended(&runner).await;
}

#[tokio::test]
async fn a_runner_killed_in_mid_effect_costs_its_steps_one_execution_and_the_effect_is_seen_to_its_end() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    let steps = [run(&house, job(component)), run(&house, job(component))];
    gate.until_asked(2).await;
    let runner = the_runner();
    signal(&runner, Signal::SIGKILL);
    until_ended(&runner).await;
    assert!(steps.iter().all(|step| !step.is_finished()), "its effect is still under way");
    assert_eq!(gate.counts(), (2, 0));
    gate.let_through.add_permits(2);
    for step in steps {
        let report = step.await.expect("ran");
        assert!(matches!(report.end, StepEnd::Lost { .. }), "{report:?}");
    }
    assert_eq!(gate.counts(), (2, 2));
    // The host goes on, with another.
    gate.let_through.add_permits(1);
    assert_eq!(run(&house, job(component)).await.expect("ran").end, output("\"done\""));
    assert_ne!(the_runner().id, runner.id);
}

/// A runner comes round to each of so many guests in seconds, which is later than the host expects to hear of them.
#[tokio::test]
async fn guests_that_never_stop_cost_no_other_its_process() {
    const GUESTS: u32 = 256;
    let gate = Gate::new();
    let house = apart_with(1, GUESTS + 8, &gate);
    let spinning = house.prepared(&Guest::running("(loop $for-ever (br $for-ever)) (unreachable)")).await;
    let neighbour = house.prepared(&Guest::echo()).await;
    assert_eq!(run(&house, job(neighbour)).await.expect("ran").end, output("{}"));
    let runner = the_runner();
    let limits = StepLimits { wall_ms_max: 1_000, ..ROOMY };
    let storm: Vec<_> = (0..GUESTS).map(|_| run(&house, StepJob { limits, ..job(spinning) })).collect();
    assert_eq!(run(&house, job(neighbour)).await.expect("ran").end, output("{}"));
    for step in storm {
        assert_eq!(trapped(&step.await.expect("ran")).0, Code::WallLimit);
    }
    assert_eq!(the_runner().id, runner.id);
}

/// Steps that wait for a process of their own wait elsewhere, and uploads do not wait for them.
#[tokio::test]
async fn steps_that_must_run_alone_hold_up_nobody() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    let suspect = || run(&house, StepJob { losses: 3, ..job(component) });
    let alone = [suspect(), suspect()];
    gate.until_asked(2).await;
    let waits = suspect().await.expect("ran").end;
    assert!(matches!(waits, StepEnd::Unavailable { .. }), "{waits:?}");
    house.sandbox.inspect(Guest::echo().build()).await.expect("it describes itself meanwhile");
    gate.let_through.add_permits(2);
    for step in alone {
        assert_eq!(step.await.expect("ran").end, output("\"done\""));
    }
}

#[tokio::test]
async fn a_step_that_lost_its_process_again_and_again_runs_where_it_takes_nobody_with_it() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    let together = run(&house, StepJob { losses: 2, ..job(component) });
    gate.until_asked(1).await;
    let shared = the_runner();
    let suspect = run(&house, StepJob { losses: 3, ..job(component) });
    gate.until_asked(2).await;
    let alone: Vec<_> = runners().into_iter().filter(|runner| runner.id != shared.id).collect();
    assert_eq!(alone.len(), 1, "{alone:?}");
    signal(&alone[0], Signal::SIGKILL);
    gate.let_through.add_permits(2);
    assert!(matches!(suspect.await.expect("ran").end, StepEnd::Lost { .. }));
    assert_eq!(together.await.expect("ran").end, output("\"done\""));
    assert_eq!(the_runner(), Process::find(shared.id).expect("alive"));
}

#[tokio::test]
async fn a_runner_that_keeps_nobodys_time_is_ended() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    let limits = StepLimits { wall_ms_max: 200, ..ROOMY };
    let running = run(&house, StepJob { limits, ..job(component) });
    gate.until_asked(1).await;
    let runner = the_runner();
    signal(&runner, Signal::SIGSTOP);
    let stopped = Instant::now();
    assert!(matches!(running.await.expect("ran").end, StepEnd::Lost { .. }));
    assert!(stopped.elapsed() < Duration::from_secs(20), "{:?}", stopped.elapsed());
    assert_eq!(gate.waiting.load(Ordering::SeqCst), 0, "the call of a step ends with it");
    until_ended(&runner).await;
}

#[tokio::test]
async fn whoever_gives_a_step_up_ends_its_guest_and_its_call() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let component = house.prepared(&caller()).await;
    // Of eight slots none is kept.
    for round in 1..=20 {
        let running = run(&house, job(component));
        gate.until_asked(round).await;
        running.abort();
        assert!(running.await.expect_err("given up").is_cancelled());
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 0);
    }
    let endless = Guest::running("(loop $for-ever (br $for-ever)) (unreachable)");
    let endless = house.prepared(&endless).await;
    let running = run(&house, job(endless));
    let runner = the_runner();
    until(PATIENCE, || (cpu_ticks(&runner) > 5).then_some(())).await;
    running.abort();
    // It has nothing to do any more.
    let mut before = cpu_ticks(&runner);
    until(PATIENCE, || {
        let now = cpu_ticks(&runner);
        let idle = now == before;
        before = now;
        std::thread::sleep(Duration::from_millis(100));
        idle.then_some(())
    })
    .await;
}

/// CPU that a process has used.
fn cpu_ticks(process: &Process) -> u64 {
    let stat = process.read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[tokio::test]
async fn limits_hold_in_a_runner_and_its_other_guests_go_on() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let waiting = house.prepared(&caller()).await;
    let waiting = run(&house, job(waiting));
    gate.until_asked(1).await;
    let runner = the_runner();
    let brief = StepLimits { cpu_ms_max: 50, ..ROOMY };
    for (body, code) in [
        ("(loop $for-ever (br $for-ever)) (unreachable)", Code::CpuLimit),
        ("(call $deep) (unreachable)", Code::StackLimit),
        ("(unreachable)", Code::GuestTrap),
    ] {
        let guest = Guest::running(body).with("(func $deep (call $deep))");
        let component = house.prepared(&guest).await;
        let report = run(&house, StepJob { limits: brief, ..job(component) }).await.expect("ran");
        assert_eq!(trapped(&report).0, code, "{body}");
    }
    gate.let_through.add_permits(1);
    assert_eq!(waiting.await.expect("ran").end, output("\"done\""));
    assert_eq!(the_runner(), Process::find(runner.id).expect("alive"));
}

/// What is loaded from the cache was scanned under the limits of another day.
#[tokio::test]
async fn a_block_that_was_accepted_under_wider_limits_ends_with_a_code_and_the_pool_goes_on() {
    const PAGE: u64 = 64 << 10;
    let cache = tempfile::tempdir().expect("a directory");
    let sandbox = |limits: StepLimits| {
        let guests = Guests::Apart(NonZeroU32::MIN);
        let config = SandboxConfig {
            allocation: Allocation::Pooled,
            guests,
            slots: 4,
            limits,
            ..config(cache.path())
        };
        Sandbox::new(config, Gate::new()).expect("a sandbox")
    };
    let wide = Guest::echo().with("(table 15000 funcref)");
    let large = Guest::echo().replacing("(memory (export \"memory\") 2)", "(memory (export \"memory\") 100)");
    let small = Guest::echo();
    let before = sandbox(ROOMY);
    let mut blocks = vec![];
    for guest in [&wide, &large, &small] {
        let bytes = guest.build();
        let digest = Digest::of(&bytes);
        before.prepare(digest, bytes.clone()).await.expect("accepted");
        assert_eq!(before.run(job(digest)).await.end, output("{}"));
        blocks.push((digest, bytes));
    }
    let narrow = StepLimits { memory_bytes_max: 50 * PAGE, ..ROOMY };
    // How many elements a table has at most, no operator says: its pool is as it was.
    let tables = StepLimits { table_elements_max: 10_000, ..ROOMY };
    let after = sandbox(narrow);
    for (sandbox, granted, refused) in [
        (&before, narrow, [false, true, false]),
        (&before, tables, [true, false, false]),
        (&after, ROOMY, [false, true, false]),
    ] {
        for ((digest, bytes), is_refused) in blocks.iter().zip(refused) {
            sandbox.prepare(*digest, bytes.clone()).await.expect("it is ready still");
            let report = sandbox.run(StepJob { limits: granted, ..job(*digest) }).await;
            if is_refused {
                let (code, message) = trapped(&report);
                assert!(code == Code::MemoryLimit && message.contains("are granted"), "{code}: {message}");
            } else {
                assert_eq!(report.end, output("{}"));
            }
        }
    }
}

#[tokio::test]
async fn an_upload_is_described_where_nothing_else_runs() {
    let gate = Gate::new();
    let house = apart(1, &gate);
    let mut inspecting = std::pin::pin!(
        house
            .sandbox
            .inspect(Guest::echo().describing_by("(loop $for-ever (br $for-ever)) (unreachable)").build())
    );
    // One for the blocks of all, which has looked whether it could be run, and one for this alone.
    let seen = async { until(PATIENCE, || (runners().len() == 2).then_some(())).await };
    tokio::select! {
        inspection = &mut inspecting => panic!("{inspection:?} came first"),
        () = seen => {}
    }
    let refused = inspecting.await.expect_err("it does not end");
    assert_eq!(refused.code, Code::DescriptorInvalid);
    until(PATIENCE, || (runners().len() == 1).then_some(())).await;
}

#[tokio::test]
async fn a_runner_ends_with_its_host_and_does_not_begin_without() {
    let program = env!("CARGO_BIN_EXE_counterfoil-child");
    for (parent, said) in [
        ("1", "the host that started this is gone\n"),
        ("", "usage: __run PARENT, with a socket as the standard input\n"),
        (&std::process::id().to_string(), "it cannot be begun: "),
    ] {
        let orphan = Command::new(program).args(["__run", parent]).stdin(Stdio::null()).output();
        let orphan = orphan.expect("started");
        assert!(!orphan.status.success(), "{orphan:?}");
        let errors = String::from_utf8_lossy(&orphan.stderr);
        assert!(errors.starts_with(said), "{parent:?}: {errors}");
    }
}

#[tokio::test]
async fn a_program_that_is_no_runner_is_never_believed_and_never_waited_for() {
    for program in ["/bin/true", "/bin/cat", "/bin/yes", "/nowhere/counterfoil"] {
        let cache = tempfile::tempdir().expect("a directory");
        // Its compiler is a good one: what was compiled lies in the cache.
        let component =
            House { sandbox: crate::sandbox(cache.path(), Allocation::OnDemand, Gate::new()), cache };
        let bytes = caller().build();
        let digest = component.prepared(&caller()).await;
        let guests = Guests::Apart(NonZeroU32::MIN);
        let program = counterfoil_sandbox::Program { path: program.into() };
        let config = SandboxConfig { guests, program, ..config(component.cache.path()) };
        let sandbox = Sandbox::new(config, Gate::new()).expect("a sandbox");
        let unprepared = sandbox.prepare(digest, bytes).await.expect_err("nothing runs it");
        assert!(
            matches!(unprepared, counterfoil_domain::ports::Unprepared::Unavailable { .. }),
            "{unprepared:?}"
        );
    }
}
