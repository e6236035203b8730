use std::collections::BTreeSet;
use std::fmt::Write as _;

use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::code::Code;
use crate::effect::Safety;
use crate::step::{Delays, RetryPolicy};
use crate::workflow::plan::{PLAN_FORMAT, PlanError, RenderedHttp};

#[test]
fn a_trigger_asks_its_event() {
    let plan = plan(SPEED_TO_LEAD);
    let [trigger] = plan.triggers() else { panic!("one trigger") };
    let asked = |data: Value| {
        let event = json!({ "data": data });
        (
            trigger.holds(&event).map_err(|error| error.code()),
            trigger.record(&event).map_err(|error| error.code()),
        )
    };
    for (data, answer) in [
        (json!({ "score": 11, "id": "l-1" }), (Ok(true), Ok(Some("l-1".to_owned())))),
        (json!({ "score": 10, "id": 7 }), (Ok(false), Ok(Some("7".to_owned())))),
        (json!({ "score": 11, "id": "" }), (Ok(true), Ok(None))),
        (json!({ "score": 11, "id": null }), (Ok(true), Ok(None))),
        (json!({ "score": 11 }), (Ok(true), Ok(None))),
        (json!({ "score": "11", "id": 1.5 }), (Err(Code::ExpressionFailed), Err(Code::ExpressionFailed))),
        (json!({}), (Err(Code::ExpressionFailed), Ok(None))),
    ] {
        assert_eq!(asked(data.clone()), answer, "{data}");
    }
}

#[test]
fn a_run_follows_its_branches_to_an_end() {
    let plan = plan(ALL_KINDS);
    let mut story = String::new();
    for (input, charge) in [
        (json!({ "count": 600, "id": "a" }), Ok(json!("paid"))),
        (json!({ "count": 200, "id": "a" }), Ok(json!("paid"))),
        (json!({ "count": 200, "id": "a" }), Err(StepError::new(Code::BlockFailed, "card declined"))),
        (json!({ "count": 11, "id": "a" }), Ok(json!(null))),
        (json!({ "count": 10 }), Ok(json!(null))),
        (json!({ "count": 1 }), Ok(json!(null))),
        (json!({ "count": "many" }), Ok(json!(null))),
        (json!({}), Ok(json!(null))),
    ] {
        let (lines, end) = follow(&plan, &input, |_| charge.clone());
        let end = match end {
            RunEnd::Succeeded { output } => format!("succeeded: {output}"),
            RunEnd::Failed { node, error } => format!("failed at {node}: {} ({})", error.message, error.code),
        };
        writeln!(story, "{input}\n  {}\n  {end}", lines.join("\n  ")).expect("a string takes it");
    }
    assert_snapshot!(story);
}

#[test]
fn a_replay_takes_the_branch_that_was_recorded() {
    let plan = plan(ALL_KINDS);
    let nothing = Value::Null;
    let large = json!({ "twice": 5000 });
    let mut scope = Scope::new(&nothing, &nothing, &nothing);
    scope.add_step("size/large", &large);
    let taken = |branch: Value| {
        let output = json!({ "branch": branch });
        let next =
            advance(&plan, &scope, Event::Succeeded { node: "size/route", iteration: &[], output: &output });
        let skipped = next.settled.iter().filter(|step| step.outcome == Outcome::Skipped);
        let skipped: Vec<_> = skipped.map(|step| step.node.clone()).collect();
        (skipped, next.open.into_iter().map(|step| step.node).collect::<Vec<_>>(), next.end)
    };
    // The condition would choose the first branch.
    assert_eq!(
        taken(json!(1)),
        (vec!["size/route/refuse".to_owned()], vec!["size/route/charge".to_owned()], None)
    );
}

#[test]
fn what_is_not_in_the_plan_ends_the_run_with_an_error() {
    let event = Event::Succeeded { node: "gone", iteration: &[], output: &Value::Null };
    let next = advance(&plan(SPEED_TO_LEAD), &Scope::default(), event);
    let error = StepError::new(Code::Internal, "the plan has no node `gone`");
    let end = Some(RunEnd::Failed { node: "gone".to_owned(), error });
    assert_eq!(next, Advance { settled: vec![], open: vec![], join: None, undone: vec![], end });
}

