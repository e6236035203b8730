use super::*;
use crate::block::EffectGrant;
use crate::effect::Safety;
use crate::workflow::diff::{Diff, Grants, diff};

/// Two effects, with steps of every kind around them.
const BASE: &str = r#"
name: pay
triggers:
  - { event: order.placed, when: event.data.cents > 0, record: event.data.id, dedup: once_per_record }
steps:
  - lead: { block: enrich-lead, input: { id: "=event.data.id" } }
  - quote: { http: { method: GET, url: "https://a.example/quote" } }
  - ok: { approval: { title: Pay?, deadline: 1d }, on_timeout: [ { no: { stop: { outcome: failed } } } ] }
  - decide:
      switch:
        - when: event.data.cents > 100
          do: [ { charge: { block: charge-card, input: { cents: 1 }, retry: { attempts: 2 } } } ]
        - else: [ { small: { set: 1 } } ]
  - each: { map: { items: [1, 2], do: [ { count: { set: "=item" } }, { book: { http: { method: POST, url: "https://a.example/b", connection: air } } } ] } }
  - wait: { delay: 1h }
  - total: { set: 1 }
  - done: { stop: { output: 1 } }
invariants:
  - { id: once, kind: http, rule: effect_at_most_once }
"#;

fn grants() -> Grants {
    let grant = |safety| EffectGrant { kind: "http".into(), safety, connections: vec![], hosts: vec![] };
    [
        ("enrich-lead", Safety::ReadOnly),
        ("charge-card", Safety::AtMostOnce),
        ("create-task", Safety::AtMostOnce),
    ]
    .map(|(name, safety)| (Digest::of(name.as_bytes()), vec![grant(safety)]))
    .into()
}

fn told(diff: &Diff) -> Vec<String> {
    diff.changes.iter().map(ToString::to_string).collect()
}

/// One edit of the definition each, and all that it changes.
#[test]
fn a_diff_names_what_changed_and_what_of_it_touches_side_effects() {
    const EFFECTS: &str = "(it has effects)";
    const CHARGE: &str = "(decide/charge, which has effects, comes behind it)";
    const BOOK: &str = "(each/book, which has effects, comes behind it)";
    const BEGIN: &str = "(it decides when the effects of the workflow begin)";
    const SENT: &str = "(it decides which effects are sent)";
    for (from, to, expected) in [
        ("name: pay", "name: pay\ndescription: Pays.", vec![]),
        // Behind all effects.
        ("total: { set: 1 }", "total: { set: 2 }", vec!["step total: value changed".to_owned()]),
        ("  - total: { set: 1 }\n", "", vec!["step total: removed".into()]),
        ("delay: 1h", "delay: 2h", vec!["step wait: ms changed".into()]),
        (
            "  - wait: { delay: 1h }\n  - total: { set: 1 }\n",
            "  - total: { set: 1 }\n  - wait: { delay: 1h }\n",
            vec!["step total: moved".into()],
        ),
        ("stop: { output: 1 }", "emit: { event: paid }", vec![format!("step done: kind changed {EFFECTS}")]),
        // Reading, in front of effects.
        ("/quote", "/other", vec![format!("step quote: url changed {CHARGE}")]),
        ("method: GET", "method: PUT", vec![format!("step quote: method changed {EFFECTS}")]),
        (
            "{ method: GET,",
            "{ safety: at-most-once, method: GET,",
            vec![format!("step quote: safety changed {EFFECTS}")],
        ),
        (
            "block: enrich-lead",
            "block: create-task",
            vec![format!("step lead: block, digest, effects changed {EFFECTS}")],
        ),
        // What lets an effect begin.
        ("deadline: 1d", "deadline: 2d", vec![format!("step ok: deadline_ms changed {CHARGE}")]),
        ("cents > 100", "cents > 10", vec![format!("step decide: branches changed {CHARGE}")]),
        ("set: 1 } } ]\n", "set: 2 } } ]\n", vec![format!("step decide/small: value changed {BOOK}")]),
        (
            "  - ok: {",
            "  - oh: {",
            vec![
                format!("step oh: added {CHARGE}"),
                format!("step oh/no: added {CHARGE}"),
                format!("step ok: removed {CHARGE}"),
                format!("step ok/no: removed {CHARGE}"),
            ],
        ),
        ("set: \"=item\"", "set: 1", vec![format!("step each/count: value changed {BOOK}")]),
        ("items: [1, 2]", "items: [1, 2, 3]", vec![format!("step each: items changed {BOOK}")]),
        // The effects themselves.
        ("cents: 1 }", "cents: 2 }", vec![format!("step decide/charge: input changed {EFFECTS}")]),
        ("attempts: 2", "attempts: 3", vec![format!("step decide/charge: retry changed {EFFECTS}")]),
        ("connection: air", "connection: sea", vec![format!("step each/book: connection changed {EFFECTS}")]),
        ("example/b", "example/c", vec![format!("step each/book: url changed {EFFECTS}")]),
        (
            "  - each:",
            "  - all:",
            vec![
                format!("step all: added (all/book, which has effects, comes behind it)"),
                format!("step all/count: added (all/book, which has effects, comes behind it)"),
                format!("step all/book: added {EFFECTS}"),
                format!("step each: removed {BOOK}"),
                format!("step each/count: removed {BOOK}"),
                format!("step each/book: removed {EFFECTS}"),
            ],
        ),
        // What starts it, and what guards it.
        ("cents > 0", "cents > 1", vec![format!("trigger order.placed: when changed {BEGIN}")]),
        (
            "once_per_record",
            "not_while_running",
            vec![format!("trigger order.placed: dedup changed {BEGIN}")],
        ),
        (
            "steps:\n",
            "  - { event: order.placed, dedup: every_time }\nsteps:\n",
            vec![format!("trigger order.placed #2: added {BEGIN}")],
        ),
        ("id: once", "scope: tenant, id: once", vec![format!("invariant once: scope changed {SENT}")]),
        (
            "id: once",
            "id: ever",
            vec![format!("invariant ever: added {SENT}"), format!("invariant once: removed {SENT}")],
        ),
    ] {
        assert!(BASE.contains(from), "{from}");
        let (old, new) = (plan(BASE), plan(&BASE.replacen(from, to, 1)));
        assert_eq!(told(&diff(&old, &new, &grants())), expected, "{from} to {to}");
        let touches = |old, new| diff(old, new, &grants()).risky().next().is_some();
        assert_eq!(touches(&new, &old), touches(&old, &new), "there and back: {from} to {to}");
    }
}

