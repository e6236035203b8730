//! Steps beside each other, again and again, and undone: over several hosts, whoever is first.

use std::time::Duration;

use counterfoil_domain::ports::StepEnd;
use counterfoil_domain::receipt::Actor;
use counterfoil_store::run::{Cancelled, RunState};
use counterfoil_testkit::provider::Act;
use serde_json::json;

use crate::house::{House, eventually};

impl House {
    /// Nothing is open, and nothing is left of any container.
    async fn is_tidy(&self) -> anyhow::Result<()> {
        let left = "SELECT (SELECT count(*) FROM open_steps) + (SELECT count(*) FROM open_runs)
                        + (SELECT count(*) FROM containers) + (SELECT count(*) FROM container_parts)";
        eventually(async || Ok((self.work.count(left).await? == 0).then_some(()))).await
    }
}

const GATHER: &str = r#"
name: gather
steps:
  - both:
      parallel:
        - do: [ { charge: { http: { connection: p, method: POST, url: /charges, body: {} } } } ]
        - do:
            - wait: { delay: 10ms }
            - reserve: { http: { connection: p, method: POST, url: /reservations, body: {} } }
        - do: [ { set: { set: 3 } } ]
  - done: { set: { charge: "=steps.charge.output.status", reserve: "=steps.reserve.output.status", all: "=steps.both.output" } }
"#;

#[tokio::test]
async fn branches_join_on_whichever_host_is_last() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(GATHER).await?;
    let _hosts = [house.host()?, house.host()?, house.host()?];
    let mut runs = vec![];
    for _ in 0..30 {
        runs.push(house.start("gather", json!({})).await?);
    }
    for run in runs {
        let all = json!({ "succeeded": [0, 1, 2], "failed": [] });
        let view = house.ended(run).await?;
        assert_eq!(view.output, Some(json!({ "charge": 201, "reserve": 201, "all": all })), "{view:?}");
    }
    assert_eq!(house.provider.calls().len(), 60);
    house.is_tidy().await
}

#[tokio::test]
async fn a_branch_that_fails_fails_the_run_and_cancels_the_others() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&GATHER.replace("delay: 10ms", "delay: 1h")).await?;
    house.provider.script("/charges", Act::status(422));
    let _host = house.host()?;
    let run = house.start("gather", json!({})).await?;
    let view = house.ended(run).await?;
    let error = view.error.unwrap_or_default();
    assert_eq!((view.row.state, &error["node"]), (RunState::Failed, &json!("both")));
    assert_eq!(error["message"], "both/charge: the provider answered with status 422");
    let steps = house.steps(run).await?;
    assert!(steps.contains(&"both/wait cancelled 1".to_owned()), "{steps:?}");
    house.is_tidy().await
}

