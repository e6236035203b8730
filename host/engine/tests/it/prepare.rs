//! Blocks that a host must compile first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use counterfoil_domain::code::Code;
use counterfoil_domain::ports::{StepEnd, Unprepared};
use counterfoil_store::run::RunState;
use serde_json::json;

use crate::house::{House, Making, eventually};

const LEASE: Duration = Duration::from_secs(1);

async fn house() -> anyhow::Result<House> {
    let mut house = House::new().await?;
    house.block("slow", |_| StepEnd::Output("1".into())).await?;
    house.workflow("name: slow\nsteps:\n  - only: { block: slow }\n").await?;
    house
        .workflow("name: quick\nsteps:\n  - only: { http: { connection: p, method: GET, url: /charges } }\n")
        .await?;
    Ok(house)
}

#[tokio::test]
async fn no_lease_is_held_while_a_block_is_made_ready() -> anyhow::Result<()> {
    let house = house().await?;
    let making = Making::new(Ok(()));
    let (gate, begun) = (Arc::clone(&making.gate), Arc::clone(&making.begun));
    let _host = house.host_making(making, LEASE)?;
    let runs = [house.start("slow", json!({})).await?, house.start("slow", json!({})).await?];
    eventually(async || Ok((begun.load(Ordering::Relaxed) == 1).then_some(()))).await?;
    let held = "SELECT count(*) FROM open_steps WHERE lease_id IS NOT NULL";
    eventually(async || Ok((house.work.count(held).await? == 0).then_some(()))).await?;

    // Other work goes on meanwhile, for longer than a lease lasts.
    let since = std::time::Instant::now();
    while since.elapsed() < 2 * LEASE {
        let quick = house.start("quick", json!({})).await?;
        assert_eq!(house.ended(quick).await?.row.state, RunState::Succeeded);
        let waiting = "SELECT count(*) FROM open_steps WHERE lease_id IS NULL AND losses = 0 AND vt <= now()";
        assert_eq!(house.work.count(waiting).await?, 2, "free for whoever has the block");
    }
    assert_eq!(begun.load(Ordering::Relaxed), 1, "made once for both");

    gate.add_permits(1);
    for run in runs {
        assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    }
    let handed_back = "SELECT count(*) FROM step_attempts WHERE ended = 'handed_back'";
    assert!((1..=2).contains(&house.work.count(handed_back).await?), "each was taken once at most");
    Ok(())
}

#[tokio::test]
async fn a_host_that_has_the_block_takes_the_step_from_one_that_makes_it() -> anyhow::Result<()> {
    let house = house().await?;
    let making = Making::new(Ok(()));
    let begun = Arc::clone(&making.begun);
    let maker = house.host_making(making, LEASE)?;
    let run = house.start("slow", json!({})).await?;
    eventually(async || Ok((begun.load(Ordering::Relaxed) == 1).then_some(()))).await?;
    let has_it = house.host()?;
    assert_eq!(house.ended(run).await?.row.state, RunState::Succeeded);
    let ran = |host: &crate::house::Host| host.runner.ran.lock().map(|ran| ran.len()).unwrap_or_default();
    assert_eq!((ran(&maker), ran(&has_it)), (0, 1));
    // A host that is told to stop does not wait for what it makes.
    maker.stop().await
}

#[tokio::test]
async fn a_block_that_no_host_will_run_fails_its_steps() -> anyhow::Result<()> {
    let house = house().await?;
    let message = "it is broken".to_owned();
    let making = Making::new(Err(Unprepared::Refused { code: Code::ComponentInvalid, message }));
    let (gate, begun) = (Arc::clone(&making.gate), Arc::clone(&making.begun));
    gate.add_permits(2);
    let _host = house.host_making(making, LEASE)?;
    for _ in 0..2 {
        let run = house.start("slow", json!({})).await?;
        let view = house.ended(run).await?;
        assert_eq!(view.row.state, RunState::Failed);
        assert!(format!("{view:?}").contains("it is broken"), "{view:?}");
    }
    assert_eq!(begun.load(Ordering::Relaxed), 1, "a refusal is remembered");
    Ok(())
}
