//! The bombs: small things that cost a host much if it lets them.

use std::fmt::Write as _;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{EffectCall, EffectRequest};

use crate::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

/// How a bomb may end. More than one where the compiler's budget decides, which a quick machine does not use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The upload is refused.
    Refused(Code),
    /// It is accepted, and its step fails.
    Failed(Code),
    /// It is accepted, and does no harm.
    Succeeded,
}

/// One bomb.
pub struct Bomb {
    /// A line for people.
    pub name: &'static str,
    /// Makes it.
    pub build: fn() -> Vec<u8>,
    /// How it may end.
    pub ends: &'static [End],
    /// Inputs of its runs, one after the other, in the order of `ends` where there are several.
    pub inputs: &'static [u64],
}

const OVER_BUDGET: &[End] = &[End::Succeeded, End::Refused(Code::CompileBudgetExceeded)];
const TOO_LARGE: &[End] = &[End::Refused(Code::ComponentTooLarge)];
const CPU: &[End] = &[End::Failed(Code::CpuLimit)];
const MEMORY: &[End] = &[End::Failed(Code::MemoryLimit)];
const TRAP: &[End] = &[End::Failed(Code::GuestTrap)];

const fn bomb(name: &'static str, build: fn() -> Vec<u8>, ends: &'static [End]) -> Bomb {
    Bomb { name, build, ends, inputs: &[0] }
}

/// All of them: first what is for the compiler, then what is for the step.
pub const ALL: &[Bomb] = &[
    bomb("20,000 empty loops", || with("(func ", "(loop)", 20_000, ")"), OVER_BUDGET),
    bomb("100,000 sums of constants", sums, OVER_BUDGET),
    bomb("100 nested loops over 2,000 locals", || nested_loops(100), TOO_LARGE),
    bomb("50 nested loops over 2,000 locals", || nested_loops(50), OVER_BUDGET),
    bomb("1,000,000 empty functions", || with("", "(func)", 1_000_000, ""), TOO_LARGE),
    bomb("40,001 empty functions", || with("", "(func)", 40_001, ""), TOO_LARGE),
    bomb("each level instantiates the one before twice, 22 deep", doubling, TOO_LARGE),
    bomb("100 memories", memories, TOO_LARGE),
    bomb(
        "a loop in `start`",
        || {
            let start = format!("(func $start {ENDLESS}) (start $start)");
            Guest::echo().with(&start).build()
        },
        &[End::Refused(Code::DescriptorInvalid)],
    ),
    bomb(
        "a loop in `describe`",
        || Guest::echo().describing_by(ENDLESS).build(),
        &[End::Refused(Code::DescriptorInvalid)],
    ),
    bomb("a loop in `run`", || running(ENDLESS), CPU),
    bomb("a loop in the allocator", || Guest::echo().reallocating(ENDLESS).build(), CPU),
    bomb("calls of the host in a loop", || running(&again("(drop (call $started-at))")), CPU),
    bomb(
        "`memory.fill` of all memory in a loop",
        || {
            let fill = again("(call $fill (i32.const 60000000))");
            running(&format!("(drop (call $grow-other-memory (i32.const 916))) {fill}"))
        },
        CPU,
    ),
    bomb(
        "two memories that grow past their sum",
        || {
            running(&again(
                "(br_if $again (i32.ge_s (memory.grow (i32.const 100)) (i32.const 0)))
            (br_if $again (i32.ge_s (call $grow-other-memory (i32.const 1)) (i32.const 0))) (unreachable)",
            ))
        },
        MEMORY,
    ),
    bomb(
        "`table.grow` without end",
        || {
            running(&again(
                "(br_if $again (i32.ge_s (call $grow-table (i32.const 1000)) (i32.const 0))) (unreachable)",
            ))
        },
        MEMORY,
    ),
    bomb(
        "a recursion without end",
        || {
            let deeper = "(func $deeper (param i32) (result i32) (i32.add (call $deeper (local.get 0)) (i32.const 1)))";
            Guest::running("(call $deeper (i32.const 0))").with(deeper).build()
        },
        &[End::Failed(Code::StackLimit)],
    ),
    bomb("1,000 slices that alias 50,000 bytes", aliases, TRAP),
    bomb("a backtrace of names of 72,000 bytes with escapes", long_names, TRAP),
    Bomb {
        name: "a call after a trap",
        build: || {
            // What the first run leaves behind, the second must not find.
            let items = "(global $ran (mut i32) (i32.const 0))";
            let body = "(if (global.get $ran) (then (unreachable)))
                (global.set $ran (i32.const 1)) (i32.store (i32.const 60000) (i32.const 7))
                (if (i32.eq (i32.load8_u (local.get $input)) (i32.const 49)) (then (unreachable)))
                (call $ok (local.get $input) (local.get $len))";
            Guest::running(body).with(items).build()
        },
        ends: &[End::Failed(Code::GuestTrap), End::Succeeded],
        inputs: &[1, 0],
    },
    bomb(
        "100,000 log lines of 60,000 bytes",
        || {
            let fill = "(memory.fill (i32.const 131072) (i32.const 120) (i32.const 60000))";
            let log = times(100_000, "(call $log (i32.const 2) (i32.const 131072) (i32.const 60000))");
            running(&format!("(local $i i32) (drop (memory.grow (i32.const 1))) {fill} {log} {DONE}"))
        },
        &[End::Succeeded, End::Failed(Code::CpuLimit)],
    ),
    bomb("100,000 effects", effects, &[End::Succeeded, End::Failed(Code::CpuLimit)]),
    bomb("1,000,000 handles", handles, TRAP),
    bomb(
        "an output of 20 MiB",
        || {
            running(
                "(drop (memory.grow (i32.const 330)))
            (memory.fill (i32.const 65536) (i32.const 49) (i32.const 20971520))
            (call $ok (i32.const 65536) (i32.const 20971520))",
            )
        },
        &[End::Failed(Code::OutputTooLarge)],
    ),
];

