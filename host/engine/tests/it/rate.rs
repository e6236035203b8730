//! A connection's rate holds however many hosts use it.

use std::time::{Duration, Instant};

use counterfoil_domain::connection::Rate;
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::run::RunState;
use counterfoil_testkit::provider::{Act, Call};
use serde_json::json;

use crate::house::{House, eventually};

const RATE: Rate = Rate { limit: 20, per_ms: 1_000, burst: Some(4) };
const CALLS: u32 = 60;
/// A call may arrive so much later than it was let go, and the next one at once.
const JITTER_MS: u64 = 150;

async fn limit(house: &House, name: &str, rate: Option<Rate>) -> anyhow::Result<()> {
    let connection = NewConnection {
        name: name.into(),
        base_url: house.provider.url(),
        allowed_hosts: vec![house.provider.address().to_string()],
        abilities: json!({}),
        rate,
        in_flight_max: None,
        secrets: SecretChanges::default(),
    };
    house.work.set_connection(&connection).await
}

async fn workflow(house: &House, name: &str, connection: &str) -> anyhow::Result<()> {
    let call = format!("{{ connection: {connection}, method: POST, url: /charges, body: {{}} }}");
    house.workflow(&format!("name: {name}\nsteps:\n  - charge: {{ http: {call} }}\n")).await
}

/// The most calls within a window that much shorter than the period.
fn most(calls: &[Call]) -> usize {
    let mut times: Vec<u64> = calls.iter().map(|call| call.received_at_ms).collect();
    times.sort_unstable();
    let window_ms = u64::from(RATE.per_ms) - JITTER_MS;
    (0..times.len())
        .map(|first| times[first..].iter().take_while(|time| **time < times[first] + window_ms).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_keep_one_rate_and_lose_little_of_it() -> anyhow::Result<()> {
    let house = House::new().await?;
    limit(&house, "slow", Some(RATE)).await?;
    workflow(&house, "limited", "slow").await?;
    workflow(&house, "free", "p").await?;
    for _ in 0..CALLS {
        house.start("limited", json!({})).await?;
    }
    let begun = Instant::now();
    let _hosts = [house.host()?, house.host()?];
    house.provider.wait_for_calls(10).await?;
    let free = house.start("free", json!({})).await?;
    let view = house.ended(free).await?;
    assert_eq!(view.row.state, RunState::Succeeded);
    let waited = view.row.ended_at.map(|ended| ended - view.row.admitted_at);
    assert!(
        waited.is_some_and(|waited| waited < chrono::Duration::seconds(1)),
        "it waits for nobody: {waited:?}"
    );

    eventually(async || Ok((house.provider.calls().len() > CALLS as usize).then_some(()))).await?;
    let took = begun.elapsed();
    let ideal = Duration::from_millis(
        u64::from(RATE.per_ms) * u64::from(CALLS - RATE.burst() - 1) / u64::from(RATE.limit),
    );
    let calls = house.provider.calls();
    let most = most(&calls);
    println!(
        "{CALLS} calls in {took:?}, ideally {ideal:?}; at most {most} in a window of {} ms",
        u64::from(RATE.per_ms) - JITTER_MS
    );
    // One of them is that of the other connection.
    assert_eq!(calls.len(), CALLS as usize + 1);
    assert!(most <= (RATE.limit + RATE.burst()) as usize + 1, "{most} calls");
    assert!(took >= ideal.mul_f64(0.9), "{took:?}");
    assert!(took <= ideal.mul_f64(1.5), "{took:?}");
    eventually(async || {
        let open = house.work.count("SELECT count(*) FROM open_steps").await?;
        Ok((open == 0).then_some(()))
    })
    .await?;
    assert_eq!(
        house.work.count("SELECT max(attempt)::bigint FROM settled_steps").await?,
        1,
        "no attempt is used"
    );
    // Most wait once; a few miss their turn by a little on a busy machine.
    let waits = house.work.count("SELECT count(*) FROM step_attempts WHERE ended = 'handed_back'").await?;
    let told = "SELECT count(*) FROM step_attempts
                WHERE ended = 'handed_back' AND error ->> 'message' LIKE '%rate of a connection'";
    assert_eq!(house.work.count(told).await?, waits, "each says what it waits for");
    println!("{waits} waits");
    assert!(waits <= i64::from(CALLS) * 3 / 2, "{waits} waits");
    Ok(())
}

#[tokio::test]
async fn a_provider_that_asks_for_patience_is_heard_beside_a_rate() -> anyhow::Result<()> {
    let house = House::new().await?;
    limit(&house, "slow", Some(Rate { limit: 100, per_ms: 1_000, burst: None })).await?;
    let call = "{ connection: slow, method: POST, url: /charges, body: {} }";
    let retry = "{ attempts: 2, delays: [1ms] }";
    house
        .workflow(&format!("name: limited\nsteps:\n  - charge: {{ http: {call}, retry: {retry} }}\n"))
        .await?;
    house.provider.script("/charges", Act { retry_after: Some(1), ..Act::status(429) });
    let _host = house.host()?;
    let run = house.start("limited", json!({})).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    let calls = house.provider.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls[1].received_at_ms - calls[0].received_at_ms >= 1_000, "{calls:?}");
    Ok(())
}

#[tokio::test]
async fn a_rate_that_is_changed_is_felt_by_those_who_wait() -> anyhow::Result<()> {
    let hourly = |limit| Some(Rate { limit, per_ms: 3_600_000, burst: Some(1) });
    for changed in [None, Some(Rate { limit: 100, per_ms: 1_000, burst: None })] {
        let house = House::new().await?;
        limit(&house, "slow", hourly(1)).await?;
        workflow(&house, "limited", "slow").await?;
        let _host = house.host()?;
        let mut runs = vec![];
        for _ in 0..4 {
            runs.push(house.start("limited", json!({})).await?);
        }
        let waiting = "SELECT count(*) FROM open_steps WHERE turn_at IS NOT NULL AND lease_id IS NULL";
        eventually(async || Ok((house.work.count(waiting).await? >= 2).then_some(()))).await?;
        // The same again changes nothing.
        limit(&house, "slow", hourly(1)).await?;
        assert!(house.provider.calls().len() <= 2);
        limit(&house, "slow", changed).await?;
        for run in runs {
            assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded, "{changed:?}");
        }
    }
    Ok(())
}
