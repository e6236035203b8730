//! A real block that finds out what became of its effect, on real hosts: no person is asked, and nothing is sent twice.

use anyhow::{Context as _, ensure};
use counterfoil_domain::id::RunId;
use counterfoil_domain::ports::Site;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::ledger::{end_asking, reconcile};
use counterfoil_testkit::provider::Act;
use serde_json::{Value, json};

use crate::world::World;

const BLOCK: &str = "charge-card-verified";
/// Short, so that a takeover does not take long; long enough for a busy machine to renew in.
const LEASE_MS: u64 = 1_500;

async fn start(world: &World, host: &Host) -> anyhow::Result<String> {
    world.provider.script("/charges", Act::dropped());
    host.start_run(BLOCK, &json!({ "order": "o-1", "cents": 500 })).await
}

/// Waits until the run has succeeded, and checks everything that is known of it against the provider's log.
async fn succeeded(world: &World, host: &Host, run: &str, states: &[&str]) -> anyhow::Result<()> {
    let found = host.wait_for_run(run, &["succeeded", "failed", "cancelled"]).await?;
    assert_eq!(found["state"], "succeeded", "{found}");
    let charges = world.provider.calls().into_iter().filter(|call| call.method == "POST").count();
    assert_eq!(charges, 1, "the provider saw the charge once");
    let reconciled = reconcile(world.pool(), &world.provider.calls()).await?;
    ensure!(reconciled.violations.is_empty(), "{:#?}", reconciled.violations);

    let effects = host.call("GET", &format!("/v1/effects?run={run}"), &Value::Null).await?;
    let effects = effects["items"].as_array().context("a list")?.clone();
    let mut told = vec![];
    for effect in &effects {
        let id = effect["id"].as_str().context("an id")?;
        let shown = host.call("GET", &format!("/v1/effects/{id}"), &Value::Null).await?;
        let history = shown["history"].as_array().context("a history")?;
        let last = history.last().map_or("", |last| last["actor"].as_str().unwrap_or_default());
        told.push(format!("{} {last}", shown["state"].as_str().unwrap_or_default()).trim().to_owned());
    }
    told.sort();
    assert_eq!(told, states);
    Ok(())
}

/// The charge was made, and its answer lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_finds_the_charge_whose_answer_was_lost() -> anyhow::Result<()> {
    let world = World::new("finds").await?;
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    let run = start(&world, &host).await?;
    succeeded(&world, &host, &run, &["verified verifier"]).await?;
    host.kill().await
}

/// The charge was never made: its host was killed before the first byte. It is made when its absence can be known.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_finds_that_no_charge_was_made() -> anyhow::Result<()> {
    let world = World::new("misses").await?;
    let config = world.host(LEASE_MS);
    let mut host = Host::start(&config.clone().crashing_at(Site::AfterDispatch, 1), &world.key).await?;
    // The host may be gone before it answers.
    drop(host.start_run(BLOCK, &json!({ "order": "o-1", "cents": 500 })).await);
    host.wait_until_killed().await?;
    let run = world.run_with_order("o-1").await?.context("it was admitted")?;
    let run = RunId(run).to_string();
    let host = Host::start(&config, &world.key).await?;
    succeeded(&world, &host, &run, &["abandoned verifier", "committed"]).await?;
    host.kill().await
}

/// The host is killed while the block looks; another has it look again.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_killed_while_its_block_looks_is_followed_by_another() -> anyhow::Result<()> {
    let world = World::new("looks").await?;
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    let run = start(&world, &host).await?;
    world.provider.script("/charges", Act::held());
    world.provider.wait_for_calls(2).await?;
    host.kill().await?;
    let host = Host::start(&world.host(LEASE_MS), &world.key).await?;
    // The dead host's hold runs out.
    assert_eq!(end_asking(world.pool()).await?, 1);
    succeeded(&world, &host, &run, &["verified verifier"]).await?;
    host.kill().await
}