/// Where an effect is from a step that changes.
#[test]
fn an_effect_is_behind_whatever_may_keep_it_from_happening() {
    let call = "{ http: { method: POST, url: \"https://a.example\" } }";
    for (steps, is_behind) in [
        (format!("  - x: {{ set: 1 }}\n  - e: {call}\n"), true),
        (format!("  - e: {call}\n  - x: {{ set: 1 }}\n"), false),
        (
            format!(
                "  - s: {{ switch: [ {{ when: \"1 > 0\", do: [ {{ x: {{ set: 1 }} }} ] }}, {{ else: [ {{ e: {call} }} ] }} ] }}\n"
            ),
            false,
        ),
        (
            format!(
                "  - s: {{ switch: [ {{ when: \"1 > 0\", do: [ {{ x: {{ set: 1 }} }} ] }} ] }}\n  - e: {call}\n"
            ),
            true,
        ),
        (
            format!(
                "  - p: {{ parallel: [ {{ do: [ {{ e: {call} }} ] }}, {{ do: [ {{ x: {{ set: 1 }} }} ] }} ] }}\n"
            ),
            true,
        ),
        (
            format!(
                "  - p: {{ parallel: [ {{ do: [ {{ e: {call} }} ] }}, {{ do: [] }} ] }}\n  - x: {{ set: 1 }}\n"
            ),
            false,
        ),
        (
            format!(
                "  - p: {{ parallel: [ {{ do: [ {{ e: {call} }} ] }}, {{ do: [] }} ], join: any, losers: leave }}\n  - x: {{ set: 1 }}\n"
            ),
            true,
        ),
        (
            format!("  - m: {{ map: {{ items: [1], do: [ {{ e: {call} }}, {{ x: {{ set: 1 }} }} ] }} }}\n"),
            true,
        ),
        (
            format!(
                "  - t: {{ try: [ {{ do: [ {{ a: {{ set: 1 }} }} ], undo: [ {{ e: {call} }} ] }}, {{ do: [ {{ x: {{ set: 1 }} }} ] }} ] }}\n"
            ),
            true,
        ),
        (
            format!(
                "  - x: {{ set: 1 }}\n  - e: {}\n",
                "{ http: { method: GET, url: \"https://a.example\" } }"
            ),
            false,
        ),
        ("  - x: { set: 1 }\n  - e: { workflow: other, wait: false }\n".into(), true),
        ("  - x: { set: 1 }\n  - e: { block: unknown-to-the-grants }\n".into(), true),
    ] {
        let blocks = [("unknown-to-the-grants".to_owned(), Digest::of(b"?"))].into();
        let compiled = |steps: &str| {
            let text = format!("name: one\nsteps:\n{steps}");
            Authored::read(&text).expect("it is YAML").compile(&blocks).expect("it holds").plan
        };
        let (old, new) = (compiled(&steps), compiled(&steps.replace("x: { set: 1 }", "x: { set: 2 }")));
        let diff = diff(&old, &new, &grants());
        let [change] = diff.changes.as_slice() else { panic!("{steps}: {diff:?}") };
        assert_eq!(change.risk.is_some(), is_behind, "{steps}");
    }
}

