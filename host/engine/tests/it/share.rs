//! How the room of a host is shared among tenants.

use std::fmt::Write as _;
use std::time::Duration;

use counterfoil_domain::fair_share::Share;
use counterfoil_domain::ports::StepEnd;
use counterfoil_domain::receipt::Actor;
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::run::RunState;
use counterfoil_testkit::provider::{Act, Call};
use serde_json::json;

use crate::house::{House, eventually};

const ROOM: u32 = 4;
/// Longer than the host takes to notice that somebody waits.
const STEPS: usize = 20;
/// Calls of the busy tenant that may come before the first of another's: what is under way, and what begins until a host
/// that has no room looks who waits, twice.
const CALLS_BEFORE_MAX: usize = 2 * ROOM as usize + 2 * ROOM as usize * 3;

/// A workflow of calls, one after the other.
fn calls(name: &str) -> String {
    let mut source = format!("name: {name}\nsteps:\n");
    for n in 0..STEPS {
        // Writing to a text cannot fail.
        let _ = writeln!(
            source,
            "  - c{n}: {{ http: {{ connection: p, method: POST, url: /{name}, body: \"=input\" }} }}"
        );
    }
    source
}

/// Waits for the first call of this path, and says how many of any came before it.
async fn first_call(house: &House, path: &str) -> anyhow::Result<usize> {
    eventually(async || Ok(house.provider.calls().iter().position(|call| call.path == path))).await
}

#[tokio::test]
async fn a_tenant_that_comes_late_gets_the_next_place_that_is_free() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house.provider.misbehave(vec![Act { delay_ms: 20, ..Act::default() }; 4_096]);
    house.workflow(&calls("busy")).await?;
    for n in 0..40 {
        house.start("busy", json!({ "n": n })).await?;
    }
    let host = house.host_of(|_| true, Duration::from_secs(20), ROOM)?;
    first_call(&house, "/busy").await?;

    // Its chains would hold every place for twenty calls each, and its other runs came before.
    house.change_tenant("quiet").await?;
    house.workflow(&calls("quiet")).await?;
    let before = house.provider.calls().len();
    house.start("quiet", json!({})).await?;
    let first = first_call(&house, "/quiet").await?;
    assert!(first - before <= CALLS_BEFORE_MAX, "{} calls came before", first - before);
    host.stop().await
}

#[tokio::test]
async fn a_tenant_that_is_alone_keeps_its_places_from_step_to_step() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(&calls("alone")).await?;
    let mut runs = vec![];
    for n in 0..2 * ROOM {
        runs.push(house.start("alone", json!({ "n": n })).await?);
    }
    let _host = house.host_of(|_| true, Duration::from_secs(20), ROOM)?;
    for run in runs {
        house.ended(run).await?;
    }
    // A step that is kept starts when it becomes part of its run.
    let claimed = "SELECT count(*) FROM settled_steps WHERE node <> 'c0' AND started_at > queued_at";
    assert_eq!(house.work.count(claimed).await?, 0, "no step after the first is claimed anew");
    Ok(())
}

/// A burst is a queue of its own: whoever comes late is served after what is under way, within two rounds of the host's room.
#[tokio::test]
async fn a_single_run_is_served_within_two_batches_of_a_burst() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house.provider.misbehave(vec![Act { delay_ms: 20, ..Act::default() }; 4_096]);
    house.workflow(&one_call("busy", "p")).await?;
    for n in 0..200 {
        house.start("busy", json!({ "n": n })).await?;
    }
    let host = house.host_of(|_| true, Duration::from_secs(20), ROOM)?;
    first_call(&house, "/busy").await?;
    house.change_tenant("quiet").await?;
    house.workflow(&one_call("quiet", "p")).await?;
    let before = house.provider.calls().len();
    house.start("quiet", json!({})).await?;
    let first = first_call(&house, "/quiet").await?;
    assert!(first - before <= 2 * ROOM as usize, "{} calls came before", first - before);
    host.stop().await
}

fn one_call(name: &str, connection: &str) -> String {
    format!(
        "name: {name}\nsteps:\n  - c: {{ http: {{ connection: {connection}, method: POST, url: /{name}, body: \"=input\" }} }}\n"
    )
}

/// How long the provider takes for a call.
const CALL_MS: u64 = 200;
const RUNS: usize = 12;

