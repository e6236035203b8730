//! A step that reads, makes an effect that may be sent again, and one that may not: what a crash leaves of each.

use anyhow::{Context as _, ensure};
use counterfoil_domain::id::RunId;
use counterfoil_domain::ports::Site;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::http;
use counterfoil_testkit::provider::{Provider, ProviderConfig};
use serde_json::json;

use crate::world::World;

const LEASE_MS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_may_be_sent_again_is() -> anyhow::Result<()> {
    let world = World::new("safeties").await?;
    // The host is gone when the request of the nth call has left, and nobody has heard the answer.
    for (nth, expected, reads, reservations, charges) in
        [(1, "succeeded", 2, 1, 1), (2, "succeeded", 1, 2, 1), (3, "blocked", 1, 1, 1)]
    {
        let seen = world.provider.calls().len();
        let config = world.host(LEASE_MS);
        let mut host = Host::start(&config.clone().crashing_at(Site::AfterLastByte, nth), &world.key).await?;
        let order = format!("o-{nth}");
        let input = json!({ "order": order, "cents": 500, "domain": "acme.example" });
        let run = match host.start_run("place-order", &input).await {
            Ok(run) => run,
            // It was gone before it could say so.
            Err(_) => RunId(world.run_with_order(&order).await?.context("it was admitted")?).to_string(),
        };
        host.wait_until_killed().await?;
        let host = Host::start(&config, &world.key).await?;
        let found = host.wait_for_run(&run, &["succeeded", "failed", "blocked"]).await?;
        ensure!(found["state"] == expected, "killed in call {nth}: {found}");
        let calls = world.provider.calls().split_off(seen);
        let count = |path: &str| calls.iter().filter(|call| call.path.starts_with(path)).count();
        let counted = (count("/companies"), count("/reservations"), count("/charges"));
        assert_eq!(counted, (reads, reservations, charges), "killed in call {nth}");
        let mut keys: Vec<_> = calls.iter().filter_map(|call| call.idempotency_key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 2, "every dispatch of a slot goes under one key: {keys:?}");
        host.kill().await?;
    }
    Ok(())
}

/// Whatever host a caller claims to have asked, the calls of the run go where its connection says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbound_host_steers_nothing() -> anyhow::Result<()> {
    let world = World::new("steering").await?;
    let elsewhere = Provider::start(ProviderConfig::default()).await?;
    let claimed = elsewhere.address().to_string();
    let host = Host::start(&world.host(15_000), &world.key).await?;
    let authorization = format!("Bearer {}", world.key);
    let headers = [
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
        ("host", &claimed),
        ("x-forwarded-host", &claimed),
        ("forwarded", &format!("host={claimed}")),
        ("x-forwarded-for", "127.0.0.1"),
    ];
    let body = json!({ "input": { "order": "o-1", "cents": 500 } }).to_string();
    let reply = http::send(host.base(), "POST", "/v1/workflows/charge-card/runs", &headers, body).await?;
    ensure!(reply.status == 201, "{}: {}", reply.status, reply.json()?);
    let run = reply.json()?["id"].as_str().context("a run has an id")?.to_owned();
    host.wait_for_run(&run, &["succeeded"]).await?;
    let calls = world.provider.calls();
    let hosts: Vec<_> = calls.iter().map(|call| call.header("host").unwrap_or_default()).collect();
    assert_eq!(hosts, [world.provider.address().to_string()]);
    assert_eq!(elsewhere.calls(), []);
    host.kill().await
}
