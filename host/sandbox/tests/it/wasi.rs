//! What programs find that were written for WASI 0.2.

use std::time::{Duration, Instant};

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectReply, EffectRequest, HttpResponse};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{LogLevel, LogLine, StepEnd, StepJob, StepReport, StepRunner as _};
use serde_json::{Value, json};

use crate::port::{Act, Script};
use crate::{ROOMY, house, job, output, trapped};

async fn done(deed: Value) -> StepReport {
    done_within(deed, ROOMY).await
}

async fn done_within(deed: Value, limits: StepLimits) -> StepReport {
    let house = house(Script::unused());
    let component = house.prepared_example("virtual-wasi").await;
    house.sandbox.run(StepJob { input: deed.to_string(), limits, ..job(component) }).await
}

#[tokio::test]
async fn a_program_sees_its_job_and_nothing_of_the_machine() {
    let created = HttpResponse { status: 201, headers: vec![], body: vec![], truncated: false };
    let script = Script::new(Act::Reply(EffectReply::Answered(Answer::Http(created))));
    let house = house(script.clone());
    let component = house.prepared_example("virtual-wasi").await;
    let mut seen = vec![];
    for (seed, started_at_ms) in [([7; 32], 1_700_000_000_123), ([7; 32], 1_700_000_000_123), ([8; 32], 5)] {
        let job = StepJob { input: json!("look").to_string(), seed, started_at_ms, ..job(component) };
        let StepEnd::Output(text) = house.sandbox.run(job).await.end else { panic!("it looks") };
        seen.push(serde_json::from_str::<Value>(&text).expect("JSON"));
    }
    assert_eq!(seen[0], seen[1]);
    let bodies: Vec<_> = script
        .calls()
        .into_iter()
        .map(|(_, call)| match call.request {
            EffectRequest::Http(request) => request.body,
            request => panic!("{request:?}"),
        })
        .collect();
    assert!(bodies[0] == bodies[1] && bodies[0] != bodies[2]);

    // Every source of randomness is a stream of its own, and the seed is behind all of them.
    let sources = ["random", "insecure", "context", "seed", "random-u64", "insecure-u64"];
    let drawn: Vec<Value> =
        seen.iter().skip(1).flat_map(|seen| sources.iter().map(|source| seen[*source].clone())).collect();
    for (index, one) in drawn.iter().enumerate() {
        assert!(!drawn[..index].contains(one), "{one} twice in {drawn:?}");
    }
    let mut rest = seen[0].clone();
    for source in sources {
        rest.as_object_mut().expect("an object").remove(source);
    }
    assert_eq!(
        rest,
        json!({
            "arguments": [],
            "variables": [],
            "directory": null,
            "preopens": 0,
            "terminal": false,
            "input": { "Err": "StreamError::Closed" },
            "wall": [[1_700_000_000, 123_000_000], [1_700_000_000, 123_000_000]],
            "monotonic": [1_000_000, 2_000_000],
            "ready": [1, 2],
            "tcp": "access-denied",
            "udp": "access-denied",
            "name": "access-denied",
        })
    );
}

#[tokio::test]
async fn what_a_program_prints_are_lines_of_the_steps_log() {
    let report = done(json!("print")).await;
    let line = |level, message: &str| LogLine { level, message: message.into() };
    assert_eq!(report.end, output("null"));
    assert_eq!(
        report.logs,
        [
            line(LogLevel::Info, "one"),
            line(LogLevel::Warn, "careful"),
            line(LogLevel::Debug, "from the contract"),
            line(LogLevel::Info, "two"),
            line(LogLevel::Info, "three"),
        ]
    );
}

#[tokio::test]
async fn sleeping_takes_its_time_and_a_loop_that_waits_for_the_clock_ends() {
    let begun = Instant::now();
    assert_eq!(done(json!({ "sleep": { "ms": 50 } })).await.end, output("51000000"));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(done(json!({ "spin": { "ms": 1_000 } })).await.end, output("999"));
}

#[tokio::test]
async fn exiting_is_a_failure_with_its_status() {
    for (deed, reason) in [
        (json!({ "exit": { "code": 1 } }), "it exited with status 1"),
        (json!("exit-well"), "it exited with status 0"),
    ] {
        let report = done(deed).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::GuestExit && message.contains(reason), "{code}: {message}");
    }
}

#[tokio::test]
async fn what_no_host_can_give_ends_the_program_at_once() {
    for (deed, reason) in [
        (json!({ "random": { "bytes": u64::MAX } }), "random bytes at once"),
        (json!({ "random": { "bytes": (64 << 10) + 1 } }), "random bytes at once"),
        (json!({ "zeroes": { "bytes": u64::MAX } }), "zeroes at once"),
        (json!("wait-for-nothing"), "waits for what can never be there"),
        (json!("flood-handles"), "no free keys"),
        (json!("flood-pollables"), "no free keys"),
    ] {
        let report = done(deed).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::GuestTrap && message.contains(reason), "{code}: {message}");
    }
    assert_eq!(done(json!({ "random": { "bytes": 64 << 10 } })).await.end, output("65536"));
}

#[tokio::test]
async fn floods_end_at_the_steps_limits_and_leave_a_bounded_log() {
    let limits = StepLimits { cpu_ms_max: 200, ..ROOMY };
    for deed in ["flood-output", "flood-lines", "flood-polls"] {
        let report = done_within(json!(deed), limits).await;
        assert_eq!(trapped(&report).0, Code::CpuLimit, "{deed}");
        let bytes: usize = report.logs.iter().map(|line| line.message.len()).sum();
        let bounded =
            bytes as u64 <= limits.log_bytes_max && report.logs.len() as u64 <= limits.log_lines_max;
        assert!(bounded, "{deed}: {} lines, {bytes} bytes", report.logs.len());
        assert_eq!(report.logs_truncated, deed != "flood-polls", "{deed}");
    }
    for deed in [json!("flood-naps"), json!({ "sleep": { "ms": u64::MAX } })] {
        let limits = StepLimits { wall_ms_max: 100, ..ROOMY };
        assert_eq!(trapped(&done_within(deed, limits).await).0, Code::WallLimit);
    }
}
