use super::*;
use crate::effect::{Answer, EffectCall, EffectReply, EffectRequest, HttpRequest};
use crate::ports::StepEnd;

const SCENARIO: &str = "\
name: a lost answer
input: { order: o-1 }
answers:
  - { to: charge, status: 201, json: { id: 1 } }
crash_before_answer: [1]
expect:
  blocked: true
  receipts:
    - { effect: charge, state: unknown }
then:
  - resolve: { effect: charge, outcome: committed, evidence: seen, status: 201, json: { id: 1 } }
    expect:
      output: { id: 1 }
      calls: [{ effect: charge, request: POST /charges, json: { order: o-1 } }]
";

fn grants() -> Vec<EffectGrant> {
    let grant = json!({ "kind": "http", "safety": "at-most-once", "connections": ["payments"] });
    vec![serde_json::from_value(grant).expect("a grant")]
}

/// A block that charges, and says what it was answered.
fn run(rehearsal: &mut Rehearsal, path: &str) -> Outcome {
    loop {
        rehearsal.begin();
        let request = HttpRequest {
            method: "POST".into(),
            url: path.into(),
            headers: vec![("content-type".into(), "application/json".into())],
            body: br#"{"order":"o-1"}"#.to_vec(),
        };
        let call = EffectCall {
            request: EffectRequest::Http(request),
            key: Some("charge".into()),
            connection: Some("payments".into()),
            safety: None,
            idempotency_key: None,
            timeout_ms: None,
            extra: vec![],
        };
        let end = match rehearsal.perform(&call) {
            EffectReply::Answered(Answer::Http(response)) => {
                StepEnd::Output(String::from_utf8(response.body).expect("text"))
            }
            EffectReply::Stop => StepEnd::Stopped,
            other => StepEnd::Failed {
                retry_after_ms: None,
                code: "refused".into(),
                message: format!("{other:?}"),
            },
        };
        match rehearsal.finish(end) {
            Outcome::Crashed | Outcome::Queued => {}
            outcome => return outcome,
        }
    }
}

/// Plays the scenario with a block that calls `path`; every mismatch as it reads.
fn play(text: &str, path: &str) -> Vec<String> {
    let scenario = Scenario::read(text).expect("a scenario");
    let mut rehearsal = scenario.rehearsal(grants());
    let mut found = vec![];
    for stage in 0..=scenario.stages().len() {
        if let Some(Stage { resolve: Some(resolve), .. }) =
            stage.checked_sub(1).map(|at| &scenario.stages()[at])
        {
            let by = crate::receipt::Actor::Host;
            rehearsal.resolve(&resolve.effect, resolve.resolution(), by).expect("it is unknown");
        }
        let outcome = run(&mut rehearsal, path);
        found.extend(scenario.compare(stage, &outcome, &rehearsal, &[]));
    }
    found
        .into_iter()
        .map(|Mismatch { pointer, line, column, expected, found }| {
            format!("{line}:{column} {pointer}: expected {expected}, found {found}")
        })
        .collect()
}

#[test]
fn what_comes_of_a_scenario_is_held_against_what_it_says() {
    assert_eq!(play(SCENARIO, "/charges"), [""; 0]);
    for (from, to, expected) in [
        (
            "state: unknown",
            "state: committed",
            "9:32 /expect/receipts/0/state: expected \"committed\", found \"unknown\"",
        ),
        ("output: { id: 1 }", "output: { id: 2 }", "13:21 /then/0/expect/output/id: expected 2, found 1"),
        ("output: { id: 1 }", "output: {}", "13:15 /then/0/expect/output: expected no `id`, found `id`: 1"),
        (
            "blocked: true",
            "output: 1",
            "7:11 /expect/output: expected the output 1, found that it is blocked: the outcome of effect `charge` is unknown",
        ),
        (
            "blocked: true",
            "failed: x",
            "7:11 /expect/failed: expected the failure x, found that it is blocked: the outcome of effect `charge` is unknown",
        ),
        (
            "POST /charges",
            "POST /other",
            "14:42 /then/0/expect/calls/0/request: expected \"POST /other\", found \"POST /charges\"",
        ),
        (
            "{ order: o-1 } }]",
            "{ order: o-1, x: 1 } }]",
            "14:80 /then/0/expect/calls/0/json/x: expected 1, found nothing",
        ),
        (
            "[{ effect: charge, request: POST /charges, json: { order: o-1 } }]",
            "[]",
            "14:14 /then/0/expect/calls: expected 0, after 0: none, found 1, after 0: (charge POST /charges)",
        ),
    ] {
        let text = SCENARIO.replacen(from, to, 1);
        assert_ne!(text, SCENARIO, "{from}");
        assert_eq!(play(&text, "/charges"), [expected], "{to}");
    }
    let otherwise = SCENARIO.replace("to: charge, ", "to: POST /other, ");
    assert_eq!(
        play(&otherwise.replace("crash_before_answer: [1]", "drop_answer: [1]"), "/other"),
        ["14:42 /then/0/expect/calls/0/request: expected \"POST /charges\", found \"POST /other\""]
    );
}

#[test]
fn what_is_no_scenario_is_told_where() {
    for (from, to, expected) in [
        ("input:", "inputs:", "2:1: there is no `inputs` here"),
        ("state: unknown", "stat: unknown", "9:25: there is no `stat` here"),
        ("crash_before_answer", "crash_before", "5:1: there is no `crash_before` here"),
        (
            "blocked: true",
            "blocked: maybe",
            "7:12: `true` or `false` is expected here, and this is \"maybe\" (/expect/blocked)",
        ),
        (
            "blocked: true",
            "logs: []",
            "7:3: say how it ends: `output`, `failed` with a code, or `blocked: true` (/expect)",
        ),
        ("status: 201, json: { id: 1 } }\ncrash", "json: { id: 1 } }\ncrash", "4:5: an answer is a `status`"),
        ("[1]", "[", ""),
    ] {
        let text = SCENARIO.replacen(from, to, 1);
        let problem = Scenario::read(&text).expect_err(to).to_string();
        assert!(problem.starts_with(expected), "{to}: {problem}");
    }
}

#[test]
fn a_block_that_does_otherwise_when_it_is_run_again_is_found() {
    let scenario = Scenario::read(&SCENARIO.replace("crash_before_answer: [1]\n", "")).expect("a scenario");
    let mut rehearsal = scenario.rehearsal(grants());
    assert_eq!(run(&mut rehearsal, "/charges"), Outcome::Succeeded(json!({ "id": 1 })));
    let differences = |path: &str| -> Vec<Option<String>> {
        let again = |mut again: Rehearsal| {
            run(&mut again, path);
            again.difference().map(|difference| difference.to_string())
        };
        rehearsal.reruns().into_iter().map(again).collect()
    };
    assert_eq!(differences("/charges"), [None, None]);
    let expected = |recorded: u32| {
        let what = "call 1 was `POST /other` of `charge`, and had been `POST /charges` of `charge`";
        Some(format!("not deterministic: run again with {recorded} answers from its journal, {what}"))
    };
    assert_eq!(differences("/other"), [expected(0), expected(1)]);
}
