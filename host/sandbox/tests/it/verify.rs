//! Blocks that are asked what became of their effects.

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, HttpResponse};
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{
    ComponentInspector as _, LogLevel, LogLine, StepRunner as _, VerifyEnd, VerifyJob, VerifyReport,
};
use counterfoil_domain::receipt::verification::{UnknownReceipt, Verdict};
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::port::{Act, Script};
use crate::run::model_call;
use crate::{LEASE, ROOMY, house, job};

fn question(component: Digest, limits: StepLimits) -> VerifyJob {
    let step = job(component);
    VerifyJob {
        execution: step.execution,
        component,
        receipt: UnknownReceipt {
            id: "eff_1".into(),
            kind: "http".into(),
            node: "outer/inner".into(),
            key: "charge".into(),
            idempotency_key: Some("key-ä".into()),
            request: r#"{"method":"POST"}"#.into(),
            sent_at_ms: 1_700_000_000_123,
        },
        place: step.place,
        started_at_ms: step.started_at_ms,
        seed: step.seed,
        limits,
    }
}

async fn ask(guest: &Guest) -> VerifyReport {
    let house = house(Script::unused());
    let component = house.prepared(guest).await;
    house.sandbox.verify(question(component, ROOMY)).await
}

fn says(text: &str) -> VerifyEnd {
    VerifyEnd::Said(Verdict::Inconclusive(text.into()))
}

#[tokio::test]
async fn a_block_is_told_every_field_of_the_receipt() {
    for (field, expected) in [
        ("id", "eff_1"),
        ("kind", "http"),
        ("node", "outer/inner"),
        ("key", "charge"),
        ("idempotency-key", "key-ä"),
        ("request", r#"{"method":"POST"}"#),
    ] {
        let body = format!("(call $say (local.get ${field}) (local.get ${field}-len))");
        assert_eq!(ask(&Guest::echo().verifying(&body)).await.end, says(expected), "{field}");
    }
    let body = "(if (i64.ne (local.get $sent-at) (i64.const 1700000000123)) (then (unreachable)))
                (if (i32.ne (local.get $has-idempotency-key) (i32.const 1)) (then (unreachable)))
                (call $say (local.get $id) (i32.const 0))";
    assert_eq!(ask(&Guest::echo().verifying(body)).await.end, says(""));
}

#[tokio::test]
async fn a_verdict_comes_back_as_it_was_given() {
    let mut guest = Guest::echo();
    let body = guest.text("{\"id\":1}");
    let (at, len) = body.split_once(") ").expect("two instructions");
    let applied = format!(
        "(i32.store8 (i32.const 600) (i32.const 0)) (i32.store8 (i32.const 604) (i32.const 0))
         (i32.store16 (i32.const 608) (i32.const 201))
         (i32.store (i32.const 612) (i32.const 0)) (i32.store (i32.const 616) (i32.const 0))
         (i32.store (i32.const 620) {at})) (i32.store (i32.const 624) {len})
         (i32.store8 (i32.const 628) (i32.const 1)) (i32.const 600)"
    );
    let answer = HttpResponse { status: 201, headers: vec![], body: b"{\"id\":1}".to_vec(), truncated: true };
    assert_eq!(
        ask(&guest.verifying(&applied)).await.end,
        VerifyEnd::Said(Verdict::Applied(Answer::Http(answer)))
    );
    let not_applied = "(i32.store8 (i32.const 600) (i32.const 1)) (i32.const 600)";
    let end = ask(&Guest::echo().verifying(not_applied)).await.end;
    assert_eq!(end, VerifyEnd::Said(Verdict::NotApplied));
}

/// Its calls go through the door of its own execution, and what stops there stops it.
#[tokio::test]
async fn its_calls_go_through_the_effect_port() {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    let body = format!("{perform} (call $say (local.get $key) (local.get $key-len))");
    let guest = Guest::echo().holding(&model_call()).verifying(&body);
    for (port, expected) in [(Script::emitted(), says("charge")), (Script::unused(), VerifyEnd::Stopped)] {
        let house = house(port.clone());
        let component = house.prepared(&guest).await;
        assert_eq!(house.sandbox.verify(question(component, ROOMY)).await.end, expected);
        assert_eq!(port.calls(), [(LEASE, model_call())]);
    }
}

#[tokio::test]
async fn it_is_bounded_like_a_step() {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    let waits = format!("{perform} (unreachable)");
    let short = StepLimits { cpu_ms_max: 50, wall_ms_max: 2_000, ..ROOMY };
    for (body, code) in [
        ("(unreachable)", Code::GuestTrap),
        ("(loop $again (br $again)) (unreachable)", Code::CpuLimit),
        (waits.as_str(), Code::WallLimit),
    ] {
        let house = house(Script::new(Act::Wait));
        let component = house.prepared(&Guest::echo().holding(&model_call()).verifying(body)).await;
        let report = house.sandbox.verify(question(component, short)).await;
        match report.end {
            VerifyEnd::Trapped { code: found, .. } => assert_eq!(found, code, "{body}"),
            end => panic!("{body}: {end:?}"),
        }
    }
}

#[tokio::test]
async fn its_log_is_kept() {
    let mut guest = Guest::echo();
    let text = guest.text("looking");
    let body = format!("(call $log (i32.const 4) {text}) (unreachable)");
    let report = ask(&guest.verifying(&body)).await;
    assert_eq!(report.logs, [LogLine { level: LogLevel::Error, message: "looking".into() }]);
}

#[tokio::test]
async fn whether_a_block_can_be_asked_is_known_from_its_upload() {
    let verifying = Guest::echo().verifying("(call $say (local.get $id) (i32.const 0))");
    for (guest, expected) in [(verifying, true), (Guest::echo(), false)] {
        let house = house(Script::unused());
        let inspection = house.sandbox.inspect(guest.build()).await.expect("accepted");
        assert_eq!(inspection.verifies(), expected);
    }
    let end = ask(&Guest::echo()).await.end;
    assert_eq!(end, says("the block exports no `verify`"));
}
