use std::time::{Duration, Instant};

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectReply};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{StepEnd, StepJob, StepRunner};
use counterfoil_sandbox::{Allocation, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::port::{Act, Script};
use crate::run::model_call;
use crate::{House, ROOMY, config, house, job, output, run, run_within, trapped};

const PAGE: u64 = 64 << 10;
/// How late a limit may be seen on a machine that does much else.
const SLACK: Duration = Duration::from_secs(5);

const DONE: &str = "(call $ok (i32.const 0) (i32.const 0))";

#[tokio::test]
async fn memory_is_granted_to_its_limit_over_both_memories_and_refused_one_page_over() {
    // The main memory starts with two pages.
    for (main, other, granted) in
        [(4, 4, true), (0, 8, true), (8, 0, true), (4, 5, false), (0, 9, false), (0, 60_000, false)]
    {
        let body = format!(
            "(if (i32.lt_s (memory.grow (i32.const {main})) (i32.const 0)) (then (unreachable)))
             (if (i32.lt_s (call $grow-other-memory (i32.const {other})) (i32.const 0)) (then (unreachable))) {DONE}"
        );
        let report =
            run_within(&Guest::running(body), StepLimits { memory_bytes_max: 10 * PAGE, ..ROOMY }).await;
        if granted {
            assert_eq!(report.end, output(""), "{main} {other}");
            assert_eq!(report.memory_bytes_peak, 10 * PAGE);
        } else {
            let (code, message) = trapped(&report);
            let wanted = format!("it asked for {} bytes", (2 + main + other) * PAGE);
            assert!(code == Code::MemoryLimit && message.contains(&wanted), "{code}: {message}");
        }
    }
}

#[tokio::test]
async fn a_guest_that_bears_a_refusal_goes_on() {
    let body = format!("(drop (memory.grow (i32.const 9))) {DONE}");
    let report = run_within(&Guest::running(body), StepLimits { memory_bytes_max: 10 * PAGE, ..ROOMY }).await;
    assert_eq!(report.end, output(""));
}

#[tokio::test]
async fn memory_that_is_asked_for_again_and_again_stays_within_the_sum() {
    // Growth beyond the memory's own type fails without having been granted, and gives nothing back.
    let body = "(local $i i32)
        (loop $again
          (drop (memory.grow (i32.const 1)))
          (drop (memory.grow (i32.const 65536)))
          (drop (call $grow-other-memory (i32.const 65536)))
          (drop (call $grow-other-memory (i32.const 1)))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $again (i32.lt_u (local.get $i) (i32.const 100))))
        (call $ok (i32.const 0) (i32.const 0))";
    let report = run_within(&Guest::running(body), StepLimits { memory_bytes_max: 10 * PAGE, ..ROOMY }).await;
    assert_eq!((report.end, report.memory_bytes_peak), (output(""), 10 * PAGE));
}

#[tokio::test]
async fn a_block_whose_memory_does_not_fit_from_the_start_is_told_so() {
    let report = run_within(&Guest::echo(), StepLimits { memory_bytes_max: PAGE, ..ROOMY }).await;
    assert_eq!(trapped(&report).0, Code::MemoryLimit);
}

#[tokio::test]
async fn tables_grow_to_their_limit_and_not_one_element_over() {
    for (elements, granted) in [(100, true), (101, false), (4_000_000_000_u32, false)] {
        let body = format!(
            "(if (i32.lt_s (call $grow-table (i32.const {elements})) (i32.const 0)) (then (unreachable))) {DONE}"
        );
        for allocation in [Allocation::OnDemand, Allocation::Pooled] {
            let cache = tempfile::tempdir().expect("a directory");
            let limits = StepLimits { table_elements_max: 100, ..ROOMY };
            let config = SandboxConfig { allocation, limits, ..config(cache.path()) };
            let sandbox = Sandbox::new(config, Script::unused()).expect("a sandbox");
            let report = House { sandbox, cache }.run(&Guest::running(&body)).await;
            if granted {
                assert_eq!(report.end, output(""), "{allocation:?}");
            } else {
                assert_eq!(trapped(&report).0, Code::MemoryLimit, "{allocation:?}: {elements}");
            }
        }
    }
}

#[tokio::test]
async fn a_guest_that_does_not_end_is_ended_wherever_it_loops() {
    let endless = "(loop $for-ever (br $for-ever)) (unreachable)";
    let fill = format!(
        "(drop (call $grow-other-memory (i32.const 500))) (loop $again (call $fill (i32.const {})) (br $again)) (unreachable)",
        500 * PAGE
    );
    let limits = StepLimits { cpu_ms_max: 50, ..ROOMY };
    for (name, guest) in [
        ("run", Guest::running(endless)),
        ("start", Guest::echo().with(&format!("(func $start {endless}) (start $start)"))),
        ("realloc", Guest::echo().reallocating(endless)),
        ("memory.fill", Guest::running(fill)),
        (
            "calls of the host",
            Guest::running("(loop $again (drop (call $started-at)) (br $again)) (unreachable)"),
        ),
    ] {
        let house = house(Script::unused());
        let component = house.prepared(&guest).await;
        let started = Instant::now();
        let report = house.sandbox.run(StepJob { limits, ..job(component) }).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::CpuLimit && message.contains("50 ms"), "{name}: {code}: {message}");
        assert!(
            report.cpu_ms >= 50 && started.elapsed() < Duration::from_millis(50) + SLACK,
            "{name}: {report:?}"
        );
    }
}

