//! What has gone wrong in other sandboxes, and must not in this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{EffectCall, EffectReply};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{EffectPort, StepJob, StepRunner};

use counterfoil_sandbox::{Allocation, Program, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;

use crate::port::Script;
use crate::processes::Process;
use crate::run::model_call;
use crate::{config, house, job, output, sandbox, trapped};

const ENDLESS: &str = "(loop $for-ever (br $for-ever)) (unreachable)";
const BRIEF: StepLimits = StepLimits { cpu_ms_max: 50, ..crate::ROOMY };

#[tokio::test]
async fn every_engine_of_the_process_ticks_and_every_call_has_its_deadline() {
    let houses = [house(Script::unused()), house(Script::unused())];
    for round in 0..3 {
        for (number, house) in houses.iter().enumerate() {
            let report = house.run_within(&Guest::running(ENDLESS), BRIEF).await;
            assert_eq!(trapped(&report).0, Code::CpuLimit, "call {round} of engine {number}");
        }
    }
}

/// A port that never answers, and knows how many wait for it.
#[derive(Default)]
struct Silent {
    waiting: Arc<AtomicUsize>,
}

struct Waits(Arc<AtomicUsize>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl EffectPort for Silent {
    async fn perform(&self, _execution: LeaseId, _call: EffectCall) -> EffectReply {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(Arc::clone(&self.waiting));
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_call_of_the_host_ends_with_the_step_that_made_it() {
    let port = Arc::new(Silent::default());
    let waiting = Arc::clone(&port.waiting);
    let house = house(port);
    let component = house.prepared(&Guest::performing(&model_call(), "(unreachable)")).await;
    let limits = StepLimits { wall_ms_max: 100, ..crate::ROOMY };
    let begun = Instant::now();
    let report = house.sandbox.run(StepJob { limits, ..job(component) }).await;
    assert_eq!(trapped(&report).0, Code::WallLimit);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(waiting.load(Ordering::SeqCst), 0);
    // And with a host that gives it up, whose lease was lost.
    let mut running = Box::pin(house.sandbox.run(job(component)));
    while waiting.load(Ordering::SeqCst) == 0 {
        tokio::select! {
            biased;
            report = &mut running => panic!("{report:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(running);
    assert_eq!(waiting.load(Ordering::SeqCst), 0);
}

fn memory_kib() -> u64 {
    let this = Process::find(i32::try_from(std::process::id()).expect("an id")).expect("there");
    let status = this.status();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn memory_is_flat_over_traps_and_over_instances_at_once() {
    const KIB_SPARE: u64 = 12 << 10;
    for allocation in [Allocation::OnDemand, Allocation::Pooled] {
        let cache = tempfile::tempdir().expect("a directory");
        let config = SandboxConfig { allocation, slots: 16, ..config(cache.path()) };
        let sandbox = Sandbox::new(config, Script::unused()).expect("a sandbox");
        let house = crate::House { sandbox, cache };
        // Each touches a megabyte before it ends.
        let touch = "(drop (memory.grow (i32.const 16))) (memory.fill (i32.const 65536) (i32.const 1) (i32.const 1048576))";
        let trapping = house.prepared(&Guest::running(format!("{touch} (unreachable)"))).await;
        let ending = format!("{touch} (call $ok (i32.const 0) (i32.const 0))");
        let ending = house.prepared(&Guest::running(ending)).await;
        let batch = async || {
            for _ in 0..20 {
                let all = [trapping, ending].into_iter().cycle().take(16);
                let runs = all.map(|component| house.sandbox.run(job(component)));
                for report in futures::future::join_all(runs).await {
                    assert!(report.memory_bytes_peak > 1 << 20, "{report:?}");
                }
            }
        };
        batch().await;
        let before = memory_kib();
        for _ in 0..4 {
            batch().await;
        }
        let grown = memory_kib().saturating_sub(before);
        assert!(grown < KIB_SPARE, "{allocation:?}: {grown} KiB more after 1,280 executions");
    }
}

#[tokio::test]
async fn what_a_step_logged_is_reported_once_for_each_execution() {
    let mut guest = Guest::echo();
    let line = guest.text("once");
    let body = format!("(call $log (i32.const 2) {line}) (call $ok (i32.const 0) (i32.const 0))");
    let guest = guest.running_instead(body);
    let house = house(Script::unused());
    for _execution in 0..3 {
        let report = house.run(&guest).await;
        let lines: Vec<&str> = report.logs.iter().map(|line| line.message.as_str()).collect();
        assert_eq!((report.end, lines), (output(""), vec!["once"]));
    }
}

#[tokio::test]
async fn a_restart_compiles_nothing_again_and_runs_no_code_of_another_engine() {
    let cache = tempfile::tempdir().expect("a directory");
    let (bytes, other) = (Guest::echo().build(), Guest::running(ENDLESS).build());
    let (digest, other_digest) = (Digest::of(&bytes), Digest::of(&other));
    let first = sandbox(cache.path(), Allocation::OnDemand, Script::unused());
    first.prepare(digest, bytes.clone()).await.expect("accepted");
    // A host that cannot compile has all that it needs.
    let compiler = Program { path: "/nowhere/compiler".into() };
    let config = SandboxConfig { program: compiler, ..config(cache.path()) };
    let second = Sandbox::new(config.clone(), Script::unused()).expect("a sandbox");
    second.prepare(digest, bytes.clone()).await.expect("as it was kept");
    assert_eq!(second.run(job(digest)).await.end, output("{}"));
    assert!(second.prepare(other_digest, other).await.is_err(), "this one was never compiled");
    // The name of a file says for which engine it is; what is under the name of ours, and is not, is not believed.
    let file = |digest: Digest| {
        let entries = std::fs::read_dir(cache.path()).expect("listed");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        let is_it = |path: &std::path::PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&digest.to_string()))
        };
        paths.find(is_it).expect("an artifact")
    };
    let ours = file(digest);
    let name = ours.file_name().expect("a name").to_string_lossy().replacen(
        &digest.to_string(),
        &other_digest.to_string(),
        1,
    );
    std::fs::copy(&ours, ours.with_file_name(name)).expect("copied");
    let third = Sandbox::new(config, Script::unused()).expect("a sandbox");
    assert!(!third.is_ready(other_digest).await);
    assert!(third.is_ready(digest).await);
}
