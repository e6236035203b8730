//! Faults that users of such systems met elsewhere (`host/testkit/cases/field-faults.md`); the numbers are that list's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_domain::ports::{NoFaults, StepEnd, StepJob};
use counterfoil_store::run::RunState;
use counterfoil_store::{Store, StoreConfig};
use counterfoil_testkit::provider::Act;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::house::{House, eventually};

const CHAIN: &str = r"
name: chain
steps:
  - charge: { http: { connection: p, method: POST, url: /charges, body: {} } }
  - reserve: { http: { connection: p, method: POST, url: /reservations, body: {} } }
";

/// 2, 6: a step longer than its lease is not run again while its host lives, whoever else starts meanwhile.
#[tokio::test]
async fn a_long_step_whose_lease_is_renewed_is_run_once() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(CHAIN).await?;
    house.provider.script("/charges", Act { delay_ms: 3_000, ..Act::default() });
    let _slow = house.host_with(|_| true, Duration::from_secs(1))?;
    let run = house.start("chain", json!({})).await?;
    house.provider.wait_for_calls(1).await?;
    let _newcomer = house.host_with(|_| true, Duration::from_secs(1))?;
    let view = house.ended(run).await?;
    assert_eq!(view.row.state, RunState::Succeeded, "{view:?}");
    assert_eq!(house.provider.calls().len(), 2);
    assert_eq!(house.steps(run).await?, ["charge succeeded 1", "reserve succeeded 1"]);
    Ok(())
}

/// 4, 13: whoever lost the race for a step does not carry on with the following ones, and its late end changes nothing.
#[tokio::test]
async fn the_loser_of_a_step_does_not_go_on_to_the_next() -> anyhow::Result<()> {
    let house = House::new().await?;
    house.workflow(CHAIN).await?;
    house.provider.script("/charges", Act::held());
    let _host = house.host()?;
    let run = house.start("chain", json!({})).await?;
    house.provider.wait_for_calls(1).await?;
    house.work.let_time_pass().await?;
    let thief = eventually(async || Ok(house.work.claim(Duration::from_mins(1)).await.ok())).await;
    // The thief, or the host itself under a new lease, has the step now; the first execution has lost it.
    house.provider.release();
    match thief {
        Ok(_) => {
            // Its late answer is recorded, and nothing follows from it until the new owner acts.
            eventually(async || Ok((house.work.receipts().await? == ["#0:0 committed"]).then_some(())))
                .await?;
            assert_eq!(house.run(run).await?.row.state, RunState::Running);
        }
        Err(_) => assert_eq!(house.ended(run).await?.row.state, RunState::Blocked),
    }
    assert_eq!(house.provider.calls().len(), 1, "the second step was not begun by the loser");
    Ok(())
}

/// 12: an execution that is begun again after a crash is the same attempt, and the attempts of a step are all counted.
#[tokio::test]
async fn a_crash_gives_a_step_none_of_its_attempts_back() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r"
name: patient
steps:
  - charge:
      http: { connection: p, method: POST, url: /charges, body: {}, safety: idempotent }
      retry: { attempts: 3, delays: [1h] }
",
        )
        .await?;
    let run = house.start("patient", json!({})).await?;
    // Each attempt loses its host in the middle of its call, and is then refused for now.
    for attempt in 1..=3 {
        house.provider.script("/charges", Act::held());
        house.provider.script("/charges", Act::status(429));
        house.work.let_time_pass().await?;
        let lost = house.host()?;
        house.provider.wait_for_calls(attempt * 2 - 1).await?;
        drop(lost);
        house.work.let_time_pass().await?;
        let host = house.host()?;
        house.provider.wait_for_calls(attempt * 2).await?;
        host.stop().await?;
    }
    let view = house.ended(run).await?;
    // An outcome is still unknown, so that the step is blocked, and not failed, when its attempts are used up.
    assert_eq!(view.row.state, RunState::Blocked, "{view:?}");
    assert_eq!(house.provider.calls().len(), 6, "three attempts, each of them begun twice");
    assert_eq!(house.work.count("SELECT attempt::bigint FROM open_steps").await?, 3);
    Ok(())
}