#[test]
fn inputs_are_rendered_when_a_step_runs() {
    let plan = plan(
        r#"
name: calls
steps:
  - block: { block: enrich-lead, input: { id: "=input.id", plain: ["==x"] }, retry: { attempts: 3, delays: [1s, 1m] } }
  - json: { http: { connection: crm, method: POST, url: "='/leads/' + input.id", headers: { X-Id: "=input.n" },
                    body: { id: "=input.id" }, safety: idempotent, idempotency_key: "=input.id", timeout: 20s } }
  - text: { http: { method: PUT, url: https://a.test/x, headers: { Content-Type: text/csv }, body: "='a,' + input.id" } }
  - bare: { http: { method: GET, url: "=input.list" } }
  - fails: { block: enrich-lead, input: { deep: ["=input.missing"] } }
"#,
    );
    let input = json!({ "id": "l-1", "n": 7, "list": [] });
    let scope = Scope::new(&Value::Null, &input, &Value::Null);
    assert_eq!(plan.render_input("block", &scope), Ok(json!({ "id": "l-1", "plain": ["=x"] })));
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        plan.render_http("json", &scope),
        Ok(RenderedHttp {
            method: "POST".to_owned(),
            url: "/leads/l-1".to_owned(),
            headers: vec![header("X-Id", "7"), header("content-type", "application/json")],
            body: br#"{"id":"l-1"}"#.to_vec(),
            connection: Some("crm".to_owned()),
            safety: Some(Safety::Idempotent),
            idempotency_key: Some("l-1".to_owned()),
            timeout_ms: Some(20_000),
        })
    );
    let text = plan.render_http("text", &scope).expect("it renders");
    assert_eq!((text.headers, text.body), (vec![header("Content-Type", "text/csv")], b"a,l-1".to_vec()));
    for (error, message) in [
        (plan.render_http("bare", &scope).err(), "a list where a text is wanted, at `url`"),
        (
            plan.render_input("fails", &scope).err(),
            "no field `input.missing` in `input.missing`, at `/deep/0`",
        ),
        (plan.render_input("bare", &scope).err(), "the plan has no such node `bare`"),
    ] {
        assert_eq!(error.map(|error| error.to_string()).as_deref(), Some(message));
    }
    let retry = |node| plan.retry(node);
    assert_eq!(
        retry("block"),
        Some(RetryPolicy { retries_max: 2, delays: Delays::Listed(vec![1_000, 60_000]) })
    );
    assert_eq!(retry("json"), Some(RetryPolicy::DEFAULT));
    assert_eq!(super::plan(SPEED_TO_LEAD).retry("wait"), Some(RetryPolicy::NEVER));
    assert_eq!(retry("gone"), None);
}

#[test]
fn a_stored_plan_that_leads_astray_is_refused() {
    let stored = serde_json::to_value(plan(ALL_KINDS)).expect("it is JSON");
    let read = |change: &dyn Fn(&mut Value)| {
        let mut stored = stored.clone();
        change(&mut stored);
        serde_json::from_value::<Plan>(stored).map(|_| ()).map_err(|error| error.to_string())
    };
    let astray = |node| Err(PlanError::EdgeInvalid { node }.to_string());
    assert_eq!(read(&|_| {}), Ok(()));
    assert_eq!(read(&|plan| plan["format"] = json!(2)), Ok(()));
    assert_eq!(read(&|plan| plan["format"] = json!(0)), Err(PlanError::FormatUnknown(0).to_string()));
    // What a newer host wrote is told by its format, whatever else it holds.
    let newest = PLAN_FORMAT + 1;
    let newer =
        |plan: &mut Value| *plan = json!({ "format": newest, "nodes": [{ "kind": "not known here" }] });
    assert_eq!(read(&newer), Err(PlanError::FormatUnknown(newest.into()).to_string()));
    assert_eq!(read(&|plan| plan["nodes"][1]["then"] = json!({ "node": 0 })), astray(1));
    assert_eq!(read(&|plan| plan["nodes"][1]["then"] = json!({ "node": 99 })), astray(1));
    assert_eq!(read(&|plan| plan["nodes"][1]["then"] = json!({ "join": 2 })), astray(1));
    assert_eq!(read(&|plan| plan["nodes"][0]["branches"][0]["nodes"]["end"] = json!(99)), astray(0));
    // A stored expression that this host would not save fails where it is used, not here.
    assert_eq!(read(&|plan| plan["nodes"][1]["value"] = json!("=no_such()")), Ok(()));
}

/// Lists of steps, as JSON: each step's name is to be numbered.
fn step_lists() -> impl Strategy<Value = Value> {
    let node = prop_oneof![
        Just(json!({ "block": "charge-card", "input": { "n": "=input.n" } })),
        Just(json!({ "http": { "method": "GET", "url": "https://a.test/" } })),
        Just(json!({ "delay": "1s" })),
        Just(json!({ "set": "=input.n + 1" })),
        Just(json!({ "set": "=input.missing" })),
    ];
    let leaf = proptest::collection::vec(node.clone(), 0..4).prop_map(Value::from);
    leaf.prop_recursive(4, 40, 4, move |inner| {
        let whens = ["input.n > 1", "input.n < 1", "input.n == 2", "input.missing", "true"];
        let branch = (proptest::sample::select(whens.to_vec()), inner)
            .prop_map(|(when, list)| json!({ "when": when, "do": list }));
        let switch =
            proptest::collection::vec(branch, 1..4).prop_map(|branches| json!({ "switch": branches }));
        proptest::collection::vec(prop_oneof![node.clone(), switch], 0..4).prop_map(Value::from)
    })
}

/// Gives every step in `list` a name of its own.
fn named(list: &Value, count: &mut usize) -> Value {
    let name_step = |node: &Value| {
        let name = format!("s{count}");
        *count += 1;
        let mut node = node.clone();
        for branch in node.get_mut("switch").and_then(Value::as_array_mut).into_iter().flatten() {
            branch["do"] = named(&branch["do"], count);
        }
        json!({ name: node })
    };
    list.as_array().into_iter().flatten().map(name_step).collect()
}

proptest! {
    #[test]
    fn no_run_is_stuck(list in step_lists(), n in 0..4, fails in 0..30_usize) {
        let mut count = 0;
        let mut steps = named(&list, &mut count);
        if count == 0 {
            steps = json!([{ "only": { "delay": "1s" } }]);
        }
        let plan = plan(&json!({ "name": "any", "steps": steps }).to_string());

        let paths: BTreeSet<_> = plan.nodes().iter().map(|node| node.path.as_str()).collect();
        prop_assert_eq!(paths.len(), plan.nodes().len(), "every path is unique");
        let stored = serde_json::to_string(&plan).expect("it is JSON");
        let loaded: Plan = serde_json::from_str(&stored).expect("it loads");
        prop_assert_eq!(&loaded, &plan);
        prop_assert_eq!(serde_json::to_string(&loaded).expect("it is JSON"), stored);

        let failing = plan.nodes().get(fails).map(|node| node.path.clone());
        let input = json!({ "n": n });
        let (lines, end) = follow(&loaded, &input, |node| {
            if Some(node) == failing.as_deref() { Err(StepError::new(Code::GuestTrap, "trap")) } else { Ok(json!(n)) }
        });
        let mut settled = BTreeSet::new();
        for line in &lines {
            let node = line.split(' ').next().unwrap_or_default();
            prop_assert!(settled.insert(node), "{} settles once: {:#?}", node, &lines);
            prop_assert!(plan.node(node).is_some());
        }
        if matches!(end, RunEnd::Succeeded { .. }) {
            prop_assert_eq!(settled.len(), plan.nodes().len(), "a run that succeeds without `stop` leaves nothing open");
        }
    }
}
