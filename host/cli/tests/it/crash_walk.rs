//! A real host is killed at every named point of the effect path, and started again. Nothing is ever sent twice, nothing is
//! lost, and whatever is unknown is resolved from the provider's own log and goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use counterfoil_domain::id::RunId;
use counterfoil_domain::ports::Site;
use counterfoil_testkit::host::Host;
use counterfoil_testkit::ledger::{Reconciled, reconcile};
use counterfoil_testkit::provider::{Call, Outcome};
use serde_json::{Value, json};

use crate::world::World;

/// Short, so that a takeover does not take long; long enough for a busy machine to renew in.
const LEASE_MS: u64 = 1_500;

/// One walk: a block, and how often it passes the sites of an effect.
struct Walk {
    block: &'static str,
    effects: u32,
}

const WALKS: [Walk; 3] = [
    Walk { block: "charge-card", effects: 1 },
    // Knows nothing of receipts: its request is an effect all the same.
    Walk { block: "plain-charge", effects: 1 },
    Walk { block: "two-effects", effects: 2 },
];

/// Whether a site is passed once for each effect, rather than once for each step.
fn is_per_effect(site: Site) -> bool {
    !matches!(site, Site::BeforeClaim | Site::AfterClaim | Site::InSettle | Site::AfterSettle)
}

struct Line {
    block: &'static str,
    site: Site,
    nth: u32,
    calls: usize,
    first: String,
    last: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_killed_anywhere_sends_nothing_twice_and_loses_nothing() -> anyhow::Result<()> {
    let world = World::new("crash-walk").await?;
    let mut lines = vec![];
    for walk in &WALKS {
        for site in Site::ALL.iter().copied() {
            let times = if is_per_effect(site) { walk.effects } else { 1 };
            for nth in 1..=times {
                let line = crash_and_resume(&world, walk, site, nth).await;
                lines.push(line.with_context(|| format!("{} killed at {}:{nth}", walk.block, site.name()))?);
            }
        }
    }
    println!("{}", table(&lines));
    let reconciled = reconcile(world.pool(), &world.provider.calls()).await?;
    println!("{reconciled:#?}");
    assert_eq!(reconciled.violations, []);
    assert_eq!((reconciled.duplicates, reconciled.lost, reconciled.unknown), (0, 0, 0));
    let expected: usize = lines.iter().map(|line| line.calls).sum();
    assert_eq!(reconciled.calls, expected, "every call at the provider belongs to one of the runs");
    Ok(())
}

/// The column for a process that runs blocks: its host lives, performs what the block had asked for to its end, and runs the
/// step again from its journal. So nobody has to say what happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_killed_anywhere_costs_an_execution_and_nothing_else() -> anyhow::Result<()> {
    let world = World::new("runner-walk").await?;
    let mut expected = 0;
    for walk in &WALKS {
        for site in Site::ALL.iter().copied() {
            let times = if is_per_effect(site) { walk.effects } else { 1 };
            for nth in 1..=times {
                lose_runners(&world, walk, site, nth).await.with_context(|| {
                    format!("{}, its runners killed at {}:{nth}", walk.block, site.name())
                })?;
                expected += walk.effects as usize;
            }
        }
    }
    let reconciled = reconcile(world.pool(), &world.provider.calls()).await?;
    assert_eq!(reconciled.violations, []);
    assert_eq!((reconciled.duplicates, reconciled.lost, reconciled.unknown), (0, 0, 0));
    assert_eq!(reconciled.calls, expected);
    Ok(())
}

async fn lose_runners(world: &World, walk: &Walk, site: Site, nth: u32) -> anyhow::Result<()> {
    let config = match site {
        Site::AfterAnswerRecorded => world.host(LEASE_MS).with("COUNTERFOIL__EFFECTS__ANSWER_WAIT_MS", &0),
        _ => world.host(LEASE_MS),
    };
    let seen = world.provider.calls().len();
    let host = Host::start(&config.losing_its_runners_at(site, nth), &world.key).await?;
    let run = start_on(&host, walk.block, &format!("{}-{}-{nth}", walk.block, site.name())).await?;
    host.wait_for_run(&run, &["succeeded"]).await?;
    let timeline = host.call("GET", &format!("/v1/runs/{run}/timeline"), &Value::Null).await?.to_string();
    let lost = timeline.matches("\"lost\"").count();
    // Between two executions there is no guest to be lost.
    let expected = usize::from(is_per_effect(site));
    ensure!(lost == expected, "{lost} executions were lost: {timeline}");
    let calls = world.provider.calls().len() - seen;
    ensure!(calls == walk.effects as usize, "{calls} calls for {} effects", walk.effects);
    host.kill().await
}

