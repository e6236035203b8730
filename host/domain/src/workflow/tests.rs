//! The promise: a definition holds or every fault in it is told with its place, and a run always has something to do.

mod containers;
mod definition;
mod diff;
mod run;
mod simulation;

use std::collections::BTreeMap;

use serde_json::Value;

use super::advance::{Advance, Event, Outcome, RunEnd, Wait};
use super::*;
use crate::expression::Scope;
use crate::id::Digest;
use crate::step::StepError;

const SPEED_TO_LEAD: &str = r#"
name: speed-to-lead
triggers:
  - event: crm.lead.created
    when: event.data.score > 10          # CEL
    record: event.data.id
    dedup: once_per_record
steps:                                    # in order; each a map of one name to one node
  - enrich: { block: enrich-lead, input: { domain: "=event.data.domain" } }
  - wait:   { delay: 3d }
  - decide:
      switch:
        - when: steps.enrich.output.tier == "gold"
          do: [ { call: { block: create-task, input: { lead: "=event.data.id" } } } ]
        - else: []
invariants:
  - { id: one-task, kind: http, rule: effect_at_most_once, commit_guard: true }
"#;

/// Every kind of node, and nesting.
const ALL_KINDS: &str = r#"
name: all-kinds
steps:
  - size:
      switch:
        - when: input.count > 100
          do:
            - large: { set: { label: large, twice: "=input.count * 2" } }
            - route:
                switch:
                  - when: steps.large.output.twice > 1000
                    do: [ { refuse: { stop: { outcome: failed, message: "='too many: ' + string(input.count)" } } } ]
                  - else: [ { charge: { block: charge-card, input: "=steps.large.output", retry: { attempts: 2 } } } ]
            - rest: { delay: 1h30m }
        - when: input.count > 10
          do: [ { notify: { http: { method: POST, url: "='/leads/' + input.id", body: { n: "=input.count" } } } } ]
        - when: input.count == 10
          do: []
  - total: { set: { count: "=input.count", charged: "=has(steps.charge)" } }
  - done: { stop: { output: "=steps.total.output" } }
"#;

fn blocks() -> BTreeMap<String, Digest> {
    ["enrich-lead", "create-task", "charge-card"]
        .map(|name| (name.to_owned(), Digest::of(name.as_bytes())))
        .into()
}

fn compile(text: &str) -> Result<Version, Vec<Problem>> {
    Authored::read(text).map_err(|problem| vec![problem])?.compile(&blocks())
}

fn plan(text: &str) -> Plan {
    compile(text).unwrap_or_else(|problems| panic!("{problems:#?}")).plan
}

fn written(range: std::ops::Range<usize>, piece: impl Fn(usize) -> String) -> String {
    range.map(piece).collect::<Vec<_>>().concat()
}

/// Follows a run to its end; every block and call answers with what `answer` says. Returns what happened, a line each.
fn follow(
    plan: &Plan,
    input: &Value,
    answer: impl Fn(&str) -> Result<Value, StepError>,
) -> (Vec<String>, RunEnd) {
    let nothing = Value::Null;
    let mut lines = Vec::new();
    let mut outputs: Vec<(String, Value)> = Vec::new();
    let mut last: Option<(String, Result<Value, StepError>)> = None;
    // A plan has finitely many nodes, and each settles at most once.
    for _ in 0..=plan.nodes().len() {
        let mut scope = Scope::new(&nothing, input, &nothing);
        for (node, output) in &outputs {
            scope.add_step(node, output);
        }
        let event = match &last {
            None => Event::Started,
            Some((node, Ok(output))) => Event::Succeeded { node, iteration: &[], output },
            Some((node, Err(error))) => Event::Failed { node, iteration: &[], error },
        };
        let Advance { settled, open, end, .. } = advance(plan, &scope, event);
        if let Some((node, Ok(output))) = last.take() {
            outputs.push((node, output));
        }
        for step in settled {
            lines.push(match step.outcome {
                Outcome::Succeeded { output, choice } => {
                    let line = match choice {
                        Some(choice) => format!("{} took branch {choice}", step.node),
                        None => format!("{} = {output}", step.node),
                    };
                    outputs.push((step.node, output));
                    line
                }
                Outcome::Skipped => format!("{} skipped", step.node),
                Outcome::Failed(error) => format!("{} failed: {}", step.node, error.message),
            });
        }
        if let Some(end) = end {
            assert_eq!(open, [], "an ended run has nothing open");
            return (lines, end);
        }
        let [step] = open.try_into().unwrap_or_else(|open| panic!("stuck, or too much at once: {open:?}"));
        let answer = match step.wait {
            Wait::Delay { .. } => Ok(Value::Null),
            _ => answer(&step.node),
        };
        lines.push(match (&answer, step.wait) {
            (Ok(_), Wait::Delay { ms }) => format!("{} waited {ms} ms", step.node),
            (Ok(output), _) => format!("{} ran: {output}", step.node),
            (Err(error), _) => format!("{} failed: {}", step.node, error.message),
        });
        last = Some((step.node, answer));
    }
    panic!("the run does not end: {lines:#?}");
}