/// 13: a worker that is slow, and not dead, ends its step as failed when another has ended the flow as succeeded.
#[tokio::test]
async fn a_late_failure_does_not_fail_a_flow_that_has_succeeded() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            "name: once\nsteps:\n  - charge: { http: { connection: p, method: POST, url: /charges, body: {}, safety: idempotent } }\n",
        )
        .await?;
    house.provider.script("/charges", Act { hold: true, ..Act::status(402) });
    let slow = house.host()?;
    let run = house.start("once", json!({})).await?;
    house.provider.wait_for_calls(1).await?;
    house.work.let_time_pass().await?;
    let other = house.host()?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    house.provider.release();
    house.provider.wait_until(|calls| calls.iter().all(|call| call.outcome.is_some())).await?;
    // Whatever the slow one has still to write, it has written then.
    slow.stop().await?;
    other.stop().await?;
    assert_eq!(house.run(run).await?.row.state, RunState::Succeeded);
    assert_eq!(house.steps(run).await?, ["charge succeeded 1"]);
    assert_eq!(house.work.receipts().await?, ["#0:0 verified", "#0:1 committed"]);
    Ok(())
}

/// 14: a host that cannot run a block leaves its steps to the others, and uses up none of their attempts.
#[tokio::test]
async fn a_host_without_a_block_leaves_it_to_others() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    let digest = house.block("rare", |_| StepEnd::Output("1".into())).await?;
    house.workflow("name: rare\nsteps:\n  - rare: { block: rare }\n").await?;
    let poor = house.host_with(|_| false, Duration::from_secs(20))?;
    let run = house.start("rare", json!({})).await?;
    eventually(async || {
        let open = house.timeline(run).await?.open;
        Ok(open.iter().all(|step| step.first_started_at.is_some()).then_some(()))
    })
    .await?;
    let rich = house.host()?;
    assert_eq!(house.ended(run).await?.output, Some(json!(1)));
    assert_eq!(house.steps(run).await?, ["rare succeeded 1"]);
    let ran = |host: &crate::house::Host| host.runner.ran.lock().map(|ran| ran.clone()).unwrap_or_default();
    assert_eq!((ran(&poor), ran(&rich)), (vec![], vec![digest]));
    Ok(())
}

/// 20: whatever a guest returns, its run ends.
#[tokio::test]
async fn a_run_ends_whatever_its_block_returns() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house
        .block("odd", |job| {
            StepEnd::Output(match job.input.as_str() {
                "\"nul\"" => r#""a\u0000b""#.into(),
                "\"array\"" => "[1,2]".into(),
                "\"null\"" => "null".into(),
                "\"surrogate\"" => r#""\ud800""#.into(),
                "\"number\"" => "1e999".into(),
                "\"text\"" => "not json".into(),
                _ => format!("\"{}\"", "x".repeat(10 << 20)),
            })
        })
        .await?;
    house.workflow("name: odd\nsteps:\n  - odd: { block: odd, input: \"=input\" }\n").await?;
    let _host = house.host()?;
    for (input, state) in [
        ("nul", RunState::Failed),
        ("array", RunState::Succeeded),
        ("null", RunState::Succeeded),
        ("surrogate", RunState::Failed),
        ("number", RunState::Failed),
        ("text", RunState::Failed),
        ("ten megabytes", RunState::Failed),
    ] {
        let run = house.start("odd", json!(input)).await?;
        let view = house.ended(run).await?;
        assert_eq!(view.row.state, state, "{input}: {:?}", view.error);
    }
    Ok(())
}