/// The most calls that came within this time.
fn most_within(ms: u64, calls: &[Call]) -> usize {
    let mut times: Vec<u64> = calls.iter().map(|call| call.received_at_ms).collect();
    times.sort_unstable();
    let together = |first: &u64| times.iter().filter(|time| (*first..*first + ms).contains(time)).count();
    times.iter().map(together).max().unwrap_or(0)
}

/// The most calls that were surely under way at once: on a busy machine, one may be told of long after it came.
fn most_at_once(calls: &[Call]) -> usize {
    most_within(CALL_MS / 2, calls)
}

/// What a tenant, a workflow and a connection may have under way is all that they have, and all that is due gets done; also
/// when a host dies whose calls were under way: nobody else counted them.
#[tokio::test]
async fn caps_hold_and_die_with_their_host() -> anyhow::Result<()> {
    const CAP: u32 = 3;
    let capped = Share { weight: 1, in_flight_max: Some(CAP) };
    let sent = "SELECT count(*) FROM receipts WHERE dispatched_at IS NOT NULL AND reason IS DISTINCT FROM 'not_sent'";
    for limit in ["tenant", "workflow", "connection"] {
        let house = House::new().await?;
        house.provider.misbehave(vec![Act { delay_ms: CALL_MS, ..Act::default() }; 4_096]);
        let (store, tenant) = (&house.work.store, house.work.tenant);
        house.workflow(&one_call("calls", "narrow")).await?;
        let connection = NewConnection {
            name: "narrow".into(),
            base_url: house.provider.url(),
            allowed_hosts: vec![house.provider.address().to_string()],
            abilities: json!({}),
            rate: None,
            in_flight_max: (limit == "connection").then_some(CAP),
            secrets: SecretChanges::default(),
        };
        house.work.set_connection(&connection).await?;
        match limit {
            "tenant" => assert!(store.set_tenant_share("acme", capped, &Actor::Host).await?),
            "workflow" => assert!(store.set_workflow_share(tenant, "calls", capped, &Actor::Host).await?),
            _ => {}
        }
        let mut runs = vec![];
        for n in 0..RUNS {
            runs.push(house.start("calls", json!({ "n": n })).await?);
        }
        let dies = house.host_of(|_| true, Duration::from_secs(20), 16)?;
        house.provider.wait_for_calls(2 * CAP as usize).await?;
        drop(dies);
        house.work.let_time_pass().await?;
        // Without a lease it begins no further call, and what it began before arrives.
        let before = eventually(async || {
            let (sent, calls) = (house.work.count(sent).await?, house.provider.calls());
            Ok((i64::try_from(calls.len())? >= sent).then_some(calls))
        })
        .await?;
        assert!(most_at_once(&before) <= CAP as usize, "{limit}: {} at once", most_at_once(&before));

        let _host = house.host_of(|_| true, Duration::from_secs(20), 16)?;
        let mut succeeded = 0;
        for run in runs {
            succeeded += usize::from(house.ended(run).await?.row.state == RunState::Succeeded);
        }
        // Those whose calls were under way are a person's turn.
        assert!(succeeded >= RUNS - CAP as usize, "{limit}: {succeeded} of {RUNS}");
        let after = house.provider.calls().split_off(before.len());
        let most = most_at_once(&after);
        assert!(most <= CAP as usize, "{limit}: {most} at once");
        assert!(most_within(CALL_MS, &after) > 1, "{limit}: one after the other");
    }
    Ok(())
}

#[tokio::test]
async fn whose_tenant_has_little_in_flight_runs_beside_little_else() -> anyhow::Result<()> {
    const QUICK: &str = "quick";
    let quick = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(QUICK)
        .enable_all()
        .build()?;
    let mut house = House::new().await?;
    house.quick = Some(quick.handle().clone());
    let mut begun = vec![];
    for (tenant, runs, is_quick) in [("busy", 12, false), ("quiet", 2, true)] {
        house.change_tenant(tenant).await?;
        house.block("where", |_| StepEnd::Output(json!(std::thread::current().name()).to_string())).await?;
        house.workflow("name: where\nsteps:\n  - w: { block: where }\n").await?;
        for _ in 0..runs {
            begun.push((house.work.tenant, house.start("where", json!({})).await?, is_quick));
        }
    }
    let host = house.host()?;
    for (tenant, run, is_quick) in begun {
        house.work.tenant = tenant;
        let output = house.ended(run).await?.output;
        assert_eq!(output == Some(json!(QUICK)), is_quick, "{output:?}");
    }
    host.stop().await?;
    quick.shutdown_background();
    Ok(())
}
