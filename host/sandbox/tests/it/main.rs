//! The sandbox with real components: what they may do, where they end, and what is said about it.

mod cache;
mod commands;
mod compile;
mod effects;
mod examples;
mod faults;
mod http;
mod languages;
mod limits;
mod port;
mod processes;
mod run;
mod runner;
mod speed;
mod traps;
mod uploads;
mod verify;
mod wasi;

use std::path::Path;
use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, LeaseId, LineageId, Place};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{EffectPort, StepEnd, StepJob, StepReport, StepRunner};
use counterfoil_sandbox::{Allocation, Budget, Guests, Program, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;
use tempfile::TempDir;
use uuid::Uuid;

use port::Script;

const LEASE: LeaseId = LeaseId(Uuid::from_u128(0x01));

/// Far more than any guest here needs, so that a slow machine does not decide a test.
const ROOMY: StepLimits = StepLimits { cpu_ms_max: 20_000, wall_ms_max: 60_000, ..StepLimits::DEFAULT };

/// A sandbox with a cache of its own.
struct House {
    sandbox: Sandbox,
    cache: TempDir,
}

fn house(effects: Arc<dyn EffectPort>) -> House {
    let cache = tempfile::tempdir().expect("a directory");
    House { sandbox: sandbox(cache.path(), Allocation::OnDemand, effects), cache }
}

fn sandbox(cache_dir: &Path, allocation: Allocation, effects: Arc<dyn EffectPort>) -> Sandbox {
    let config = SandboxConfig { allocation, slots: 4, ..config(cache_dir) };
    Sandbox::new(config, effects).expect("a sandbox")
}

fn config(cache_dir: &Path) -> SandboxConfig {
    SandboxConfig {
        cache_dir: cache_dir.into(),
        cache_bytes_max: u64::MAX,
        allocation: Allocation::OnDemand,
        slots: 1,
        limits: ROOMY,
        guests: Guests::Here,
        program: Program { path: env!("CARGO_BIN_EXE_counterfoil-child").into() },
        compile_budget: Budget::DEFAULT,
        heard_on: None,
    }
}

fn job(component: Digest) -> StepJob {
    StepJob {
        execution: LEASE,
        component,
        input: "{}".into(),
        place: Place {
            lineage: LineageId(Uuid::from_u128(0x02)),
            node: "outer/inner".into(),
            iteration: vec![3, 1],
        },
        started_at_ms: 1_700_000_000_000,
        seed: [7; 32],
        limits: ROOMY,
        losses: 0,
    }
}

impl House {
    async fn prepared(&self, guest: &Guest) -> Digest {
        let bytes = guest.build();
        let digest = Digest::of(&bytes);
        self.sandbox.prepare(digest, bytes).await.expect("the block is accepted");
        digest
    }

    async fn run(&self, guest: &Guest) -> StepReport {
        self.run_within(guest, ROOMY).await
    }

    async fn run_within(&self, guest: &Guest, limits: StepLimits) -> StepReport {
        let job = StepJob { limits, ..job(self.prepared(guest).await) };
        self.sandbox.run(job).await
    }
}

/// Runs a block that makes no call.
async fn run(guest: &Guest) -> StepReport {
    house(Script::unused()).run(guest).await
}

async fn run_within(guest: &Guest, limits: StepLimits) -> StepReport {
    house(Script::unused()).run_within(guest, limits).await
}

fn output(text: &str) -> StepEnd {
    StepEnd::Output(text.into())
}

/// The code and text of a trap.
#[track_caller]
fn trapped(report: &StepReport) -> (Code, &str) {
    match &report.end {
        StepEnd::Trapped { code, message } => (*code, message),
        end => panic!("{end:?} is no trap"),
    }
}
