use counterfoil_domain::code::Code;
use counterfoil_domain::limits::ERROR_TEXT_BYTES_MAX;
use counterfoil_domain::ports::StepRunner;
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::port::Script;
use crate::run::model_call;
use crate::{house, job, output, run, trapped};

#[tokio::test]
async fn a_trap_says_what_happened_and_where() {
    let guest = Guest::running("(call $charge)").with("(func $charge (result i32) (unreachable))");
    let report = run(&guest).await;
    let (code, message) = trapped(&report);
    assert_eq!(code, Code::GuestTrap);
    assert_eq!(
        message,
        "the block was ended: wasm trap: wasm `unreachable` instruction executed\n  at charge\n  at run"
    );
}

#[tokio::test]
async fn names_and_texts_of_a_guest_are_escaped_and_bounded() {
    let long = "n".repeat(72_000);
    for (name, shown) in
        [("\\1b[31mred", "  at \\u{1b}[31mred\n"), ("a\\nb", "  at a b\n"), (&long, "nnn…\n")]
    {
        let function = format!("(func $f (@name \"{name}\") (param i32) (result i32)
            (if (i32.eqz (local.get 0)) (then (unreachable))) (call $f (i32.sub (local.get 0) (i32.const 1))))");
        let report = run(&Guest::running("(call $f (i32.const 30))").with(&function)).await;
        let (code, message) = trapped(&report);
        assert_eq!(code, Code::GuestTrap);
        assert!(message.contains(shown), "{message}");
        assert!(message.len() <= ERROR_TEXT_BYTES_MAX && message.lines().count() <= 21, "{message}");
        assert!(message.chars().all(|character| character == '\n' || !character.is_control()), "{message:?}");
    }
}

#[tokio::test]
async fn values_that_break_the_contract_are_the_guests_fault() {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    for (name, body) in [
        (
            "not UTF-8",
            "(i32.store8 (i32.const 600) (i32.const 255)) (call $ok (i32.const 600) (i32.const 1))"
                .to_owned(),
        ),
        ("a text outside", "(call $ok (i32.const -16) (i32.const 4))".into()),
        ("a length outside", "(call $ok (i32.const 0) (i32.const -1))".into()),
        ("a result outside", "(i32.const -16)".into()),
        ("a result unaligned", "(i32.const 17)".into()),
        ("no such case", "(i32.store8 (i32.const 16) (i32.const 9)) (i32.const 16)".into()),
        (
            "no such request",
            format!("(i32.store8 (i32.const {EFFECT_AT}) (i32.const 77)) {perform} (unreachable)"),
        ),
        (
            "no such option",
            format!("(i32.store8 offset=48 (i32.const {EFFECT_AT}) (i32.const 2)) {perform} (unreachable)"),
        ),
        ("a place outside", "(call $place (i32.const -4)) (unreachable)".into()),
        ("no such level", "(call $log (i32.const 5) (i32.const 0) (i32.const 0)) (unreachable)".into()),
        ("a line outside", "(call $log (i32.const 2) (i32.const 0) (i32.const -1)) (unreachable)".into()),
    ] {
        let script = Script::emitted();
        let report = house(script.clone()).run(&Guest::running(body).holding(&model_call())).await;
        assert_eq!(trapped(&report).0, Code::GuestTrap, "{name}: {report:?}");
        assert_eq!(script.calls().len(), 0, "{name}");
    }
    let lying = Guest::echo().reallocating("(return (i32.const -8))");
    assert_eq!(trapped(&run(&lying).await).0, Code::GuestTrap);
}

#[tokio::test]
async fn a_trap_leaves_nothing_behind_for_the_next_execution() {
    // Traps on every input but the empty object.
    let guest = Guest::running(
        "(if (i32.ne (local.get $len) (i32.const 2)) (then (i32.store8 (i32.const 512) (i32.const 1)) (unreachable)))
         (if (i32.load8_u (i32.const 512)) (then (unreachable)))
         (call $ok (local.get $input) (local.get $len))",
    );
    let house = house(Script::unused());
    let component = house.prepared(&guest).await;
    for (input, traps) in [("{}", false), ("[1]", true), ("{}", false), ("[1]", true), ("{}", false)] {
        let mut job = job(component);
        job.input = input.into();
        let report = house.sandbox.run(job).await;
        if traps {
            assert_eq!(trapped(&report).0, Code::GuestTrap);
        } else {
            assert_eq!(report.end, output(input));
        }
    }
}
