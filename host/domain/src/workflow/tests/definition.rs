use std::fmt::Write as _;

use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;

use super::*;
use crate::workflow::plan::NodeKind;

#[test]
fn a_definition_becomes_a_plan() {
    let version = compile(SPEED_TO_LEAD).expect("it holds");
    assert_eq!(version.digest, Digest::of(version.canonical.as_bytes()));
    assert_eq!(version.plan.version(), version.digest);
    assert_json_snapshot!("speed_to_lead", version.plan);
    assert_json_snapshot!("all_kinds", plan(ALL_KINDS));
    let used = Authored::read(SPEED_TO_LEAD).expect("it is YAML").blocks();
    assert_eq!(used, ["create-task", "enrich-lead"].map(str::to_owned).into());
}

#[test]
fn the_schema_is_published() {
    assert_json_snapshot!(schema());
}

#[test]
fn the_skin_does_not_matter_to_the_identity() {
    let yaml = "name: a\nsteps:\n  - &s one: { set: {b: 1, a: 1.0} } # why\n";
    let json = r#"{"steps": [{"one": {"set": {"a": 1, "b": 1e0}}}], "name": "a"}"#;
    let other = r#"{"steps": [{"one": {"set": {"a": 1, "b": 2}}}], "name": "a"}"#;
    let identity = |text| compile(text).expect("it holds").digest;
    assert_eq!(identity(yaml), identity(json));
    assert_ne!(identity(yaml), identity(other));
}

