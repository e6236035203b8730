//! Blocks in other languages, built by `scripts/languages`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_domain::effect::{Answer, EffectFailure, EffectReply, EffectRequest, HttpResponse};
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{
    ComponentInspector as _, EffectPort, StepEnd, StepJob, StepReport, StepRunner as _,
};
use counterfoil_sandbox::{Allocation, Budget, Sandbox, SandboxConfig};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::{Value, json};

use crate::examples::{Journal, example, example_path};
use crate::port::{Act, Script};
use crate::{House, config, job};

/// The compiler of a test build is several times as slow as that of a release.
const ROOMY_BUDGET: Budget = Budget { cpu_s: 240, wall: Duration::from_mins(6), ..Budget::DEFAULT };

/// The component of a language's example, if it was built here. Where it must be there, its absence is an error.
fn built(name: &str) -> Option<Vec<u8>> {
    if example_path(name).exists() || std::env::var_os("COUNTERFOIL_LANGUAGES").is_some() {
        return Some(example(name));
    }
    eprintln!("{name} was not built here: run scripts/languages");
    None
}

fn roomy_house(effects: Arc<dyn EffectPort>, allocation: Allocation, budget: Budget) -> House {
    let cache = tempfile::tempdir().expect("a directory");
    let config = SandboxConfig { compile_budget: budget, allocation, ..config(cache.path()) };
    House { sandbox: Sandbox::new(config, effects).expect("a sandbox"), cache }
}

async fn ran(house: &House, component: Digest, input: &Value) -> StepReport {
    house.sandbox.run(StepJob { input: input.to_string(), ..job(component) }).await
}

/// A block that charges, whatever it is written in.
async fn charges_once(name: &str) {
    let Some(bytes) = built(name) else { return };
    let journal = Arc::new(Journal::default());
    let house = roomy_house(Arc::clone(&journal) as _, Allocation::OnDemand, ROOMY_BUDGET);
    let inspection = house.sandbox.inspect(bytes).await.unwrap_or_else(|refused| panic!("{name}: {refused}"));
    assert_eq!((inspection.descriptor.name.as_str(), inspection.descriptor.effects.len()), (name, 1));
    let order = json!({ "order": "o-ä", "cents": 5 });
    for stops_at in [None, Some(0), None] {
        journal.begin(stops_at);
        let report = ran(&house, inspection.digest, &order).await;
        let expected = match stops_at {
            None => json!({ "id": "ch_1" }),
            Some(_) => Value::Null,
        };
        let end = match report.end {
            StepEnd::Output(text) => serde_json::from_str(&text).expect("JSON"),
            StepEnd::Stopped => Value::Null,
            end => panic!("{name}: {end:?}"),
        };
        assert_eq!(end, expected, "{name}");
        let calls = journal.calls();
        let [call] = &calls[..] else { panic!("{name}: {calls:?}") };
        assert_eq!((call.key.as_deref(), call.connection.as_deref()), (Some("charge"), Some("payments")));
        let EffectRequest::Http(request) = &call.request else { panic!("{name}: {call:?}") };
        assert_eq!((request.method.as_str(), request.url.as_str()), ("POST", "/charges"));
        assert_eq!(serde_json::from_slice::<Value>(&request.body).expect("JSON"), order);
    }
    journal.begin(None);
    let report = ran(&house, inspection.digest, &json!({ "order": "o-1", "cents": "many" })).await;
    let failed = StepEnd::Failed {
        retry_after_ms: None,
        code: "bad_amount".into(),
        message: "many is no amount".into(),
    };
    assert_eq!((report.end, journal.calls().len()), (failed, 0), "{name}");
    // What the program did not foresee is a failure too, with a trace in the log.
    let report = ran(&house, inspection.digest, &Value::Null).await;
    let StepEnd::Failed { retry_after_ms: None, code, .. } = &report.end else {
        panic!("{name}: {report:?}")
    };
    assert_eq!((code.as_str(), report.logs.is_empty()), ("exception", false), "{name}");

    let refusing = |status| HttpResponse { status, headers: vec![], body: b"{}".to_vec(), truncated: false };
    for (status, retry_after_ms) in [(402, None), (429, Some(0))] {
        let script = Script::new(Act::Reply(EffectReply::Failed(EffectFailure::Rejected(refusing(status)))));
        // What was compiled above is found in the cache.
        let other = SandboxConfig { compile_budget: ROOMY_BUDGET, ..config(house.cache.path()) };
        let other = Sandbox::new(other, script).expect("a sandbox");
        let report = other.run(StepJob { input: order.to_string(), ..job(inspection.digest) }).await;
        let StepEnd::Failed { retry_after_ms: given, code, message } = &report.end else {
            panic!("{report:?}")
        };
        assert_eq!((given, code.as_str()), (&retry_after_ms, "rejected"), "{name}");
        assert!(message.contains(&status.to_string()), "{name}: {message}");
    }
}