/// Without the receipt, the same walk must show what the receipt is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_receipts_the_same_walk_sends_twice() -> anyhow::Result<()> {
    let world = World::new("no-receipts").await?;
    let config = world.host(LEASE_MS).with("COUNTERFOIL_UNSAFE_NO_RECEIPTS", &1);
    let mut host = Host::start(&config.clone().crashing_at(Site::AfterLastByte, 1), &world.key).await?;
    let run = start(&world, &mut host, "charge-card", "o-1").await?.context("it was admitted")?;
    host.wait_until_killed().await?;
    let host = Host::start(&config, &world.key).await?;
    host.wait_for_run(&run, &["succeeded"]).await?;
    let reconciled = reconcile(world.pool(), &world.provider.calls()).await?;
    assert!(reconciled.duplicates > 0, "the walk cannot tell a host that sends twice: {reconciled:?}");
    assert!(!reconciled.violations.is_empty());
    host.kill().await
}

async fn crash_and_resume(world: &World, walk: &Walk, site: Site, nth: u32) -> anyhow::Result<Line> {
    let config = match site {
        // Only an answer that is written alone is durable before its step settles.
        Site::AfterAnswerRecorded => world.host(LEASE_MS).with("COUNTERFOIL__EFFECTS__ANSWER_WAIT_MS", &0),
        _ => world.host(LEASE_MS),
    };
    let seen = world.provider.calls().len();
    let order = format!("{}-{}-{nth}", walk.block, site.name());
    let mut host = Host::start(&config.clone().crashing_at(site, nth), &world.key).await?;
    // The host may be gone before it answers: the key makes asking again safe.
    let run = start(world, &mut host, walk.block, &order).await?;
    host.wait_until_killed().await?;

    let host = Host::start(&config, &world.key).await?;
    let run = match run {
        Some(run) => run,
        None => start_on(&host, walk.block, &order).await?,
    };
    let mut found = host.wait_for_run(&run, &["succeeded", "failed", "blocked"]).await?;
    let first = found["state"].as_str().unwrap_or_default().to_owned();
    let before = reconcile(world.pool(), &world.provider.calls()).await?;
    ensure!(before.violations.is_empty(), "{:#?}", before.violations);
    ensure!(before.unknown == before.explained, "{before:?}");
    while found["state"] == "blocked" {
        resolve_from_log(world, &host, &run, &before).await?;
        found = host.wait_for_run(&run, &["succeeded", "failed", "blocked"]).await?;
    }
    let last = found["state"].as_str().unwrap_or_default().to_owned();
    ensure!(last == "succeeded", "{found}");
    let calls = world.provider.calls().len() - seen;
    ensure!(calls == walk.effects as usize, "{calls} calls for {} effects", walk.effects);
    host.kill().await?;
    Ok(Line { block: walk.block, site, nth, calls, first, last })
}

async fn start(
    world: &World,
    host: &mut Host,
    workflow: &str,
    order: &str,
) -> anyhow::Result<Option<String>> {
    if let Ok(run) = start_on(host, workflow, order).await {
        return Ok(Some(run));
    }
    // It killed itself on the way: the admission may or may not have committed.
    let run = world.run_with_order(order).await?;
    Ok(run.map(|run| RunId(run).to_string()))
}

async fn start_on(host: &Host, workflow: &str, order: &str) -> anyhow::Result<String> {
    host.start_run(workflow, &json!({ "order": order, "cents": 500, "second": "ok" })).await
}

/// What a person would do: look into the provider's records, and say what they show.
async fn resolve_from_log(world: &World, host: &Host, run: &str, before: &Reconciled) -> anyhow::Result<()> {
    let effects = host.call("GET", &format!("/v1/effects?state=unknown&run={run}"), &Value::Null).await?;
    let effects = effects["items"].as_array().context("a list of effects")?.clone();
    ensure!(!effects.is_empty(), "blocked, and nothing is unknown: {before:?}");
    let calls: BTreeMap<String, Call> = world
        .provider
        .calls()
        .into_iter()
        .filter_map(|call| Some((call.idempotency_key()?.to_owned(), call)))
        .collect();
    for effect in effects {
        let id = effect["id"].as_str().context("an effect has an id")?;
        let detail = host.call("GET", &format!("/v1/effects/{id}"), &Value::Null).await?;
        let key = detail["idempotency_key"].as_str().context("an effect has a key")?;
        let body = match calls.get(key) {
            Some(call) => json!({
                "outcome": "verified",
                "evidence": format!("call {} in the provider's log", call.seq),
                "answer": { "status": answered_status(call), "json": { "id": format!("ch_{}", call.seq) } },
            }),
            None => json!({ "outcome": "abandoned", "evidence": "the provider's log has no such call" }),
        };
        world.resolve_when_allowed(host, id, &body).await?;
    }
    Ok(())
}

fn answered_status(call: &Call) -> u16 {
    match call.outcome {
        Some(Outcome::Answered { status }) => status,
        _ => 201,
    }
}

fn table(lines: &[Line]) -> String {
    let mut table =
        String::from("block        site                      nth  calls  after restart  in the end\n");
    for Line { block, site, nth, calls, first, last } in lines {
        let _ = writeln!(table, "{block:<12} {:<25} {nth:>3}  {calls:>5}  {first:<13}  {last}", site.name());
    }
    table
}
