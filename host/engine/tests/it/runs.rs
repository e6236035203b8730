//! Runs, from their start to their end.

use std::time::Duration;

use counterfoil_domain::ports::StepEnd;
use counterfoil_store::retention::KeepFor;
use counterfoil_store::run::RunState;
use counterfoil_testkit::provider::Act;
use serde_json::json;

use crate::house::{House, eventually};

const ORDER: &str = r#"
name: order
steps:
  - charge: { http: { connection: p, method: POST, url: /charges, body: { cents: "=input.cents" } } }
  - rate: { set: "=steps.charge.output.body.id" }
  - decide:
      switch:
        - when: input.cents > 100
          do: [ { reserve: { http: { connection: p, method: POST, url: /reservations, body: {} } } } ]
        - else: []
  - done: { set: { charge: "=steps.rate.output", big: "=input.cents > 100" } }
"#;

#[tokio::test]
async fn a_run_goes_through_its_nodes_to_its_output() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(ORDER).await?;
    let _host = house.host()?;
    for (cents, calls) in [(500, vec!["/charges", "/reservations"]), (50, vec!["/charges"])] {
        let before = house.provider.calls().len();
        let run = house.start("order", json!({ "cents": cents })).await?;
        let view = house.ended(run).await?;
        let charge = format!("ch_{}", before + 1);
        assert_eq!(view.output, Some(json!({ "charge": charge, "big": cents > 100 })), "{view:?}");
        let paths: Vec<String> =
            house.provider.calls()[before..].iter().map(|call| call.path.clone()).collect();
        assert_eq!(paths, calls);
    }
    Ok(())
}

#[tokio::test]
async fn blocks_see_what_came_before_them() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house
        .block("add-one", |job| {
            let input: serde_json::Value = serde_json::from_str(&job.input).unwrap_or_default();
            StepEnd::Output(json!({ "n": input["n"].as_i64().unwrap_or(-100) + 1 }).to_string())
        })
        .await?;
    house
        .workflow(
            r#"
name: count
steps:
  - one: { block: add-one, input: { n: "=input.n" } }
  - two: { block: add-one, input: { n: "=steps.one.output.n" } }
  - three: { block: add-one, input: "=steps.two.output" }
"#,
        )
        .await?;
    let _host = house.host()?;
    let run = house.start("count", json!({ "n": 1 })).await?;
    assert_eq!(house.ended(run).await?.output, Some(json!({ "n": 4 })));
    assert_eq!(house.steps(run).await?, ["one succeeded 1", "two succeeded 1", "three succeeded 1"]);
    Ok(())
}

#[tokio::test]
async fn a_block_is_run_only_with_an_input_that_it_takes() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    let order = json!({
        "type": "object", "required": ["order"],
        "properties": { "order": { "type": "string" }, "lines": { "items": { "enum": (0..200).collect::<Vec<_>>() } } },
    });
    // Was uploaded before schemas were read: it cannot be checked, and is run.
    for (name, schema) in [("order", order), ("old", json!({ "$ref": "#" }))] {
        house.block_taking(name, schema, |_| StepEnd::Output("1".into())).await?;
        let source = format!("name: {name}\nsteps:\n  - only: {{ block: {name}, input: \"=input\" }}\n");
        house.workflow(&source).await?;
    }
    let host = house.host()?;
    let lines = |count: usize| json!({ "order": "o-1", "lines": vec![7; count] });
    for (block, input, refusal) in [
        ("order", json!({ "order": "o-1" }), None),
        ("old", json!(7), None),
        ("order", json!({}), Some("/: \"order\" is a required property")),
        ("order", json!({ "order": 7 }), Some("/order: 7 is not of type \"string\"")),
        ("order", lines(300), None),
        (
            "order",
            lines(3_000),
            Some("it cannot be checked against its schema: that would take too much work"),
        ),
    ] {
        let before = host.runner.ran.lock().map_or(0, |ran| ran.len());
        let run = house.start(block, input).await?;
        let view = house.ended(run).await?;
        let error = refusal.map(|why| {
            json!({ "code": "input_invalid", "message": format!("the input is not what the block takes: {why}") })
        });
        let said =
            view.error.as_ref().map(|error| json!({ "code": error["code"], "message": error["message"] }));
        assert_eq!(said, error, "{view:?}");
        let ran = host.runner.ran.lock().map_or(0, |ran| ran.len()) - before;
        assert_eq!(ran, usize::from(refusal.is_none()), "{view:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_delay_of_a_day_holds_neither_a_sandbox_nor_a_place() -> anyhow::Result<()> {
    const RUNS: i64 = 20;
    let mut house = House::new().await?;
    house.block("say", |_| StepEnd::Output("1".into())).await?;
    house
        .workflow(
            "name: day\nsteps:\n  - one: { block: say }\n  - wait: { delay: 24h }\n  - two: { block: say }\n",
        )
        .await?;
    // With room for one step, whatever is held keeps all others from running.
    let host = house.host_of(|_| true, Duration::from_secs(20), 1)?;
    for _ in 0..RUNS {
        house.start("day", json!({})).await?;
    }
    let waiting = "SELECT count(*) FROM open_steps WHERE node = 'wait' AND lease_id IS NULL";
    eventually(async || Ok((house.work.count(waiting).await? == RUNS).then_some(()))).await?;
    assert_eq!(host.runner.ran.lock().map(|ran| ran.len()).ok(), usize::try_from(RUNS).ok());
    Ok(())
}

#[tokio::test]
async fn a_delay_is_served_and_not_before_it_is_due() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow("name: wait\nsteps:\n  - wait: { delay: 1s }\n  - done: { set: over }\n").await?;
    let _host = house.host()?;
    let run = house.start("wait", json!({})).await?;
    assert_eq!(house.run(run).await?.row.state, RunState::Waiting);
    let view = house.ended(run).await?;
    assert_eq!(view.output, Some(json!("over")));
    let took = view.row.ended_at.map(|ended| ended - view.row.admitted_at);
    assert!(took.is_some_and(|took| took >= chrono::Duration::seconds(1)), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_transient_failure_is_tried_again_as_its_policy_says() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r"
name: patient
steps:
  - charge:
      http: { connection: p, method: POST, url: /charges, body: {} }
      retry: { attempts: 3, delays: [10ms] }
",
        )
        .await?;
    let _host = house.host()?;
    for (refusals, state, calls) in [(2, RunState::Succeeded, 3), (3, RunState::Failed, 3)] {
        let before = house.provider.calls().len();
        for _ in 0..refusals {
            house.provider.script("/charges", Act::status(429));
        }
        let run = house.start("patient", json!({})).await?;
        let view = house.ended(run).await?;
        assert_eq!(view.row.state, state, "{view:?}");
        assert_eq!(house.provider.calls().len() - before, calls);
    }
    Ok(())
}