/// The loser of a race has sent its effect: its receipt ends in a true state, and the run is not held up.
#[tokio::test]
async fn a_loser_with_an_effect_in_flight_ends_in_a_true_state() -> anyhow::Result<()> {
    for (losers, late, run_early) in [("cancel", "committed", true), ("leave", "committed", true)] {
        let house = House::new().await?;
        let race = format!(
            r"
name: race
steps:
  - race:
      parallel:
        - do: [ {{ slow: {{ http: {{ connection: p, method: POST, url: /charges, body: {{}} }} }} }} ]
        - do: [ {{ quick: {{ delay: 300ms }} }} ]
      join: any
      losers: {losers}
  - after: {{ http: {{ connection: p, method: POST, url: /reservations, body: {{}} }} }}
"
        );
        house.workflow(&race).await?;
        house.provider.script("/charges", Act::held());
        let _hosts = [house.host()?, house.host()?];
        let run = house.start("race", json!({})).await?;
        let view = house.ended(run).await?;
        assert_eq!(view.row.state, RunState::Succeeded, "{losers}: {view:?}");
        assert_eq!(house.provider.calls().len() == 2, run_early);
        let unknown = async || {
            let receipts = house.work.receipts().await?;
            Ok(receipts.iter().any(|receipt| receipt.contains("unknown")).then_some(()))
        };
        eventually(unknown).await?;
        // The answer comes after all: whoever sent it records it, run or no run.
        house.provider.release();
        let settled = async || {
            let receipts = house.work.receipts().await?;
            Ok(receipts.iter().all(|receipt| receipt.contains(late)).then_some(()))
        };
        eventually(settled).await?;
        assert_eq!(house.provider.calls().len(), 2);
        house.is_tidy().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_map_works_on_its_items_in_bounds_and_keeps_their_order() -> anyhow::Result<()> {
    const ITEMS: usize = 60;
    let mut house = House::new().await?;
    house
        .block("double", |job| {
            let input: serde_json::Value = serde_json::from_str(&job.input).unwrap_or_default();
            match input["n"].as_i64() {
                Some(13) => {
                    StepEnd::Failed { retry_after_ms: None, code: "bad".into(), message: "luck".into() }
                }
                n => StepEnd::Output((n.unwrap_or_default() * 2).to_string()),
            }
        })
        .await?;
    let map = |more: &str| {
        format!(
            r#"
name: map
steps:
  - each:
      map:
        items: "=input.items"
        concurrency: 7
        {more}
        do:
          - double: {{ block: double, input: {{ n: "=item" }} }}
          - call: {{ http: {{ connection: p, method: POST, url: /charges, body: {{ n: "=item", i: "=index" }} }} }}
          - give: {{ set: "=[steps.double.output, index, steps.call.output.status]" }}
"#
        )
    };
    house.workflow(&map("on_failure: skip")).await?;
    let hosts = [house.host()?, house.host()?, house.host()?];
    let items: Vec<usize> = (0..ITEMS).collect();
    let run = house.start("map", json!({ "items": items })).await?;
    let mut most = 0;
    let open = "SELECT count(*) FROM open_steps WHERE node <> 'each'";
    let view = eventually(async || {
        let view = house.run(run).await?;
        Ok(Some((view, house.work.count(open).await?)))
    });
    let (mut view, mut count) = view.await?;
    while view.row.ended_at.is_none() {
        most = most.max(count);
        (view, count) = (house.run(run).await?, house.work.count(open).await?);
    }
    assert!((1..=7).contains(&most), "{most} at once");
    let expected: Vec<_> =
        items.iter().map(|n| if *n == 13 { json!(null) } else { json!([n * 2, n, 201]) }).collect();
    assert_eq!(view.output, Some(json!(expected)), "{:?}", view.error);
    assert_eq!(house.provider.calls().len(), ITEMS - 1);
    house.is_tidy().await?;
    let told = house.work.count("SELECT count(*) FROM step_attempts").await?;
    assert_eq!(told, 0, "a container that goes on is no attempt");

    house.workflow(&map("on_failure: fail")).await?;
    let run = house.start("map", json!({ "items": items })).await?;
    let view = house.ended(run).await?;
    assert_eq!(view.error.unwrap_or_default()["message"], "each/double: luck");
    house.is_tidy().await?;
    drop(hosts);
    Ok(())
}

/// An item's effects are its own: the same call for each of them is not the same effect.
#[tokio::test]
async fn a_host_that_dies_in_a_map_leaves_no_item_undone_or_done_twice() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: map
steps:
  - each:
      map:
        items: "=input"
        concurrency: 5
        do: [ { call: { http: { connection: p, method: POST, url: /charges, body: { n: "=item" }, safety: idempotent }, retry: { attempts: 5, delays: [10ms] } } } ]
"#,
        )
        .await?;
    let lease = Duration::from_secs(1);
    let items: Vec<usize> = (0..40).collect();
    let first = house.host_with(|_| true, lease)?;
    let run = house.start("map", json!(items)).await?;
    house.provider.wait_for_calls(10).await?;
    drop(first);
    let _second = house.host_with(|_| true, lease)?;
    let view = house.ended(run).await?;
    assert_eq!(view.row.state, RunState::Succeeded, "{view:?}");
    let keys: std::collections::BTreeSet<_> =
        house.provider.calls().iter().map(|call| call.idempotency_key().map(str::to_owned)).collect();
    assert_eq!(keys.len(), 40);
    house.is_tidy().await
}

#[tokio::test]
async fn a_try_undoes_its_effects_and_their_receipts_say_so() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: book
steps:
  - book:
      try:
        - do: [ { flight: { http: { connection: p, method: POST, url: /charges, body: { f: 1 } } } } ]
          undo: [ { cancel-flight: { http: { connection: p, method: POST, url: "='/refunds/' + steps.flight.output.body.id", body: {} } } } ]
        - do: [ { hotel: { http: { connection: p, method: POST, url: /reservations, body: { h: 1 } } } } ]
          undo: [ { cancel-hotel: { http: { connection: p, method: POST, url: /refunds/hotel, body: {} } } } ]
        - do: [ { car: { http: { connection: p, method: POST, url: /cars, body: {} } } } ]
      on_failure: continue
  - told: { set: "=steps.book.output.failed.node" }
