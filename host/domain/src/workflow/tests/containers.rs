use insta::assert_json_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::simulation::Simulation;
use super::*;
use crate::code::Code;

/// Every container, one in another.
const CONTAINERS: &str = r#"
name: containers
steps:
  - ask:
      parallel:
        - do: [ { fast: { block: enrich-lead } }, { after: { set: "=steps.fast.output" } } ]
        - do: [ { slow: { block: enrich-lead } } ]
        - do: []
      join: 2
  - each:
      map:
        items: "=input.items"
        concurrency: 2
        on_failure: skip
        do:
          - double: { set: "=item * 2 + index" }
          - call: { block: charge-card, input: "=steps.double.output" }
          - inner: { map: { items: [1, 2], do: [ { both: { set: "=[item, index]" } } ] } }
  - book:
      try:
        - do: [ { flight: { block: create-task } } ]
          undo: [ { cancel-flight: { block: create-task } }, { note: { set: "=steps.flight.output" } } ]
        - do: [ { seat: { set: 7 } } ]
        - do: [ { hotel: { block: create-task } } ]
          undo: [ { cancel-hotel: { block: create-task } } ]
        - do: [ { car: { block: create-task } } ]
      on_failure: continue
  - tell: { emit: { event: trip.booked, record: "=input.id", data: { seat: "=steps.seat.output" } } }
  - until: { delay: { until: "2026-12-24T18:00", zone: Europe/Berlin } }
  - done: { set: { each: "=steps.each.output", book: "=steps.book.output" } }
"#;

fn error(message: &str) -> StepError {
    StepError::new(Code::BlockFailed, message)
}

fn in_order(_: usize) -> usize {
    0
}

#[test]
fn containers_become_a_plan() {
    assert_json_snapshot!("containers", plan(CONTAINERS));
}

#[test]
fn a_plan_says_which_hosts_can_follow_it() {
    for (text, format) in [(SPEED_TO_LEAD, 1), (ALL_KINDS, 1), (CONTAINERS, 2)] {
        let stored = serde_json::to_value(plan(text)).expect("it is JSON");
        assert_eq!(stored["format"], json!(format));
        assert_eq!(serde_json::from_value::<Plan>(stored).expect("it loads"), plan(text));
    }
}

/// A workflow of one container, `c`, then `done`, whose output is the container's.
fn around(container: &str) -> Plan {
    plan(&format!("name: one\nsteps:\n  - c: {container}\n  - done: {{ set: \"=steps.c.output\" }}\n"))
}