#[test]
fn the_fewest_moves_explain_an_order() {
    let flow = |names: &[&str]| {
        let steps: Vec<String> = names.iter().map(|name| format!("  - {name}: {{ set: 1 }}\n")).collect();
        plan(&format!("name: one\nsteps:\n{}", steps.concat()))
    };
    for (old, new, moved) in [
        (&["a", "b", "c"][..], &["a", "b", "c"][..], &[][..]),
        (&["a", "b", "c", "d"], &["d", "a", "b", "c"], &["d"]),
        (&["a", "b", "c", "d"], &["b", "c", "d", "a"], &["a"]),
        (&["a", "b", "c"], &["c", "b", "a"], &["c", "b"]),
        (&["a", "x", "b"], &["b", "y", "a"], &["b"]),
    ] {
        let diff = diff(&flow(old), &flow(new), &Grants::new());
        let found: Vec<_> = diff.changes.iter().filter(|change| change.how.name() == "moved").collect();
        let found: Vec<&str> = found.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(found, moved, "{old:?} to {new:?}");
    }
}

/// It is the same work. Where some of it is enough, the places are told of in what comes of it.
#[test]
fn lanes_that_change_places_are_no_change_where_all_are_waited_for() {
    let flow = |lanes: [&str; 3], join: &str| {
        plan(&format!("name: one\nsteps:\n  - p: {{ parallel: [ {} ], join: {join} }}\n", lanes.join(", ")))
    };
    let charge =
        "{ do: [ { a: { http: { method: POST, url: \"https://a.example\" } } }, { z: { set: 1 } } ] }";
    let nested =
        "{ do: [ { q: { parallel: [ { do: [ { c: { set: 1 } } ] }, { do: [ { b: { set: 2 } } ] } ] } } ] }";
    let turned =
        "{ do: [ { q: { parallel: [ { do: [ { b: { set: 2 } } ] }, { do: [ { c: { set: 1 } } ] } ] } } ] }";
    let empty = "{ do: [] }";
    for (join, old, new, expected) in [
        ("all", [charge, nested, empty], [nested, empty, charge], vec![]),
        ("all", [charge, nested, empty], [empty, turned, charge], vec![]),
        ("all", [charge, nested, empty], [charge, turned, empty], vec![]),
        // A step that goes to another lane is one.
        (
            "all",
            [charge, nested, empty],
            [
                "{ do: [ { a: { http: { method: POST, url: \"https://a.example\" } } } ] }",
                nested,
                "{ do: [ { z: { set: 1 } } ] }",
            ],
            vec!["branches"],
        ),
        ("any", [charge, nested, empty], [nested, charge, empty], vec!["branches"]),
    ] {
        let found = diff(&flow(old, join), &flow(new, join), &grants());
        let fields: Vec<&str> = found
            .changes
            .iter()
            .flat_map(|change| &change.fields)
            .map(|field| field.field.as_str())
            .collect();
        assert_eq!(fields, expected, "{join}: {old:?} to {new:?}: {found:?}");
        assert_eq!(found.changes.is_empty(), expected.is_empty(), "{found:?}");
    }
}