/// The problems of a text, one line each.
fn told(text: &str) -> String {
    let problems = compile(text).map(|version| version.canonical).expect_err("it does not hold");
    let line = |problem: Problem| format!("{problem} {}", json!(problem.code));
    problems.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_will_fail_as_things_are_is_told_with_its_place() {
    let text = r#"
name: self
steps:
  - a: { block: mail, input: { to: 7, subject: "=input.subject", size: "=1 + 1" } }
  - b: { block: mail, input: "=input" }
  - c: { block: mail }
  - d: { block: other, input: 5 }
  - e: { workflow: self }
  - f: { parallel: [ { do: [ { g: { workflow: gone } }, { h: { workflow: there } } ] } ] }
  - i: { http: { connection: nowhere, method: GET, url: /x } }
"#;
    let descriptor = json!({
        "name": "mail",
        "input": {
            "type": "object",
            "required": ["to", "body"],
            "properties": { "to": { "type": "string" }, "subject": { "type": "string" }, "body": true },
            "additionalProperties": false,
        },
        "output": true,
        "effects": [{ "kind": "http", "safety": "at-most-once", "connections": ["smtp", "crm"] }],
    });
    let around = Surroundings {
        active: ["there".to_owned()].into(),
        connections: ["crm".to_owned()].into(),
        blocks: [("mail".to_owned(), serde_json::from_value(descriptor).expect("a descriptor"))].into(),
    };
    let authored = Authored::read(text).expect("it is YAML");
    let blocks = ["mail", "other"].map(|name| (name.to_owned(), Digest([0; 32]))).into();
    let version = authored.compile(&blocks).expect("it holds");
    let told = authored.warnings(&version.definition, &around);
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    let expected = [
        (4, "connection `smtp`"),
        (4, "\"body\" is a required property"),
        (4, "'size' was unexpected"),
        (4, "7 is not of type \"string\" (/steps/0/a/input/to)"),
        (5, "connection `smtp`"),
        (6, "connection `smtp`"),
        (6, "\"to\" is a required property"),
        (6, "\"body\" is a required property"),
        (9, "workflow `gone`"),
        (10, "connection `nowhere`"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (line, words) in expected {
        let is_told = |told: &String| told.starts_with(&format!("{line}:")) && told.contains(words);
        assert!(told.iter().any(is_told), "{line}: {words} in {told:#?}");
    }
}

#[test]
fn every_problem_is_told_at_once_with_its_place() {
    let text = r#"
name: Speed
bogus: 1
triggers:
  - event: "crm lead"
    when: event.data.stage = 'x'
    record: steps.x
  - event: a.b
  - evnt: a
steps:
  - enrich: { block: enrich-led, inputs: 3 }
  - enrich: { block: enrich-led, input: { "a/b": ["=foo(1)", "== x"] } }
  - wait: { delay: 3 days }
  - Up_Per: { set: { n: 9007199254740993 } }
  - par: { parallel: [] }
  - ask: { approval: {} }
  - what: { huh: 1 }
  - two: { set: 1 }
    three: { set: 2 }
  - decide:
      switch:
        - when: |
            steps.later.output == 1
          do: [ { inner: { set: "=steps.wait.output" } }, { other: { set: "=steps.inner.output + steps.nope.x" } } ]
        - else: [ { third: { set: "=steps.inner.output" } } ]
        - when: 'true || ünknown'
          do: [ { call: { http: { method: get, url: /x } } } ]
        - { when: "true" }
  - later: { stop: { outcome: maybe } }
  - end: { stop: {} }
  - after: { http: { method: POST, url: "=event.data.u +", timeout: 5m, connection: Bad_One }, retry: { attempts: 0 } }
invariants:
  - { id: one, kind: htp, rule: effect_at_most_once }
  - { id: one, kind: http, rule: effect_at_most_once }
  - { id: two, kind: http, rule: x }
  - { id: own, kind: emit, rule: effect_at_most_once }
"#;
    let told = told(text);
    assert_snapshot!(told);
}

#[test]
fn what_is_not_yaml_or_too_much_is_told_in_one_line() {
    let nested = |depth: usize| {
        let open = written(0..depth, |n| format!("{{ s{n}: {{ switch: [ {{ else: [ "));
        format!("name: deep\nsteps: [ {open} {} ]", "] } ] } }".repeat(depth))
    };
    let many = |steps: usize| {
        let steps = written(0..steps, |n| format!("  - s{n}: {{ set: 1 }}\n"));
        format!("name: many\nsteps:\n{steps}")
    };
    let bomb =
        format!("a: &a0 [x, x]\n{}", written(1..30, |n| format!("b{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)));
    let inflated = format!("a: &a {}\nb: [{}]", "x".repeat(100_000), "*a, ".repeat(9_000));
    let keys = format!("name: x\nsteps: [ {{ ? {} : [{}] }} ]", "k".repeat(100_000), "1, ".repeat(50_000));
    let wide = format!("name: x\nsteps: [ {{ a: {{ set: [{}] }} }} ]", "\"=event\", ".repeat(2_001));
    let brackets = format!("name: x\nsteps: {}", "[".repeat(20_000));
    let long = format!("name: x\ndescription: '{}'\n", "é".repeat(DEFINITION_BYTES_MAX));
    let mut lines = String::new();
    for text in [
        "",
        "- a",
        "name: x",
        "name: x\nsteps: []",
        "name: x\nsteps: a",
        "a: [1, 2",
        "name: x\nname: y\n",
        "a: *b",
        "a: !!python/object x",
        "name: x\nsteps: &a\n  - b: { set: *a }",
        "name: x\nsteps: [{a: {set: .nan}}]",
        "---\nname: x\n---\nname: y",
        "\tname: x",
        &nested(17),
        &many(501),
        &bomb,
        &inflated,
        &keys,
        &wide,
        &brackets,
        &long,
    ] {
        let shown: String = text.chars().take(40).collect();
        let told: String = told(text).chars().take(160).collect();
        writeln!(lines, "{shown:?}\n{told}").expect("a string takes it");
    }
    assert_snapshot!(lines);
    assert!(compile(&many(500)).is_ok());
    assert!(compile(&nested(15)).is_ok());
}

#[test]
fn scalars_mean_what_yaml_1_2_says_and_numbers_with_a_look_of_text_are_text() {
    let text =
        "name: x\nsteps: [{a: {set: [no, 007, 1_000, 0x10, 1.50, 1e3, ~, 'x', 2001-01-01, yes, true]}}]";
    let canonical = compile(text).expect("it holds").canonical;
    let set = r#"["no","007","1_000",16,1.5,1000,null,"x","2001-01-01","yes",true]"#;
    assert_eq!(canonical, format!(r#"{{"name":"x","steps":[{{"a":{{"set":{set}}}}}]}}"#));
}

#[test]
fn durations_read_and_write_the_same() {
    for (text, ms) in [
        ("90s", Some(90_000)),
        ("1h30m", Some(5_400_000)),
        ("3d", Some(259_200_000)),
        ("1500ms", Some(1_500)),
        ("0s", Some(0)),
        ("365d", Some(31_536_000_000)),
        ("", None),
        ("3", None),
        ("d", None),
        ("3 d", None),
        ("30m1h", None),
        ("1m1m", None),
        ("-1s", None),
        ("1.5h", None),
        ("3D", None),
        ("366d", None),
        ("99999999999999999999d", None),
        ("18446744073709551615d", None),
    ] {
        let read: Option<Duration> = text.parse().ok();
        assert_eq!(read.map(|duration| duration.ms), ms, "{text}");
        if let Some(duration) = read {
            assert_eq!(duration.to_string().parse(), Ok(duration), "{text}");
        }
    }
}

#[test]
fn the_deepest_definition_fits_a_thread() {
    let depth = STEPS_DEPTH_MAX - 1;
    let open = written(0..depth, |n| format!(r#"{{"s{n}":{{"switch":[{{"else":["#));
    let text =
        format!(r#"{{"name":"deep","steps":[{open}{{"last":{{"set":1}}}}{}]}}"#, "]}]}}".repeat(depth));
    let checked = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let plan = plan(&text);
        let (_, end) = follow(&plan, &Value::Null, |_| Ok(Value::Null));
        (plan.nodes().iter().filter(|node| matches!(node.kind, NodeKind::Switch { .. })).count(), end)
    });
    let (switches, end) = checked.expect("a thread starts").join().expect("it does not overflow");
    assert_eq!((switches, end), (depth, RunEnd::Succeeded { output: json!(1) }));
}

#[test]
fn a_workflow_that_starts_itself_is_refused_where_it_does() {
    let flow = |name: &str, on: &str, emits: &str| {
        format!(
            "name: {name}\ntriggers: [ {{ event: {on}, dedup: every_time }} ]\nsteps:\n  - first: {{ set: 1 }}\n  - all: {{ parallel: [ {{ do: [ {{ tell: {{ emit: {{ event: {emits} }} }} }} ] }} ] }}\n"
        )
    };
    let others: BTreeMap<String, Links> = [("b", "x.b", "x.c"), ("c", "x.c", "x.d"), ("old", "x.a", "x.b")]
        .map(|(name, on, emits)| (name.to_owned(), plan(&flow(name, on, emits)).links()))
        .into();
    for (name, emits, way) in [
        ("a", "x.a", Some("a → a")),
        ("d", "x.b", None),
        ("old", "x.other", None),
        ("again", "x.b", Some("again → b → c → again")),
    ] {
        let on = if name == "again" { "x.d" } else { "x.a" };
        let text = flow(name, on, emits);
        let authored = Authored::read(&text).expect("it is YAML");
        let version = authored.compile(&blocks()).expect("it holds");
        let problem = authored.cycle(&version, &others);
        let told = problem.as_ref().map(|problem| (problem.line, problem.message.clone()));
        assert_eq!(
            told,
            way.map(|way| (5, format!("this starts the workflow again, without end: {way}"))),
            "{name}"
        );
    }
}

/// Every list of steps in the guide for application developers, in one workflow.
#[test]
fn the_examples_of_the_guide_hold() {
    let guide = include_str!("../../../../../docs/application-developer.md");
    let examples = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let steps: Vec<&str> = examples.filter(|example| example.starts_with("  - ")).collect();
    assert!(steps.len() >= 4, "{steps:?}");
    let text = format!("name: guide\nsteps:\n  - score: {{ set: 1 }}\n{}", steps.concat());
    if let Err(problems) = compile(&text) {
        panic!("{text}\n{problems:#?}");
    }
}