#[test]
fn a_parallel_goes_on_when_enough_have_succeeded() {
    let lanes = "[ { do: [ { a: { block: enrich-lead } } ] }, { do: [ { b: { block: enrich-lead } } ] },
                   { do: [ { s: { set: 1 } } ] } ]";
    for (options, failing, first, ends, cancels) in [
        ("", vec![], "c/a", r#"succeeded: {"succeeded":[0,1,2],"failed":[]}"#, false),
        ("", vec!["c/a"], "c/a", "failed at c: c/a: no (block_failed)", true),
        ("join: any", vec![], "c/a", r#"succeeded: {"succeeded":[2],"failed":[]}"#, true),
        ("join: 2", vec![], "c/a", r#"succeeded: {"succeeded":[0,2],"failed":[]}"#, true),
        ("join: 2", vec!["c/a"], "c/a", r#"succeeded: {"succeeded":[1,2],"failed":[0]}"#, false),
        ("join: 2", vec!["c/a", "c/b"], "c/a", "failed at c: c/a: no (block_failed)", false),
        ("join: 2, losers: leave", vec![], "c/a", r#"succeeded: {"succeeded":[0,2],"failed":[]}"#, false),
    ] {
        let plan = around(&format!("{{ parallel: {lanes}, {options} }}"));
        // The container goes before its steps as soon as it can.
        let run = Simulation::run(&plan, &Value::Null, in_order, |node, _| {
            assert!(node >= first);
            if failing.contains(&node) { Err(error("no")) } else { Ok(json!(node)) }
        });
        assert_eq!(run.ended(), ends, "{options} {failing:?}");
        let cancelled = run.lines.iter().any(|line| line.ends_with("cancelled"));
        assert_eq!(cancelled, cancels, "{options} {failing:?}: {:#?}", run.lines);
    }
}

/// What a branch does that nobody waits for any more must not change what later steps are given.
#[test]
fn nobody_sees_what_came_about_beside_it() {
    let plan = plan(
        r#"
name: beside
steps:
  - race:
      parallel:
        - do: [ { a: { block: enrich-lead } }, { peek: { set: "='b' in steps" } } ]
        - do: [ { b: { block: enrich-lead } }, { more: { block: enrich-lead } } ]
      join: any
      losers: leave
  - wait: { block: enrich-lead }
  - seen: { set: { a: "=has(steps.a)", peek: "=steps.peek.output", b: "=has(steps.b)", more: "=has(steps.more)" } }
"#,
    );
    let want = json!({ "a": true, "peek": false, "b": false, "more": false });
    for last_first in [0, 1] {
        // `b` comes before `a`, or after.
        let choose = |ready: usize| if last_first == 1 { ready - 1 } else { 0 };
        let run = Simulation::run(&plan, &Value::Null, choose, |_, _| Ok(json!(1)));
        match &run.end {
            Some(RunEnd::Succeeded { output }) if output["more"] == json!(false) => assert_eq!(*output, want),
            // Both were done before the container went on.
            Some(RunEnd::Succeeded { output }) => assert_eq!(output["b"], json!(true), "{:#?}", run.lines),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_map_goes_through_its_items_in_bounds_and_keeps_their_order() {
    let map = |options: &str| {
        around(&format!(
            "{{ map: {{ items: \"=input\", do: [ {{ x: {{ block: enrich-lead, input: '=item' }} }} ], {options} }} }}"
        ))
    };
    let items = json!([5, 6, 7, 8, 9]);
    let answer = |_: &str, at: &[u32]| if at == [1] { Err(error("six")) } else { Ok(json!(at[0] * 10)) };
    for (options, concurrency, ends) in [
        ("concurrency: 2, on_failure: skip", 2, "succeeded: [0,null,20,30,40]"),
        ("concurrency: 5, on_failure: skip", 5, "succeeded: [0,null,20,30,40]"),
        ("concurrency: 2", 2, "failed at c: c/x: six (block_failed)"),
    ] {
        for choose in [in_order, |ready| ready - 1, |ready| ready / 2] {
            let run = Simulation::run(&map(options), &items, choose, answer);
            assert_eq!(run.ended(), ends);
            assert!(run.open_max <= concurrency, "{} at once", run.open_max);
        }
    }
    for (items, ends) in [
        (json!([]), "succeeded: []".to_owned()),
        (json!("x"), "failed at c: the items of a map are a list (expression_failed)".to_owned()),
        (
            json!(vec![0; MAP_ITEMS_MAX + 1]),
            "failed at c: a map has at most 1000 items, here are 1001 (input_too_large)".to_owned(),
        ),
    ] {
        let run = Simulation::run(&map(""), &items, in_order, |_, _| Ok(json!(1)));
        assert_eq!(run.ended(), ends);
    }
}

#[test]
fn a_try_undoes_what_was_done_in_reverse() {
    let plan = plan(CONTAINERS);
    let input = json!({ "items": [1, 2, 3], "id": "t" });
    for (failing, undoes, undone, book) in [
        ("", vec![], vec![], json!("book/car")),
        (
            "book/flight",
            vec![],
            vec![],
            json!({ "failed": { "node": "book/flight", "code": "block_failed", "message": "no" } }),
        ),
        (
            "book/hotel",
            vec!["book/cancel-flight = \"book/cancel-flight\"", "book/note = \"book/flight\""],
            vec!["book/flight"],
            json!({ "failed": { "node": "book/hotel", "code": "block_failed", "message": "no" } }),
        ),
        (
            "book/car",
            vec![
                "book/cancel-hotel = \"book/cancel-hotel\"",
                "book/cancel-flight = \"book/cancel-flight\"",
                "book/note = \"book/flight\"",
            ],
            vec!["book/hotel", "book/flight"],
            json!({ "failed": { "node": "book/car", "code": "block_failed", "message": "no" } }),
        ),
    ] {
        let run = Simulation::run(&plan, &input, in_order, |node, _| {
            if node == failing { Err(error("no")) } else { Ok(json!(node)) }
        });
        let Some(RunEnd::Succeeded { output }) = &run.end else { panic!("{:#?}", run.lines) };
        assert_eq!(output["book"], book, "{failing}");
        let undoing: Vec<&str> = run
            .lines
            .iter()
            .map(String::as_str)
            .filter(|line| line.starts_with("book/cancel") || line.starts_with("book/note"))
            .collect();
        assert_eq!(
            (undoing, run.undone.clone()),
            (undoes, undone.into_iter().map(str::to_owned).collect()),
            "{failing}"
        );
        assert_eq!(output["each"], json!([[[1, 0], [2, 1]], [[1, 0], [2, 1]], [[1, 0], [2, 1]]]));
    }
}

#[test]
fn a_try_that_cannot_be_undone_fails_and_says_so() {
    let plan = around(
        "{ try: [ { do: [ { a: { block: enrich-lead } } ], undo: [ { b: { block: enrich-lead } } ] },
                  { do: [ { d: { block: enrich-lead } } ] } ], on_failure: continue }",
    );
    let run = Simulation::run(&plan, &Value::Null, in_order, |node, _| {
        if node == "c/a" { Ok(json!(1)) } else { Err(error("no")) }
    });
    assert_eq!(run.ended(), "failed at c: while undoing: c/b: no (block_failed)");
    assert_eq!(run.undone, Vec::<String>::new());
}

#[test]
fn a_stop_inside_ends_the_run_with_all_that_is_open() {
    let plan = plan(
        "name: x\nsteps: [ { c: { parallel: [ { do: [ { a: { block: enrich-lead } } ] }, { do: [ { s: { stop: { output: 3 } } } ] } ] } } ]",
    );
    let run = Simulation::run(&plan, &Value::Null, in_order, |_, _| Ok(json!(1)));
    assert_eq!((run.ended(), run.lines), ("succeeded: 3".to_owned(), vec!["c/s = 3".to_owned()]));
}

/// Lists of steps with every container, as JSON; each step's name is to be numbered.
fn step_lists() -> impl Strategy<Value = Value> {
    let node = prop_oneof![
        Just(json!({ "block": "charge-card", "input": { "n": "=input.n" } })),
        Just(json!({ "delay": "1s" })),
        Just(json!({ "set": "=input.n + 1" })),
        Just(json!({ "set": "=input.missing" })),
    ];
    let leaf = proptest::collection::vec(node.clone(), 1..3).prop_map(Value::from);
    leaf.prop_recursive(3, 30, 3, move |inner| {
        let lists = proptest::collection::vec(inner.clone(), 1..4);
        let held = lists.prop_map(|lists| lists.into_iter().map(|list| json!({ "do": list })).collect::<Vec<_>>());
        let parallel = (held, 0..3_usize, any::<bool>()).prop_map(|(lists, join, leave)| {
            let join = match join {
                0 => json!("all"),
                1 => json!("any"),
                _ => json!(lists.len().div_ceil(2)),
            };
            json!({ "parallel": lists, "join": join, "losers": if leave { "leave" } else { "cancel" } })
        });
        let map = (inner.clone(), 1..4, any::<bool>()).prop_map(|(list, concurrency, skip)| {
            let on_failure = if skip { "skip" } else { "fail" };
            json!({ "map": { "items": "=[1, 2, 3]", "do": list, "concurrency": concurrency, "on_failure": on_failure } })
        });
        let stages = proptest::collection::vec((inner.clone(), inner.clone()), 1..3);
        let attempt = (stages, any::<bool>()).prop_map(|(stages, continues)| {
            let stages: Vec<_> = stages.iter().map(|(list, undo)| json!({ "do": list, "undo": undo })).collect();
            json!({ "try": stages, "on_failure": if continues { "continue" } else { "fail" } })
        });
        let switch = inner.prop_map(|list| json!({ "switch": [{ "when": "input.n > 1", "do": list }] }));
        let any = prop_oneof![node.clone(), parallel, map, attempt, switch];
        proptest::collection::vec(any, 1..3).prop_map(Value::from)
    })
}

/// Gives every step in `list` a name of its own.
fn named(list: &Value, count: &mut usize) -> Value {
    let name_step = |node: &Value| {
        let name = format!("s{count}");
        *count += 1;
        let mut node = node.clone();
        for kind in ["switch", "parallel", "try"] {
            for part in node.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
                for field in ["do", "undo"] {
                    if let Some(list) = part.get(field) {
                        part[field] = named(&list.clone(), count);
                    }
                }
            }
        }
        if let Some(list) = node.pointer("/map/do") {
            node["map"]["do"] = named(&list.clone(), count);
        }
        json!({ name: node })
    };
    list.as_array().into_iter().flatten().map(name_step).collect()
}

proptest! {
    #[test]
    fn whatever_hosts_are_first_no_run_is_stuck(
        list in step_lists(), n in 0..4, fails in 0..40_usize, order in proptest::collection::vec(0..8_usize, 1..40)
    ) {
        let mut count = 0;
        let steps = named(&list, &mut count);
        let plan = plan(&json!({ "name": "any", "steps": steps }).to_string());
        let stored = serde_json::to_value(&plan).expect("it is JSON");
        prop_assert_eq!(&serde_json::from_value::<Plan>(stored).expect("it loads"), &plan);

        let failing = plan.nodes().get(fails).map(|node| node.path.clone());
        let input = json!({ "n": n });
        let mut turn = 0;
        let choose = |ready: usize| {
            turn += 1;
            order[turn % order.len()] % ready
        };
        let run = Simulation::run(&plan, &input, choose, |node, _| {
            if Some(node) == failing.as_deref() { Err(error("trap")) } else { Ok(json!(n)) }
        });
        // A step settles once in each of its iterations.
        let mut settled: Vec<&str> = run.lines.iter().filter_map(|line| line.split(' ').next()).collect();
        settled.sort_unstable();
        let len = settled.len();
        settled.dedup();
        prop_assert_eq!(settled.len(), len, "{:#?}", run.lines);
    }
}

const WAITS: &str = r#"
name: waits
steps:
  - hear:
      listen: { signal: reply, match: "signal.data.n > input.n", timeout: 1h }
      on_timeout: [ { late: { set: 1 } } ]
  - paid: { listen: { event: payment.received, record: "=input.id" } }
  - ok: { approval: { title: "='Pay ' + input.id", form: { type: object }, deadline: 2d }, on_timeout: [] }
  - sub: { workflow: other, input: { n: "=input.n" } }
"#;

#[test]
fn waits_become_a_plan() {
    assert_json_snapshot!("waits", plan(WAITS));
    assert_eq!(plan(WAITS).listened(), ["payment.received"]);
}

#[test]
fn what_did_not_come_in_time_takes_its_branch() {
    let plan = plan(WAITS);
    let input = json!({ "n": 1, "id": "o" });
    for (timed_out, story) in [
        (true, vec!["hear = {\"timed_out\":true}", "hear/late = 1"]),
        (false, vec!["hear = {\"timed_out\":false}", "hear/late skipped"]),
    ] {
        let run = Simulation::run(&plan, &input, in_order, |_, _| Ok(json!({ "timed_out": timed_out })));
        assert_eq!(run.lines[..2], story);
    }
}

#[test]
fn what_a_wait_cannot_be_is_told_with_its_place() {
    let told = |node: &str| {
        let problems = compile(&format!("name: x\nsteps:\n  - a: {node}\n")).map(|_| ()).expect_err(node);
        problems.into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>().join("\n")
    };
    let nodes = [
        "{ listen: {} }",
        "{ listen: { signal: Reply } }",
        "{ listen: { signal: a, event: b } }",
        "{ listen: { signal: a, record: b } }",
        "{ listen: { event: a b } }",
        "{ listen: { signal: a }, on_timeout: [] }",
        "{ listen: { signal: a, match: 'item > 1' } }",
        "{ approval: { title: x, form: { type: colour } } }",
        "{ approval: {} }",
        "{ workflow: Other }",
        "{ set: '=signal.data' }",
        "{ set: '=item' }",
        "{ map: { items: 7, do: [] } }",
        "{ map: { items: [1], do: [ { b: { set: 1 } } ], concurrency: 0 } }",
        "{ parallel: [ { do: [] } ], join: 2 }",
        "{ parallel: [ { don: [] } ] }",
        "{ try: [ { undo: [] } ] }",
        "{ delay: { until: tomorrow } }",
        "{ delay: { until: '2026-12-24T18:00', zone: Mars/Olympus } }",
        "{ emit: { event: 'a b' } }",
    ];
    let lines: Vec<String> = nodes.iter().map(|node| format!("{node}\n{}", told(node))).collect();
    insta::assert_snapshot!(lines.join("\n"));
}
