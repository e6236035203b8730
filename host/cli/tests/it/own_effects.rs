//! A real host is killed wherever a step passes that counts an order, stores the count, and emits an event which another
//! workflow waits for. Each order is counted once and told once.

use anyhow::{Context as _, ensure};
use counterfoil_domain::ports::Site;
use counterfoil_testkit::host::{Host, PATIENCE};
use serde_json::{Value, json};

use crate::world::{World, guest};

/// Short, so that a takeover does not take long; long enough for a busy machine to renew in.
const LEASE_MS: u64 = 1_500;

/// Where the step passes, and how often: each of its three effects is prepared, and one of them is a read.
const SITES: [(Site, u32); 6] = [
    (Site::BeforeClaim, 1),
    (Site::AfterClaim, 1),
    (Site::BeforePrepare, 3),
    (Site::BeforeAnswerRecorded, 1),
    (Site::InSettle, 1),
    (Site::AfterSettle, 1),
];

const ORDERS_MAX: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_step_stores_and_emits_is_there_once_wherever_its_host_is_killed() -> anyhow::Result<()> {
    let world = World::new("own-effects").await?;
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    host.push_block("count-order", &guest("count-order")?).await?;
    let count = json!({ "count": { "block": "count-order", "input": "=input" } });
    host.activate(&json!({ "name": "count", "steps": [count] })).await?;
    let heard = json!({ "heard": { "set": "=event.data.orders" } });
    let triggers = json!([{ "event": "order.counted", "dedup": "every_time" }]);
    host.activate(&json!({ "name": "listen", "triggers": triggers, "steps": [heard] })).await?;
    host.kill().await?;

    let mut orders = 0;
    for (site, times) in SITES {
        for nth in 1..=times {
            orders += 1;
            let counted = crash_and_count(&world, site, nth).await;
            let counted = counted.with_context(|| format!("killed at {}:{nth}", site.name()))?;
            assert_eq!(counted, orders, "killed at {}:{nth}", site.name());
        }
    }
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    let heard = host.call("GET", "/v1/runs?workflow=listen&limit=100", &Value::Null).await?;
    assert_eq!(heard["items"].as_array().map(Vec::len), Some(ORDERS_MAX), "{heard}");
    host.kill().await
}

/// The count that an order got, after a crash in the middle.
async fn crash_and_count(world: &World, site: Site, nth: u32) -> anyhow::Result<usize> {
    let config = world.host(LEASE_MS);
    let order = format!("{}-{nth}", site.name());
    let input = json!({ "order": order, "cents": 500 });
    let mut host = Host::start(&config.clone().crashing_at(site, nth), &world.key).await?;
    // It may be gone before it answers; whether the run was admitted, the database knows.
    let _ = host.start_run("count", &input).await;
    host.wait_until_killed().await?;

    let host = Host::start(&config, &world.key).await?;
    let run = match world.run_with_order(&order).await? {
        Some(run) => counterfoil_domain::id::RunId(run).to_string(),
        None => host.start_run("count", &input).await?,
    };
    let ended = host.wait_for_run(&run, &["succeeded", "failed", "blocked"]).await?;
    ensure!(ended["state"] == "succeeded", "{ended}");
    let counted = ended["output"]["orders"].as_u64().with_context(|| format!("{ended}"))?;
    told_once(&host, &run, counted).await?;
    host.kill().await?;
    Ok(usize::try_from(counted)?)
}

/// The run's receipts say what it did, and its event has started one run of the workflow that waits for it.
async fn told_once(host: &Host, run: &str, counted: u64) -> anyhow::Result<()> {
    let effects = host.call("GET", &format!("/v1/effects?run={run}"), &Value::Null).await?;
    let effects = effects["items"].as_array().context("a list of effects")?;
    let mut said: Vec<String> =
        effects.iter().map(|effect| format!("{}: {}", effect["summary"], effect["state"])).collect();
    said.sort();
    let expected = ["emit order.counted", "get orders", "put orders"];
    ensure!(said == expected.map(|summary| format!("\"{summary}\": \"committed\"")), "{said:?}");

    let emitted = effects.iter().find(|effect| effect["kind"] == "emit").context("an event")?;
    // An event has the id of its receipt.
    let id = emitted["id"].as_str().context("an id")?.replacen("eff_", "evt_", 1);
    let begun = std::time::Instant::now();
    let outcome = loop {
        let found = host.call("GET", &format!("/v1/events/{id}/outcomes"), &Value::Null).await?;
        match found["outcomes"].as_array().map(Vec::as_slice) {
            Some([one]) => break one.clone(),
            Some([]) if begun.elapsed() < PATIENCE => tokio::task::yield_now().await,
            _ => anyhow::bail!("{found}"),
        }
    };
    ensure!(outcome["workflow"] == "listen", "{outcome}");
    let heard = outcome["run"].as_str().context("it started a run")?;
    let heard = host.wait_for_run(heard, &["succeeded", "failed"]).await?;
    ensure!(heard["output"] == json!(counted), "{heard}");
    Ok(())
}