/// A provider's `Retry-After` is a lower bound.
#[tokio::test]
async fn a_provider_may_ask_for_more_patience() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "name: asked\nsteps:\n  - charge: { http: { connection: p, method: POST, url: /charges, body: {} }, retry: { attempts: 2, delays: [1ms] } }\n",
        )
        .await?;
    house.provider.script("/charges", Act { retry_after: Some(1), ..Act::status(429) });
    let _host = house.host()?;
    let run = house.start("asked", json!({})).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    let at: Vec<u64> = house.provider.calls().iter().map(|call| call.received_at_ms).collect();
    assert!(at.len() == 2 && at[1] - at[0] >= 1_000, "{at:?}");
    Ok(())
}

/// Two hosts, many runs: every step once.
#[tokio::test]
async fn hosts_share_the_work_and_do_none_of_it_twice() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(ORDER).await?;
    let (_one, _two) = (house.host()?, house.host()?);
    let mut runs = vec![];
    for _ in 0..40 {
        runs.push(house.start("order", json!({ "cents": 500 })).await?);
    }
    for run in runs {
        assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    }
    assert_eq!(house.provider.calls().len(), 80);
    Ok(())
}

#[tokio::test]
async fn a_host_that_stops_finishes_its_step_and_begins_no_other() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(ORDER).await?;
    house.provider.script("/charges", Act::held());
    let host = house.host()?;
    let run = house.start("order", json!({ "cents": 500 })).await?;
    house.provider.wait_for_calls(1).await?;
    let stopping = tokio::spawn(host.stop());
    house.provider.release();
    stopping.await??;
    assert_eq!(house.provider.calls().len(), 1, "the next step is left to others");
    assert_eq!(house.run(run).await?.row.state, RunState::Running);
    let _other = house.host()?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    assert_eq!(house.provider.calls().len(), 2);
    Ok(())
}

/// Told to stop while it has no room, it must not take the next step when its room comes back.
#[tokio::test]
async fn a_full_host_that_stops_takes_nothing_more() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(ORDER).await?;
    house.provider.script("/charges", Act::held());
    let host = house.host_of(|_| true, Duration::from_secs(20), 1)?;
    let first = house.start("order", json!({ "cents": 50 })).await?;
    house.provider.wait_for_calls(1).await?;
    let second = house.start("order", json!({ "cents": 50 })).await?;
    let stopping = tokio::spawn(host.stop());
    // The stop reaches the loop before the provider lets go, on this test's one thread.
    tokio::task::yield_now().await;
    house.provider.release();
    stopping.await??;
    assert_eq!(house.run(first).await?.row.state, RunState::Succeeded);
    assert_eq!(house.run(second).await?.row.state, RunState::Pending);
    assert_eq!(house.provider.calls().len(), 1);
    Ok(())
}

/// A host forgets what is past its time beside its other work, and whatever it was asked about that is gone for everybody.
#[tokio::test]
async fn a_host_forgets_finished_runs_that_are_past_their_time() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house.workflow("name: short\nsteps:\n  - s: { set: { value: 1 } }\n").await?;
    let run = house.start("short", json!({})).await?;
    let host = house.host()?;
    house.ended(run).await?;
    host.stop().await?;
    // Nobody asks again for what was started without a key.
    let aged = "UPDATE runs SET ended_at = now() - interval '2 days', start_key = 'run:' || id";
    house.work.execute(aged).await?;

    let aged = "INSERT INTO events (tenant_id, id, type, data, recorded_at, pending, published_at)
         SELECT id, id, 'x', '1', now() - interval '2 days', false, now() FROM tenants";
    house.work.execute(aged).await?;

    let day = Some(Duration::from_hours(24));
    house.keep = KeepFor { runs: day, events: day, ..KeepFor::default() };
    let host = house.host()?;
    eventually(async || {
        let is_gone = house.work.store.run(house.work.tenant, run).await?.is_none()
            && house.work.count("SELECT count(*) FROM events").await? == 0;
        Ok((is_gone && house.work.count("SELECT count(*) FROM forgotten_runs").await? == 0).then_some(()))
    })
    .await?;
    assert_eq!(house.work.count("SELECT count(*) FROM settled_steps").await?, 0);
    // And works on.
    let next = house.start("short", json!({})).await?;
    house.ended(next).await?;
    host.stop().await
}
