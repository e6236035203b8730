//! Events become runs, or refusals that say why.

use counterfoil_domain::id::EventId;
use counterfoil_domain::ports::{StepEnd, StepJob};
use counterfoil_store::event::Outcome;
use counterfoil_store::run::RunState;
use serde_json::json;

use crate::house::{House, eventually};

const TRIGGERED: &str = r#"
name: welcome
triggers:
  - { event: lead.created, when: event.data.score > 10, record: event.data.id }
  - { event: lead.touched, record: event.data.id, dedup: not_while_running }
  - { event: lead.seen, dedup: every_time }
steps:
  - wait: { delay: "=0" }
"#;

async fn outcome(house: &House, event: EventId) -> anyhow::Result<String> {
    let outcomes: Vec<Outcome> = eventually(async || {
        let seen = house.work.store.event(house.work.tenant, event).await?;
        Ok(seen.map(|seen| seen.outcomes).filter(|outcomes| !outcomes.is_empty()))
    })
    .await?;
    Ok(match &outcomes[0] {
        Outcome { run: Some(_), .. } => "run".into(),
        Outcome { refusal: Some((code, _)), .. } => code.clone(),
        other => format!("{other:?}"),
    })
}

#[tokio::test]
async fn every_event_has_a_run_or_a_reason() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&TRIGGERED.replace("\"=0\"", "1h")).await?;
    let _host = house.host()?;
    let cases = [
        ("lead.created", json!({ "id": "a", "score": 20 }), "run"),
        ("lead.created", json!({ "id": "a", "score": 20 }), "duplicate_trigger"),
        ("lead.created", json!({ "id": "b", "score": 5 }), "rule_not_matched"),
        ("lead.created", json!({ "id": null, "score": 20 }), "missing_record_identity"),
        ("lead.created", json!({ "score": "high" }), "expression_failed"),
        ("lead.touched", json!({ "id": "c" }), "run"),
        ("lead.touched", json!({ "id": "c" }), "already_running"),
        ("lead.seen", json!({}), "run"),
        ("lead.seen", json!({}), "run"),
    ];
    for (event_type, data, expected) in cases {
        let event = house.event(event_type, None, data.clone()).await?;
        assert_eq!(outcome(&house, event).await?, expected, "{event_type} {data}");
    }
    house.work.store.set_paused(house.work.tenant, "welcome", true).await?;
    let event = house.event("lead.seen", None, json!({})).await?;
    assert_eq!(outcome(&house, event).await?, "workflow_paused");
    Ok(())
}

/// An event that is delivered again, after a crash between admission and its mark, finds the run that exists.
#[tokio::test]
async fn a_redelivered_event_starts_nothing_new() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&TRIGGERED.replace("\"=0\"", "1h")).await?;
    let _host = house.host()?;
    let event = house.event("lead.seen", None, json!({})).await?;
    assert_eq!(outcome(&house, event).await?, "run");
    let published = async || {
        let pending = house.work.count("SELECT count(*) FROM events WHERE pending").await?;
        Ok((pending == 0).then_some(()))
    };
    eventually(published).await?;
    let forget = "UPDATE events SET pending = true, published_at = NULL, hold_id = NULL, hold_until = NULL";
    house.work.execute(forget).await?;
    eventually(published).await?;
    let runs = house.work.count("SELECT count(*) FROM runs").await?;
    assert_eq!(runs, 1);
    Ok(())
}

/// A workflow that listens twice to one type takes an event by whichever of its triggers fits.
#[tokio::test]
async fn the_first_trigger_that_fits_starts_the_run() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "
name: twice
triggers:
  - { event: lead.created, when: event.data.score > 10, dedup: every_time }
  - { event: lead.created, when: event.data.score < 5, dedup: every_time }
steps:
  - wait: { delay: 1h }
",
        )
        .await?;
    let _host = house.host()?;
    for (score, expected) in [(20, "run"), (1, "run"), (7, "rule_not_matched")] {
        let event = house.event("lead.created", None, json!({ "score": score })).await?;
        assert_eq!(outcome(&house, event).await?, expected, "{score}");
    }
    Ok(())
}

/// What one application writes is not read by others' leave.
#[tokio::test]
async fn an_event_that_cannot_be_read_is_refused_and_keeps_no_other_waiting() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&TRIGGERED.replace("\"=0\"", "1h")).await?;
    house
        .work
        .execute("SELECT counterfoil.emit_event(id, 'lead.seen', '{\"n\": 1e400}') FROM tenants")
        .await?;
    let deep = "SELECT counterfoil.emit_event(
                    id, 'lead.seen', (repeat('[', 200) || repeat(']', 200))::jsonb) FROM tenants";
    house.work.execute(deep).await?;
    let event = house.event("lead.seen", None, json!({})).await?;
    let _host = house.host()?;
    assert_eq!(outcome(&house, event).await?, "run");
    let refused = "SELECT count(*) FROM deliveries
                   WHERE refusal = 'output_invalid' AND detail LIKE 'its data cannot be read: %'";
    eventually(async || Ok((house.work.count(refused).await? == 2).then_some(()))).await?;
    eventually(async || {
        let pending = house.work.count("SELECT count(*) FROM events WHERE pending").await?;
        Ok((pending == 0).then_some(()))
    })
    .await
}

/// What could be stored and not be read again would be tried for ever.
#[tokio::test]
async fn an_output_that_is_nested_too_deeply_fails_its_step() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    let nested = |_: &StepJob| StepEnd::Output(format!("{}{}", "[".repeat(120), "]".repeat(120)));
    house.block("nest", nested).await?;
    house.workflow("name: nest\nsteps:\n  - a: { block: nest }\n").await?;
    let _host = house.host()?;
    let run = house.start("nest", json!({})).await?;
    let view = house.ended(run).await?;
    assert_eq!(
        (view.row.state, &view.error.unwrap_or_default()["code"]),
        (RunState::Failed, &json!("output_invalid"))
    );
    Ok(())
}
