//! How the room of a host is shared among tenants.

use std::fmt::Write as _;
use std::time::Duration;

use counterfoil_testkit::provider::Act;
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
