use counterfoil_domain::effect::{EffectCall, EffectRequest};
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX};
use counterfoil_domain::ports::{LogLevel, LogLine, StepEnd, StepJob, StepRunner};
use counterfoil_sandbox::Allocation;
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::port::Script;
use crate::{House, house, job, output, run, sandbox};

/// The offsets of a model call's text in a lowered effect: its request's case, then address and length.
pub(crate) const MODEL_TEXT_AT: u32 = EFFECT_AT + 4;

pub(crate) fn model_call() -> EffectCall {
    EffectCall {
        request: EffectRequest::Model("{}".into()),
        key: None,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: Vec::new(),
    }
}

#[tokio::test]
async fn a_block_turns_its_input_into_its_output_in_either_form_of_allocation() {
    for allocation in [Allocation::OnDemand, Allocation::Pooled] {
        let cache = tempfile::tempdir().expect("a directory");
        let sandbox = sandbox(cache.path(), allocation, Script::unused());
        let house = House { sandbox, cache };
        let component = house.prepared(&Guest::echo()).await;
        for input in ["", "{}", "\"ä→𝄞\"", &"x".repeat(200_000)] {
            let report = house.sandbox.run(StepJob { input: input.into(), ..job(component) }).await;
            assert_eq!(report.end, output(input), "{allocation:?}");
            assert!(report.memory_bytes_peak >= 2 << 16, "{report:?}");
            assert_eq!((report.logs, report.logs_truncated), (Vec::new(), false));
        }
    }
}

#[tokio::test]
async fn every_execution_starts_from_nothing() {
    let body = "(global.set $runs (i32.add (global.get $runs) (i32.const 1)))
                (i32.store8 (i32.const 512) (i32.add (i32.load8_u (i32.const 512)) (global.get $runs)))
                (i32.store8 (i32.const 513) (i32.add (i32.load8_u (i32.const 512)) (i32.const 48)))
                (call $ok (i32.const 513) (i32.const 1))";
    let house = house(Script::unused());
    let component =
        house.prepared(&Guest::running(body).with("(global $runs (mut i32) (i32.const 0))")).await;
    for _ in 0..3 {
        assert_eq!(house.sandbox.run(job(component)).await.end, output("1"));
    }
}

#[tokio::test]
async fn a_blocks_own_failure_is_told_apart_bounded_and_escaped() {
    let long = "m".repeat(2 * ERROR_TEXT_BYTES_MAX);
    for (code, message, is_permanent, delay, expected) in [
        ("no_funds", "declined", 1, -1, (None, "no_funds", "declined")),
        ("busy", "later", 0, -1, (Some(0), "busy", "later")),
        ("busy", "in a second", 0, 1_000, (Some(1_000), "busy", "in a second")),
        ("\u{1b}[1m", "a\0b", 1, -1, (None, "\\u{1b}[1m", "a\\u{0}b")),
    ] {
        let report = run(&failing(code, message, is_permanent, delay)).await;
        let (retry_after_ms, code, message) = expected;
        assert_eq!(
            report.end,
            StepEnd::Failed { retry_after_ms, code: code.into(), message: message.into() }
        );
    }
    let StepEnd::Failed { code, message, .. } = run(&failing(&long, &long, 1, -1)).await.end else {
        panic!("it fails");
    };
    assert!(code.len() <= NAME_BYTES_MAX && code.ends_with('…'), "{}", code.len());
    assert!(message.len() <= ERROR_TEXT_BYTES_MAX && message.ends_with('…'), "{}", message.len());
}

fn failing(code: &str, message: &str, is_permanent: u8, delay: i64) -> Guest {
    let mut guest = Guest::echo();
    let (code, message) = (guest.text(code), guest.text(message));
    let body = format!("(call $failed (i32.const {is_permanent}) {code} {message} (i64.const {delay}))");
    guest.running_instead(body)
}

#[tokio::test]
async fn a_block_knows_its_place_and_its_time_from_the_job_alone() {
    // `place` gives lineage, node and iteration, each as address and length.
    for (at, expected) in [(600, "lin_00000000000000000000000002"), (608, "outer/inner")] {
        let body = format!(
            "(call $place (i32.const 600)) (call $ok (i32.load (i32.const {at})) (i32.load (i32.const {})))",
            at + 4
        );
        assert_eq!(run(&Guest::running(body)).await.end, output(expected));
    }
    let iteration = "(call $place (i32.const 600))
        (if (i32.ne (i32.load (i32.const 620)) (i32.const 2)) (then (unreachable)))
        (if (i32.ne (i32.load (i32.load (i32.const 616))) (i32.const 3)) (then (unreachable)))
        (if (i32.ne (i32.load offset=4 (i32.load (i32.const 616))) (i32.const 1)) (then (unreachable)))
        (if (i64.ne (call $started-at) (i64.const 1700000000000)) (then (unreachable)))
        (call $ok (i32.const 0) (i32.const 0))";
    assert_eq!(run(&Guest::running(iteration)).await.end, output(""));
}

#[tokio::test]
async fn random_bytes_follow_from_the_seed_alone() {
    // Spread over two calls and made readable, they are sent as the text of a model call.
    let body = format!(
        "(local $i i32)
         (call $random (i32.const 8) (i32.const 600))
         (call $random (i32.const 8) (i32.const 608))
         (memory.copy (i32.const 640) (i32.load (i32.const 600)) (i32.const 8))
         (memory.copy (i32.const 648) (i32.load (i32.const 608)) (i32.const 8))
         (loop $next
           (i32.store8 offset=640 (local.get $i)
             (i32.add (i32.const 48) (i32.and (i32.load8_u offset=640 (local.get $i)) (i32.const 63))))
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br_if $next (i32.lt_u (local.get $i) (i32.const 16))))
         (i32.store (i32.const {MODEL_TEXT_AT}) (i32.const 640))
         (i32.store (i32.const {}) (i32.const 16))
         (call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))
         (call $ok (i32.const 0) (i32.const 0))",
        MODEL_TEXT_AT + 4
    );
    let script = Script::emitted();
    let house = house(script.clone());
    let component = house.prepared(&Guest::running(body).holding(&model_call())).await;
    for seed in [[7; 32], [7; 32], [8; 32]] {
        assert_eq!(house.sandbox.run(StepJob { seed, ..job(component) }).await.end, output(""));
    }
    let texts: Vec<_> = script.calls().into_iter().map(|(_, call)| call.request).collect();
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
}

#[tokio::test]
async fn logged_lines_come_with_the_report_however_the_step_ends() {
    let lines = [(LogLevel::Trace, "starts"), (LogLevel::Error, "\u{1b}[31mred"), (LogLevel::Info, "")];
    for (ending, is_output) in [("(call $ok (i32.const 0) (i32.const 0))", true), ("(unreachable)", false)] {
        let mut guest = Guest::echo();
        let calls = lines.iter().fold(String::new(), |calls, (level, line)| {
            calls + &format!("(call $log (i32.const {}) {})", *level as u8, guest.text(line))
        });
        let report = run(&guest.running_instead(calls + ending)).await;
        assert_eq!(matches!(report.end, StepEnd::Output(_)), is_output, "{:?}", report.end);
        let expected =
            [(LogLevel::Trace, "starts"), (LogLevel::Error, "\\u{1b}[31mred"), (LogLevel::Info, "")]
                .map(|(level, message)| LogLine { level, message: message.into() });
        assert_eq!((report.logs, report.logs_truncated), (expected.to_vec(), false));
    }
}