const DONE: &str = "(call $ok (local.get $input) (local.get $len))";
const ENDLESS: &str = "(loop $for-ever (br $for-ever)) (unreachable)";

fn running(body: &str) -> Vec<u8> {
    Guest::running(body).build()
}

fn again(body: &str) -> String {
    format!("(loop $again {body} (br $again)) (unreachable)")
}

/// Does this so many times; `$i` is a local.
fn times(count: u32, body: &str) -> String {
    format!(
        "(loop $again {body} (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br_if $again (i32.lt_u (local.get $i) (i32.const {count}))))"
    )
}

/// An ordinary block that has many of something beside.
fn with(head: &str, item: &str, count: usize, tail: &str) -> Vec<u8> {
    Guest::echo().with(&[head, &item.repeat(count), tail].concat()).build()
}

/// Where sums are rewritten, each can be had in as many ways as there are before it.
fn sums() -> Vec<u8> {
    let sums = (0..100_000).fold(String::new(), |mut sums, number| {
        let _ = write!(sums, "(i32.add (i32.const {}))", 100_003 + number * 7);
        sums
    });
    Guest::echo().with(&format!("(func (param i32) (result i32) (local.get 0) {sums})")).build()
}

/// Every local lives across every loop.
fn nested_loops(depth: usize) -> Vec<u8> {
    let step = |local: usize| format!("(local.set {local} (i32.add (local.get {local}) (i32.const 1)))");
    let all: String = (0..2_000).map(step).collect();
    let (opened, closed) = (format!("loop {all} ").repeat(depth), "local.get 0 br_if 0 end ".repeat(depth));
    Guest::echo().with(&format!("(func (local{}) {opened} {closed})", " i32".repeat(2_000))).build()
}

fn doubling() -> Vec<u8> {
    let mut level = "(component $c (core module $m) (core instance (instantiate $m)))".to_owned();
    for _ in 0..22 {
        level = format!("(component $c {level} (instance (instantiate $c)) (instance (instantiate $c)))");
    }
    parsed(&level)
}

/// Each may grow to the limit if each is limited by itself.
fn memories() -> Vec<u8> {
    let instances = "(core instance (instantiate $m))".repeat(100);
    parsed(&format!("(component (core module $m (memory 1 1024)) {instances})"))
}

fn parsed(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// A list in which each element is the same bytes: small in the guest, large in the host that copies it.
fn aliases() -> Vec<u8> {
    let element = "(i32.store offset=131072 (i32.shl (local.get $i) (i32.const 3)) (i32.const 65536))
        (i32.store offset=131076 (i32.shl (local.get $i) (i32.const 3)) (i32.const 50000))";
    let body = format!(
        "(local $i i32) (drop (memory.grow (i32.const 40))) {}
         (i32.store (i32.const {}) (i32.const 131072)) (i32.store (i32.const {}) (i32.const 1000))
         (call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT})) {DONE}",
        times(2_000, element),
        EFFECT_AT + 96,
        EFFECT_AT + 100,
    );
    emitting(body)
}

fn effects() -> Vec<u8> {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    emitting(format!("(local $i i32) {} {DONE}", times(100_000, &perform)))
}

fn emitting(body: String) -> Vec<u8> {
    let call = EffectCall {
        request: EffectRequest::Emit { event_type: "bomb.flood".into(), record_id: None, data: "{}".into() },
        key: None,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    };
    let descriptor =
        r#"{"name":"flood","input":true,"output":true,"effects":[{"kind":"emit","safety":"at-most-once"}]}"#;
    Guest::running(body).describing(descriptor).holding(&call).build()
}

fn long_names() -> Vec<u8> {
    // Escapes that clear a terminal, in a name of a function that traps twenty calls deep.
    let name = "\\1b[2J\\1b[31m\\00\\0a".repeat(6_000);
    let function = format!(
        "(func $deep (@name \"{name}\") (param i32)
           (if (i32.eqz (local.get 0)) (then (unreachable)))
           (call $deep (i32.sub (local.get 0) (i32.const 1))))"
    );
    Guest::running("(call $deep (i32.const 30)) (unreachable)").with(&function).build()
}

fn handles() -> Vec<u8> {
    let body = format!("(local $i i32) {} {DONE}", times(1_000_000, "(drop (call $new (local.get $i)))"));
    Guest::running(body).making_handles().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bomb_can_be_made() {
        for bomb in ALL {
            let bytes = (bomb.build)();
            assert!(bytes.starts_with(b"\0asm\x0d\0\x01\0"), "{}", bomb.name);
        }
    }
}
