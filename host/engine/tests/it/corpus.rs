//! Runs that earlier versions left in flight, at every kind of node: this version goes on with them to their end.
//!
//! `COUNTERFOIL_CAPTURE=1 cargo nextest run -p counterfoil-engine a_run_in_flight_is_captured` writes the rows of this version
//! to `tests/corpus`, by version and format of plans; a file that was committed is never written again.

use std::path::Path;

use anyhow::Context as _;
use counterfoil_domain::id::{RunId, TenantId};
use counterfoil_domain::ports::StepEnd;
use counterfoil_domain::receipt::task::Said;
use counterfoil_domain::receipt::{Actor, ReceiptState};
use counterfoil_domain::workflow::plan::PLAN_FORMAT;
use counterfoil_store::Page;
use counterfoil_store::run::{RunFilter, RunState};
use counterfoil_store::waiting::{NewSignal, Signalled};
use counterfoil_store::worker::{Poll, Told};
use counterfoil_testkit::corpus::{capture, restore};
use counterfoil_testkit::provider::Act;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, eventually};

/// Each branch stands at another kind of node.
const EVERY_KIND: &str = r#"
name: every-kind
steps:
  - all:
      parallel:
        - do: [ { run: { block: say } } ]
        - do: [ { call: { http: { connection: p, method: POST, url: /charges, body: {} }, retry: { attempts: 2, delays: [1h] } } } ]
        - do: [ { nap: { delay: 1h } }, { tell: { emit: { event: nap.over } } } ]
        - do: [ { until: { delay: { until: "2030-01-01T00:00", zone: Europe/Berlin } } } ]
        - do: [ { choose: { switch: [ { when: "input.n > 1", do: [ { chosen: { delay: 1h } } ] }, { else: [ { not: { set: 1 } } ] } ] } } ]
        - do: [ { each: { map: { items: "=input.items", concurrency: 2, do: [ { item-nap: { delay: 1h } }, { give: { set: "=[item, index]" } } ] } } } ]
        - do:
            - attempt:
                try:
                  - do: [ { first: { set: 1 } } ]
                    undo: [ { undo-nap: { delay: 1h } } ]
                  - do: [ { breaks: { set: "=input.missing" } } ]
                on_failure: continue
        - do: [ { hear: { listen: { signal: go, match: "signal.data.n == 2" } } } ]
        - do: [ { paid: { listen: { event: payment.received, record: o-1, timeout: 365d }, on_timeout: [ { late: { stop: { outcome: failed } } } ] } } ]
        - do: [ { ask: { approval: { title: Go on?, form: { type: object } } } } ]
        - do: [ { sub: { workflow: child } } ]
        - do: [ { work: { worker: { queue: papers, input: { n: "=input.n" } } } } ]
  - done: { set: { each: "=steps.each.output", attempt: "=steps.attempt.output.failed.node", hear: "=steps.hear.output.data.n",
                   paid: "=steps.paid.output.data", ask: "=steps.ask.output.approved", sub: "=steps.sub.output", call: "=steps.call.output.status",
                   work: "=steps.work.output" } }
"#;
const CHILD: &str = "name: child\nsteps:\n  - hear: { listen: { signal: go } }\n  - done: { set: '=steps.hear.output.data' }\n";

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

async fn house() -> anyhow::Result<House> {
    let mut house = House::new().await?;
    house.block("say", |_| StepEnd::Output("1".into())).await?;
    Ok(house)
}

#[tokio::test]
async fn a_run_in_flight_is_captured() -> anyhow::Result<()> {
    let house = house().await?;
    house.workflow(CHILD).await?;
    house.workflow(EVERY_KIND).await?;
    house.provider.script("/charges", Act::status(429));
    // It cannot run the block, whose step stays as it is.
    let host = house.host_with(|_| false, std::time::Duration::from_secs(20))?;
    house.start("every-kind", json!({ "n": 2, "items": [1, 2, 3] })).await?;
    let there = "SELECT count(*) FROM open_steps WHERE lease_id IS NULL AND (wait IN ('signal', 'child', 'retry', 'delay', 'worker'))";
    // Containers: all, each, attempt. Waits: call, nap, until, chosen, two items, undo-nap, hear, paid, ask, sub and its own, work.
    eventually(async || Ok((house.work.count(there).await? == 16).then_some(()))).await?;
    host.stop().await?;
    let captured = capture(&house.work.database).await?;
    if std::env::var_os("COUNTERFOIL_CAPTURE").is_some() {
        std::fs::create_dir_all(directory())?;
        let file = directory().join(format!("{}-{PLAN_FORMAT}.json", env!("CARGO_PKG_VERSION")));
        std::fs::write(file, serde_json::to_string_pretty(&captured)?)?;
    }
    to_its_end(&captured).await
}

