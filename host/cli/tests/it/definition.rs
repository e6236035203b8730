//! `workflow check`: every problem where it stands, without a host.

use std::fs;

use serde_json::json;

use crate::program::{counterfoil, run};

const BAD: &str = "\
name: speed-to-lead
triggers:
  - event: crm.lead.created
    when: event.data.score >
steps:
  - enrich: { blok: enrich-lead, input: { domain: \"=event.data.domain\" } }
  - decide:
      switch:
        - when: steps.later.output.tier == \"gold\"
          do: [ { task: { block: Create_Task } } ]
  - wait:\t{ delay: soon }
";

#[test]
fn every_problem_is_shown_where_it_stands() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(home.path().join("bad.yaml"), BAD)?;
    let said = run(counterfoil(home.path()).args(["workflow", "check", "bad.yaml"]));
    insta::assert_snapshot!(said.text(home.path()), @r#"
    bad.yaml:3:5: `dedup: once_per_record` needs `record`; without one, say `dedup: every_time`
    3 |   - event: crm.lead.created
      |     ^

    bad.yaml:4:29: the expression ends too early
    4 |     when: event.data.score >
      |                             ^

    bad.yaml:6:13: what a step does is told by one of `block`, `http`, `delay`, `switch`, `parallel`, `map`, `try`, `emit`, `listen`, `approval`, `workflow`, `worker`, `set`, `stop`
    6 |   - enrich: { blok: enrich-lead, input: { domain: "=event.data.domain" } }
      |             ^

    bad.yaml:9:23: there is no step `later`
    9 |         - when: steps.later.output.tier == "gold"
      |                       ^

    bad.yaml:10:34: the name of a block is a small letter, then small letters, digits and `-`, at most 64 in all
    10 |           do: [ { task: { block: Create_Task } } ]
       |                                  ^

    bad.yaml:11:20: `soon` is not a length of time: write 90s, 1h30m or 3d, with d, h, m, s and ms in this order
    11 |   - wait:	{ delay: soon }
       |          	         ^

    --- stderr
    6 problems
    --- exit 6
    "#);

    let said = run(counterfoil(home.path()).args(["-o", "json", "workflow", "check", "bad.yaml"]));
    let document = said.json();
    assert_eq!((said.code, &document["valid"]), (Some(6), &json!(false)));
    let first = &document["problems"][0];
    let fields: Vec<&String> = first.as_object().expect("a problem").keys().collect();
    assert_eq!(fields, ["pointer", "line", "column", "code", "message"]);

    // A push finds the same, and asks nobody.
    let said = run(counterfoil(home.path()).args(["workflow", "push", "bad.yaml", "--key", "k"]));
    assert_eq!((said.code, said.stdout.as_str()), (Some(6), ""));
    assert!(said.stderr.starts_with("error: bad.yaml is refused: "), "{}", said.stderr);
    Ok(())
}

#[test]
fn a_definition_that_holds_is_valid_whatever_blocks_there_are() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    fs::write(
        home.path().join("good.json"),
        r#"{ "name": "good", "steps": [ { "a": { "block": "not-here" } } ] }"#,
    )?;
    let said = run(counterfoil(home.path()).args(["workflow", "check", "good.json"]));
    assert_eq!(said.text(home.path()), "good is valid\n--- stderr\n--- exit 0");
    let said = run(counterfoil(home.path()).args(["workflow", "check", "good.json", "-o", "json"]));
    assert_eq!((said.code, said.json()), (Some(0), json!({ "name": "good", "valid": true, "problems": [] })));
    Ok(())
}
