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
    insta::assert_snapshot!(said.text(home.path()), @"");

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