/// A step that takes its hosts down with it is failed after so many of them.
#[tokio::test]
async fn a_step_that_loses_its_hosts_is_failed_in_the_end() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house.block("poison", |_| StepEnd::Output("1".into())).await?;
    house.workflow("name: poison\nsteps:\n  - poison: { block: poison }\n").await?;
    let run = house.start("poison", json!({})).await?;
    for losses in 0..=counterfoil_domain::limits::HOST_LOSSES_MAX {
        let claimed = house.work.claim(Duration::from_mins(1)).await?;
        assert_eq!((claimed.losses, claimed.attempt), (losses, 1), "a lost host uses up no attempt");
        house.work.let_time_pass().await?;
    }
    let host = house.host()?;
    let view = house.ended(run).await?;
    assert_eq!(view.row.state, RunState::Failed);
    assert_eq!(view.error.map(|error| error["code"].clone()), Some(json!("host_lost")));
    assert_eq!(host.runner.ran.lock().map(|ran| ran.len()).unwrap_or_default(), 0);
    Ok(())
}

/// One that takes down the process that runs it, and not its host, is told how often, and failed just so.
#[tokio::test]
async fn a_step_that_loses_its_process_is_failed_in_the_end() -> anyhow::Result<()> {
    static LOSSES: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let mut house = House::new().await?;
    let lost = |job: &StepJob| {
        LOSSES.lock().unwrap_or_else(PoisonError::into_inner).push(job.losses);
        StepEnd::Lost { message: "its process is gone".into() }
    };
    house.block("poison", lost).await?;
    house.workflow("name: poison\nsteps:\n  - poison: { block: poison }\n").await?;
    let run = house.start("poison", json!({})).await?;
    let _host = house.host()?;
    let view = house.ended(run).await?;
    assert_eq!(view.row.state, RunState::Failed);
    assert_eq!(view.error.map(|error| error["code"].clone()), Some(json!("host_lost")));
    let expected: Vec<u32> = (0..=counterfoil_domain::limits::HOST_LOSSES_MAX).collect();
    assert_eq!(*LOSSES.lock().unwrap_or_else(PoisonError::into_inner), expected);
    Ok(())
}

/// Whoever starts runs here is another process, which tells this house's hosts nothing.
async fn told_nothing(house: &mut House) -> anyhow::Result<()> {
    let config = StoreConfig { url: house.work.database.url(), connections_max: 4 };
    house.work.store = Store::connect(config, Arc::new(NoFaults)).await?;
    Ok(())
}

const NAPS: &str = r"
name: naps
steps:
  - charge: { http: { connection: p, method: POST, url: /charges, body: {} } }
  - nap: { delay: 200ms }
  - hear: { listen: { event: go } }
  - reserve: { http: { connection: p, method: POST, url: /reservations, body: {} } }
";

/// 24: with every notification lost, hosts find by themselves what others have started, sent and ended.
#[tokio::test]
async fn runs_come_to_their_end_with_every_notification_lost() -> anyhow::Result<()> {
    let mut house = House::new().await?;
    house.workflow(NAPS).await?;
    // None of the hosts hears of any other process, or of another.
    let first = house.host()?;
    told_nothing(&mut house).await?;
    let second = house.host()?;
    told_nothing(&mut house).await?;
    let mut runs = vec![];
    for _ in 0..4 {
        runs.push(house.start("naps", json!({})).await?);
    }
    house.event("go", None, json!(1)).await?;
    for run in runs {
        assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    }
    assert_eq!(house.provider.calls().len(), 8);
    first.stop().await?;
    second.stop().await
}