#[tokio::test]
async fn every_version_goes_on_with_what_an_earlier_one_left() -> anyhow::Result<()> {
    let mut files = 0;
    for file in std::fs::read_dir(directory())? {
        let path = file?.path();
        let captured = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        to_its_end(&captured).await.with_context(|| path.display().to_string())?;
        files += 1;
    }
    anyhow::ensure!(files > 0, "there is no corpus");
    Ok(())
}

async fn to_its_end(captured: &Value) -> anyhow::Result<()> {
    let mut house = house().await?;
    house.work.execute("TRUNCATE tenants, components, block_versions, connections CASCADE").await?;
    restore(&house.work.database, captured).await?;
    let tenant = captured["tenants"][0]["id"].as_str().context("a tenant")?;
    house.work.tenant = TenantId(tenant.parse()?);
    house.work.connect("p", &house.provider.url(), json!({})).await?;
    // However long ago it was captured.
    house
        .work
        .execute("UPDATE worker_tasks SET claim_until = now() + interval '1 hour' WHERE waiting")
        .await?;
    house.work.let_time_pass().await?;
    let _hosts = [house.host()?, house.host()?];
    let (parent, child) = (run_of(&house, "every-kind").await?, run_of(&house, "child").await?);
    for (run, data) in [(parent, json!({ "n": 1 })), (parent, json!({ "n": 2 })), (child, json!("done"))] {
        let signal = NewSignal { id: Uuid::now_v7(), name: "go".into(), data };
        let sent = house.work.store.signal(house.work.tenant, run, &signal, &Actor::Host).await?;
        anyhow::ensure!(sent == Signalled::Kept, "{sent:?}");
    }
    house.event("payment.received", Some("o-1"), json!(500)).await?;
    let page = Page { after: None, limit: 10 };
    let asked =
        house.work.store.approvals(house.work.tenant, true, page).await?.pop().context("a question")?;
    house.work.store.decide(house.work.tenant, asked.id, true, Some(&json!({})), &Actor::Host).await?;
    let has_work = house.work.count("SELECT count(*) FROM worker_tasks").await? > 0;
    if has_work {
        work(&house).await?;
    }
    let view = eventually(async || {
        // The items that begin now nap too.
        house
            .work
            .execute("UPDATE open_steps SET vt = now() WHERE wait = 'delay' AND lease_id IS NULL")
            .await?;
        let view = house.run(parent).await?;
        Ok(view.row.ended_at.is_some().then_some(view))
    });
    let view = view.await?;
    anyhow::ensure!(view.row.state == RunState::Succeeded, "{view:?}");
    let mut output = json!({
        "each": [[1, 0], [2, 1], [3, 2]], "attempt": "all/attempt/breaks", "hear": 2, "paid": 500, "ask": true,
        "sub": "done", "call": 201,
    });
    if has_work {
        output["work"] = json!("done too");
    }
    anyhow::ensure!(view.output == Some(output), "{view:?}");
    Ok(())
}

/// Does the work that lies in the queue.
async fn work(house: &House) -> anyhow::Result<()> {
    let (queues, claim) = (["papers".to_owned()], Uuid::now_v7());
    let lease = std::time::Duration::from_mins(1);
    let poll = Poll { worker: "w", queues: &queues, claim, tasks_max: 1, lease };
    let (store, tenant) = (&house.work.store, house.work.tenant);
    let task = eventually(async || Ok(store.poll_tasks(tenant, &poll).await?.pop())).await?;
    anyhow::ensure!(task.input == json!({ "n": 2 }), "{task:?}");
    let told = store.answer_task(tenant, task.id, claim, Said::Done { output: json!("done too") }).await?;
    anyhow::ensure!(told == Told::Recorded { state: ReceiptState::Committed }, "{told:?}");
    Ok(())
}

async fn run_of(house: &House, workflow: &str) -> anyhow::Result<RunId> {
    let page = Page { after: None, limit: 10 };
    let runs = house.work.store.runs(house.work.tenant, &RunFilter::default(), page).await?;
    let run = runs.iter().find(|run| run.workflow_name == workflow);
    Ok(run.context("a run")?.id)
}
