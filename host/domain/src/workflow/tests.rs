use std::collections::BTreeMap;

use super::*;
use crate::id::Digest;

fn blocks() -> BTreeMap<String, Digest> {
    ["enrich-lead", "create-task", "charge-card"]
        .map(|name| (name.to_owned(), Digest::of(name.as_bytes())))
        .into()
}

#[test]
fn lab() {
    for text in [
        r#"
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
"#,
        r#"
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
  - enrich: { block: enrich-lead, input: { "a/b": ["=foo(1)", "== x"] } }
  - wait: { delay: 3 days }
  - Up_Per: { set: { n: 9007199254740993 } }
  - par: { parallel: [] }
  - what: { huh: 1 }
  - two: { set: 1 }
    three: { set: 2 }
  - decide:
      switch:
        - when: |
            steps.later.output == 1
          do: [ { inner: { set: "=steps.wait.output" } }, { other: { set: "=steps.inner.output + steps.nope.output" } } ]
        - else: [ { third: { set: "=steps.inner.output" } } ]
        - when: 'true'
          do: [ { http: { http: { method: get, url: /x } } } ]
        - { when: "true" }
  - later: { stop: { outcome: maybe } }
  - end: { stop: {} }
  - after: { http: { http: { method: POST, url: "=event.data.u", timeout: 5m, connection: Bad_One }, retry: { attempts: 0 } } }
invariants:
  - { id: one, kind: htp, rule: effect_at_most_once }
  - { id: one, kind: http, rule: x }
"#,
        "a: [1, 2",
        "name: x\nname: y\nsteps: []\n",
        "[1,2]",
        "",
        "{\"name\": \"x\", \"steps\": [{\"a\": {\"set\": 1}}]}",
        "name: x\nsteps: &a\n  - b: { set: *a }\n",
        "name: x\nsteps: [{a: {set: 007}}, {b: {set: 1_000}}, {c: {set: .nan}}]\n",
        "name: x\nsteps: [{a: {set: {1: 2, true: 3}}}]\n",
        "- \t\n",
    ] {
        println!("-----");
        match Authored::read(text) {
            Err(problem) => println!("{problem} {:?}", problem.code),
            Ok(authored) => match authored.compile(&blocks()) {
                Ok(version) => println!(
                    "{}\n{}",
                    version.canonical,
                    serde_json::to_string_pretty(&version.plan).unwrap()
                ),
                Err(problems) => {
                    for problem in problems {
                        println!("{problem} {:?}", problem.code)
                    }
                }
            },
        }
    }
    println!("{}", serde_json::to_string_pretty(&schema()).unwrap());
}