/// 24: a listener whose connection is ended each time that it stands is made anew less and less often, and the work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_ended_each_time_does_not_spin() -> anyhow::Result<()> {
    const KILL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let house = House::new().await?;
    house.workflow(CHAIN).await?;
    let _host = house.host()?;
    let cancel = CancellationToken::new();
    let listening = tokio::spawn({
        let (store, cancel) = (house.work.store.clone(), cancel.clone());
        async move { store.listen(cancel).await }
    });
    let begun = Instant::now();
    let (mut killed, mut runs) = (0, 0);
    while begun.elapsed() < Duration::from_secs(3) {
        killed += house.work.count(KILL).await?;
        let run = house.start("chain", json!({})).await?;
        assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
        runs += 1;
    }
    // After 0, 200, 600, 1,400 and 3,000 ms; one that is ending may be counted twice.
    assert!((2..=8).contains(&killed), "it was made anew {killed} times during {runs} runs");
    assert!(runs > 3, "{runs}");
    cancel.cancel();
    listening.await?;
    Ok(())
}

/// 27: however often its hosts are woken, and replaced, a step is tried again no sooner than its policy and the provider say.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_tried_again_no_sooner_than_it_was_told() -> anyhow::Result<()> {
    let house = House::new().await?;
    house
        .workflow(
            r"
name: patient
steps:
  - charge:
      http: { connection: p, method: POST, url: /charges, body: {} }
      retry: { attempts: 4, delays: [300ms, 400ms, 500ms] }
",
        )
        .await?;
    for retry_after in [None, Some(1), None, None] {
        house.provider.script("/charges", Act { retry_after, ..Act::status(429) });
    }
    let storm = tokio::spawn({
        let store = house.work.store.clone();
        async move {
            loop {
                store.wake();
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let mut host = house.host()?;
    let run = house.start("patient", json!({})).await?;
    for attempt in 1..=4 {
        house.provider.wait_for_calls(attempt).await?;
        // Its answer is recorded, or its host lost with it and the outcome unknown: so it is let to end first.
        host.stop().await?;
        host = house.host()?;
    }
    let view = house.ended(run).await?;
    storm.abort();
    assert_eq!(view.error.map(|error| error["code"].clone()), Some(json!("http_status")));
    let at: Vec<u64> = house.provider.calls().iter().map(|call| call.received_at_ms).collect();
    let apart: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let least = [300, 1_000, 500];
    assert_eq!(apart.len(), least.len(), "{apart:?}");
    assert!(apart.iter().zip(least).all(|(apart, least)| *apart >= least), "{apart:?}");
    Ok(())
}

/// 28: what a host held when it died, or an execution when it broke off, is free again: nothing that is counted outlives it.
#[tokio::test]
async fn the_places_of_what_broke_off_are_free_again() -> anyhow::Result<()> {
    const ROOM: u32 = 2;
    let mut house = House::new().await?;
    house.block("breaks", |_| panic!("it breaks off")).await?;
    house.workflow("name: breaks\nsteps:\n  - it: { block: breaks }\n").await?;
    house.workflow(CHAIN).await?;
    let lease = Duration::from_millis(400);
    // Each of these dies with all its places taken.
    for _ in 0..3 {
        for _ in 0..ROOM {
            house.provider.script("/charges", Act::held());
        }
        let before = house.provider.calls().len();
        let host = house.host_of(|_| true, lease, ROOM)?;
        for _ in 0..ROOM {
            house.start("chain", json!({})).await?;
        }
        house.provider.wait_for_calls(before + ROOM as usize).await?;
        drop(host);
    }
    // And this one has executions that break off, in each of its places.
    let _host = house.host_of(|_| true, lease, ROOM)?;
    let mut broken = vec![];
    for _ in 0..2 * ROOM {
        broken.push(house.start("breaks", json!({})).await?);
    }
    let run = house.start("chain", json!({})).await?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    for run in broken {
        let view = house.ended(run).await?;
        assert_eq!(view.error.map(|error| error["code"].clone()), Some(json!("host_lost")));
    }
    let held = "SELECT count(*) FROM open_steps WHERE lease_id IS NOT NULL";
    eventually(async || Ok((house.work.count(held).await? == 0).then_some(()))).await
}