#[tokio::test]
async fn a_guest_that_computes_lets_others_have_their_turn() {
    // One thread: without the yields, the echo would wait for the other's two seconds.
    let house = house(Script::unused());
    let echo = house.prepared(&Guest::echo()).await;
    let endless = house.prepared(&Guest::running("(loop $for-ever (br $for-ever)) (unreachable)")).await;
    let limits = StepLimits { cpu_ms_max: 2_000, ..ROOMY };
    let mut endless = std::pin::pin!(house.sandbox.run(StepJob { limits, ..job(endless) }));
    tokio::select! {
        biased;
        report = &mut endless => panic!("{report:?} came first"),
        report = house.sandbox.run(job(echo)) => assert_eq!(report.end, output("{}")),
    }
}

#[tokio::test]
async fn waiting_for_an_answer_uses_no_cpu() {
    let wait = Duration::from_millis(150);
    let answer = EffectReply::Answered(Answer::Emitted);
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    let guest = Guest::running(perform.repeat(3) + DONE).holding(&model_call());
    let house = house(Script::new(Act::ReplyAfter(wait, answer)));
    let started = Instant::now();
    let report = house.run_within(&guest, StepLimits { cpu_ms_max: 200, ..ROOMY }).await;
    assert_eq!(report.end, output(""));
    assert!(started.elapsed() >= 3 * wait && report.cpu_ms < 200, "{report:?}");
}

#[tokio::test]
async fn the_wall_limit_ends_a_wait_and_a_computation_alike() {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    for body in [perform.clone() + DONE, "(loop $for-ever (br $for-ever)) (unreachable)".into()] {
        let mut guest = Guest::echo();
        let line = guest.text("begins");
        let guest =
            guest.running_instead(format!("(call $log (i32.const 2) {line}) {body}")).holding(&model_call());
        let house = house(Script::new(Act::Wait));
        let component = house.prepared(&guest).await;
        let started = Instant::now();
        let limits = StepLimits { wall_ms_max: 100, ..ROOMY };
        let report = house.sandbox.run(StepJob { limits, ..job(component) }).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::WallLimit && message.contains("100 ms"), "{code}: {message}");
        assert!(started.elapsed() < Duration::from_millis(100) + SLACK);
        assert_eq!(report.logs.len(), 1, "what was logged before is kept");
    }
}

#[tokio::test]
async fn a_recursion_without_end_meets_the_stack_limit() {
    let guest = Guest::running("(call $deeper (i32.const 0))")
        .with("(func $deeper (param i32) (result i32) (i32.add (call $deeper (local.get 0)) (i32.const 1)))");
    let report = run(&guest).await;
    let (code, message) = trapped(&report);
    assert!(code == Code::StackLimit && message.contains("512 KiB"), "{code}: {message}");
    assert_eq!(message.matches("\n  at deeper").count(), 20, "{message}");
}

#[tokio::test]
async fn an_output_is_whole_at_its_limit_and_refused_beyond() {
    let limits = StepLimits { output_bytes_max: 1_000, ..ROOMY };
    // The last one is also beyond what may be copied out of a guest at all.
    for (len, granted) in [(1_000, true), (1_001, false), (20 << 20, false)] {
        let pages = (len >> 16) + 1;
        let body = format!(
            "(drop (memory.grow (i32.const {pages})))
             (memory.fill (i32.const 65536) (i32.const 120) (i32.const {len}))
             (call $ok (i32.const 65536) (i32.const {len}))"
        );
        let report = run_within(&Guest::running(body), limits).await;
        if granted {
            assert_eq!(report.end, output(&"x".repeat(len)));
        } else {
            let (code, message) = trapped(&report);
            assert!(
                code == Code::OutputTooLarge && message.contains("1000 bytes"),
                "{len}: {code}: {message}"
            );
        }
    }
}

#[tokio::test]
async fn logs_end_at_their_lines_and_at_their_bytes() {
    let limits = StepLimits { log_bytes_max: 100, log_lines_max: 10, ..ROOMY };
    let flood = |lines: u32, len: u32| {
        Guest::running(format!(
            "(local $i i32)
             (memory.fill (i32.const 65536) (i32.const 120) (i32.const {len}))
             (loop $again
               (call $log (i32.const 2) (i32.const 65536) (i32.const {len}))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $i) (i32.const {lines}))))
             {DONE}"
        ))
    };
    for (lines, len, kept, bytes, truncated) in [
        (10, 10, 10, 100, false),
        (11, 1, 10, 10, true),
        (2, 51, 2, 100, true),
        (100_000, 60_000, 1, 100, true),
    ] {
        let report = run_within(&flood(lines, len), limits).await;
        assert_eq!(report.end, output(""));
        let sum: usize = report.logs.iter().map(|line| line.message.len()).sum();
        assert_eq!(
            (report.logs.len(), sum, report.logs_truncated),
            (kept, bytes, truncated),
            "{lines} × {len}"
        );
    }
}