#[tokio::test]
async fn a_block_in_javascript_charges_once() {
    charges_once("js-charge").await;
}

#[tokio::test]
async fn a_block_that_knows_nothing_but_fetch_charges_once() {
    charges_once("fetch-charge").await;
}

#[tokio::test]
async fn a_block_in_python_charges_once() {
    charges_once("python-charge").await;
}

/// One line for each language: what a block of it costs.
#[tokio::test]
#[ignore = "prints a table; says something only on a quiet machine"]
async fn the_language_table() {
    const RUNS: u32 = 50;
    println!(
        "| block | component | compile, CPU | instantiate | first step | a step after that |\n|---|---:|---:|---:|---:|---:|"
    );
    for name in ["charge-card", "plain-charge", "js-charge", "fetch-charge", "python-charge"] {
        let Some(bytes) = built(name) else { continue };
        let charged = HttpResponse {
            status: 201,
            headers: vec![],
            body: br#"{"id":"ch_1"}"#.to_vec(),
            truncated: false,
        };
        let script = Script::new(Act::Reply(EffectReply::Answered(Answer::Http(charged))));
        let house = roomy_house(script, Allocation::Pooled, ROOMY_BUDGET);
        let instantiate = instantiation(&bytes).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (digest, bytes_len) = (Digest::of(&bytes), bytes.len());
        let before = child_cpu_ms();
        house.sandbox.prepare(digest, bytes).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let compile_ms = child_cpu_ms() - before;
        let order = json!({ "order": "o-1", "cents": 5 });
        let mut taken = Vec::new();
        for _ in 0..=RUNS {
            let begun = Instant::now();
            let report = ran(&house, digest, &order).await;
            taken.push(begun.elapsed());
            assert!(matches!(report.end, StepEnd::Output(_)), "{name}: {report:?}");
        }
        let first = taken.remove(0);
        taken.sort_unstable();
        println!(
            "| {name} | {} kB | {} ms | {:.2} ms | {:.1} ms | {:.2} ms |",
            bytes_len / 1_000,
            compile_ms,
            instantiate.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            taken[taken.len() / 2].as_secs_f64() * 1e3,
        );
    }
}

/// What a bare runtime takes to make an instance of the component and drop it: the median.
async fn instantiation(bytes: &[u8]) -> wasmtime::Result<Duration> {
    const INSTANCES: usize = 51;
    let engine = wasmtime::Engine::default();
    let component = wasmtime::component::Component::new(&engine, bytes)?;
    let mut linker = wasmtime::component::Linker::<()>::new(&engine);
    // Nothing is called.
    linker.define_unknown_imports_as_traps(&component)?;
    let ready = linker.instantiate_pre(&component)?;
    let mut taken = Vec::with_capacity(INSTANCES);
    for _ in 0..INSTANCES {
        let begun = Instant::now();
        let mut store = wasmtime::Store::new(&engine, ());
        ready.instantiate_async(&mut store).await?;
        drop(store);
        taken.push(begun.elapsed());
    }
    taken.sort_unstable();
    Ok(taken[INSTANCES / 2])
}

/// CPU of the children that have ended.
fn child_cpu_ms() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a number");
    usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds()
}