"#,
        )
        .await?;
    house.provider.script("/cars", Act::status(409));
    for undo in ["/refunds/hotel", "/refunds/ch_1"] {
        house.provider.script(undo, Act::status(200));
    }
    let _hosts = [house.host()?, house.host()?];
    let run = house.start("book", json!({})).await?;
    let view = house.ended(run).await?;
    assert_eq!(view.output, Some(json!("book/car")), "{view:?}");
    let paths: Vec<String> = house.provider.calls().iter().map(|call| call.path.clone()).collect();
    assert_eq!(paths, ["/charges", "/reservations", "/cars", "/refunds/hotel", "/refunds/ch_1"]);
    let timeline = house.timeline(run).await?;
    let states: Vec<_> = timeline
        .effects
        .iter()
        .map(|view| (view.receipt.place.node.as_str(), view.receipt.standing.state().name()))
        .collect();
    assert_eq!(
        states,
        [
            ("book/cancel-flight", "committed"),
            ("book/cancel-hotel", "committed"),
            ("book/car", "rejected"),
            ("book/flight", "compensated"),
            ("book/hotel", "compensated"),
        ]
    );
    house.is_tidy().await
}

#[tokio::test]
async fn an_event_is_emitted_once_and_starts_what_listens() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "name: tell\nsteps:\n  - tell: { emit: { event: lead.scored, record: '=input.id', data: { score: '=input.score' } } }\n",
        )
        .await?;
    house
        .workflow(
            "name: hear\ntriggers: [ { event: lead.scored, record: event.record } ]\nsteps:\n  - got: { set: '=event.data.score' }\n",
        )
        .await?;
    let _hosts = [house.host()?, house.host()?];
    let run = house.start("tell", json!({ "id": "l-1", "score": 7 })).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    let heard = "SELECT count(*) FROM runs WHERE trigger = 'event' AND state = 'succeeded' AND record_id = 'l-1' AND output::text = '7'";
    eventually(async || Ok((house.work.count(heard).await? == 1).then_some(()))).await?;
    assert_eq!(house.work.count("SELECT count(*) FROM events").await?, 1);
    assert_eq!(house.work.receipts().await?, ["#0:0 committed"]);
    Ok(())
}

/// 18: what came due while everything was down is served when a host is there again.
#[tokio::test]
async fn a_moment_is_waited_for_and_one_that_is_past_is_not() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "name: until\nsteps:\n  - wait: { delay: { until: '=input.at' } }\n  - done: { set: over }\n",
        )
        .await?;
    let soon = chrono::Utc::now() + chrono::Duration::milliseconds(1500);
    let waiting = house.start("until", json!({ "at": soon.to_rfc3339() })).await?;
    let past = house.start("until", json!({ "at": "2020-01-01T00:00:00Z" })).await?;
    let wrong = house.start("until", json!({ "at": "soon" })).await?;
    assert_eq!(house.run(wrong).await?.row.state, RunState::Failed);
    let _host = house.host()?;
    assert_eq!(house.ended(past).await?.output, Some(json!("over")));
    assert_eq!(house.run(waiting).await?.row.state, RunState::Waiting);
    let view = house.ended(waiting).await?;
    assert!(view.row.ended_at.is_some_and(|ended| ended >= soon), "{view:?}");
    Ok(())
}

/// 15, 22: a run is cancelled wherever it is, and nothing of it goes on.
#[tokio::test]
async fn a_run_is_cancelled_in_the_midst_of_its_containers() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r#"
name: deep
steps:
  - both:
      parallel:
        - do: [ { each: { map: { items: "=input", concurrency: 100, do: [ { nap: { delay: 1h } } ] } } } ]
        - do: [ { t: { try: [ { do: [ { hold: { http: { connection: p, method: POST, url: /charges, body: {} } } } ] } ] } } ]
"#,
        )
        .await?;
    house.provider.script("/charges", Act::held());
    let _host = house.host()?;
    let items: Vec<usize> = (0..1_000).collect();
    let run = house.start("deep", json!(items)).await?;
    house.provider.wait_for_calls(1).await?;
    let by = Actor::Person("ada".into());
    let cancelled = house.work.store.cancel_run(house.work.tenant, run, &by).await?;
    assert_eq!(cancelled, Cancelled::Done);
    house.is_tidy().await?;
    assert_eq!(house.work.receipts().await?, ["#0:0 unknown"]);
    house.provider.release();
    eventually(async || Ok((house.work.receipts().await? == ["#0:0 committed"]).then_some(()))).await?;
    assert_eq!(house.run(run).await?.row.state, RunState::Cancelled);
    Ok(())
}