#[tokio::test]
async fn what_one_call_copies_out_of_the_guest_is_bounded() {
    // A list of slices that all alias one text: small in the guest, large in the host.
    let aliasing = |len: u32, count: u32| {
        format!(
            "(local $i i32)
             (drop (memory.grow (i32.const 40)))
             (loop $again
               (i32.store offset=131072 (i32.shl (local.get $i) (i32.const 3)) (i32.const 65536))
               (i32.store offset=131076 (i32.shl (local.get $i) (i32.const 3)) (i32.const {len}))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $i) (i32.const {}))))
             (i32.store (i32.const {}) (i32.const 131072))
             (i32.store (i32.const {}) (i32.const {count}))
             (call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))
             {DONE}",
            count * 2,
            EFFECT_AT + 96,
            EFFECT_AT + 100,
        )
    };
    for (len, count, granted) in [(1_000, 1_000, true), (50_000, 1_000, false)] {
        let script = Script::emitted();
        let report =
            house(script.clone()).run(&Guest::running(aliasing(len, count)).holding(&model_call())).await;
        if granted {
            assert_eq!((report.end, script.calls().len()), (output(""), 1));
        } else {
            assert_eq!(trapped(&report).0, Code::GuestTrap);
            assert_eq!(script.calls().len(), 0, "nothing of it reached the port");
        }
    }
}

#[tokio::test]
async fn handles_end_at_their_number() {
    for (handles, granted) in [(1_000, true), (1_001, false), (100_000, false)] {
        let body = format!(
            "(local $i i32)
             (loop $again
               (drop (call $new (local.get $i)))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $i) (i32.const {handles}))))
             {DONE}"
        );
        let report = run(&Guest::running(body).making_handles()).await;
        if granted {
            assert_eq!(report.end, output(""));
        } else {
            assert_eq!(trapped(&report).0, Code::GuestTrap, "{handles}");
        }
    }
}

#[tokio::test]
async fn random_bytes_are_bounded_by_the_call() {
    let random =
        |len: u32| Guest::running(format!("(call $random (i32.const {len}) (i32.const 600)) {DONE}"));
    assert_eq!(run(&random(64 << 10)).await.end, output(""));
    for len in [(64 << 10) + 1, u32::MAX] {
        let report = run(&random(len)).await;
        let (code, message) = trapped(&report);
        assert!(code == Code::GuestTrap && message.contains("random bytes"), "{code}: {message}");
    }
}

#[tokio::test]
async fn a_job_cannot_widen_the_operators_limits() {
    let cache = tempfile::tempdir().expect("a directory");
    let limits = StepLimits { output_bytes_max: 10, ..ROOMY };
    let config = SandboxConfig { limits, ..config(cache.path()) };
    let sandbox = Sandbox::new(config, Script::unused()).expect("a sandbox");
    let house = House { sandbox, cache };
    let component = house.prepared(&Guest::echo()).await;
    for (input, granted) in [("1234567890", true), ("12345678901", false)] {
        let report = house.sandbox.run(StepJob { input: input.into(), ..job(component) }).await;
        assert_eq!(matches!(report.end, StepEnd::Output(_)), granted, "{report:?}");
    }
}

#[tokio::test]
async fn a_step_without_a_slot_waits_for_one_and_no_longer_than_its_wall_limit() {
    for allocation in [Allocation::OnDemand, Allocation::Pooled] {
        let cache = tempfile::tempdir().expect("a directory");
        let config = SandboxConfig { allocation, ..config(cache.path()) };
        let sandbox = Sandbox::new(config, Script::new(Act::Wait)).expect("a sandbox");
        let house = House { sandbox, cache };
        let echo = house.prepared(&Guest::echo()).await;
        let waiting = house.prepared(&Guest::performing(&model_call(), DONE)).await;
        let within = |wall_ms_max| StepLimits { wall_ms_max, ..ROOMY };
        let (waited, refused, ran) = tokio::join!(
            house.sandbox.run(StepJob { limits: within(300), ..job(waiting) }),
            house.sandbox.run(StepJob { limits: within(50), ..job(echo) }),
            house.sandbox.run(job(echo)),
        );
        assert_eq!(trapped(&waited).0, Code::WallLimit);
        assert!(matches!(refused.end, StepEnd::Unavailable { .. }), "{refused:?}");
        assert_eq!(ran.end, output("{}"), "the slot was given back");
    }
}
