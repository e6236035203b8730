//! Parts that end at the same time on several hosts: each is counted once, and the container goes on once.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::id::step_id;
use counterfoil_domain::step::StepError;
use counterfoil_domain::workflow::advance::{Container, Join, Part, PartError, PartStanding, PartStart};
use counterfoil_store::container::{Closes, Containers, GoOn, GoOnVerdict};
use counterfoil_store::settle::{NewStep, RunEndState, SettleVerdict, Settlement};
use counterfoil_store::step::{Claimed, Wait};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::world::{LEASE, World, one, person, ready, run_end, settlement};

const PARTS: u32 = 24;

fn start(index: u32, standing: PartStanding) -> PartStart {
    PartStart { index, item: None, standing }
}

fn container(awaits: i32, tolerates: i32) -> NewStep {
    let parts = (0..PARTS).map(|index| start(index, PartStanding::Running)).collect();
    let container = Container { awaits, tolerates, room: 0, parts };
    NewStep { wait: Wait::Child, container: Some(container), ..ready("c") }
}

impl World {
    /// A run that has a container with so many parts open, each of them one step.
    async fn container(&self, awaits: i32, tolerates: i32) -> Vec<Claimed> {
        let mut admission = self.admission(&[]);
        admission.open = (0..PARTS).map(|part| ready(&format!("c/p{part}"))).collect();
        admission.open.insert(0, container(awaits, tolerates));
        self.store.admit(&admission).await.expect("admits");
        let mut steps = self.claim(LEASE).await;
        assert_eq!(steps.len(), PARTS as usize, "the container waits");
        steps.sort_by_key(|step| step.place.node.clone());
        steps
    }
}

fn ends(step: &Claimed, result: Result<Value, &str>) -> Settlement {
    let index: u32 = step.place.node.trim_start_matches("c/p").parse().expect("a part");
    let node = step.place.node.clone();
    let counts = result.is_ok();
    let result = result.map_err(|why| PartError { node, error: StepError::new(Code::BlockFailed, why) });
    let join = Join { node: "c".into(), iteration: vec![], part: Part { index, result, counts } };
    Settlement { containers: Containers { join: Some(join), ..Containers::default() }, ..settlement(step) }
}

fn closing(step: &Claimed, closes: Closes) -> Settlement {
    Settlement {
        containers: Containers { closes: Some(closes), ..Containers::default() },
        ..settlement(step)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_part_makes_the_container_due_whichever_host_it_is_on() {
    let world = World::new().await;
    let stores = [world.other_store().await, world.other_store().await, world.other_store().await];
    for round in 0..10 {
        let steps = world.container(i32::try_from(PARTS).expect("few"), 0).await;
        let (last, first) = steps.split_last().expect("some");
        let settlements = first.iter().map(|step| ends(step, Ok(json!(step.place.node)))).collect::<Vec<_>>();
        let settle = settlements.iter().zip(stores.iter().cycle()).map(|(one, store)| store.settle(one));
        for verdict in join_all(settle).await {
            assert_eq!(verdict.expect("settles"), SettleVerdict::Settled { next: None }, "{round}");
        }
        assert_eq!(world.claim(LEASE).await, [], "one part is missing");
        stores[0].settle(&ends(last, Ok(json!(1)))).await.expect("settles");
        let due = one(world.claim(LEASE).await);
        assert_eq!((due.place.node.as_str(), due.wait), ("c", Wait::Ready));
        let progress =
            world.store.progress(world.tenant, due.fence.step).await.expect("reads").expect("is open");
        assert_eq!((progress.awaits, progress.done.len()), (0, PARTS as usize));
        assert!(progress.done.iter().map(|(index, _)| *index).eq(0..PARTS), "in order");
        let end = Some(run_end(RunEndState::Succeeded));
        let settled = world.store.settle(&Settlement { end, ..closing(&due, Closes::Cancelling) }).await;
        assert_eq!(settled.expect("settles"), SettleVerdict::Settled { next: None });
        for table in ["open_steps", "open_runs", "containers", "container_parts"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
        }
    }
}

#[tokio::test]
async fn enough_successes_or_too_many_failures_make_it_due() {
    let world = World::new().await;
    for (awaits, tolerates, results, is_due) in [
        (1, 1, vec![Ok(json!(1))], true),
        (2, 1, vec![Ok(json!(1))], false),
        (2, 1, vec![Ok(json!(1)), Err("a"), Ok(json!(2))], true),
        (1, 1, vec![Err("a")], false),
        (1, 1, vec![Err("a"), Err("b")], true),
        (1, 0, vec![Err("a")], true),
    ] {
        let steps = world.container(awaits, tolerates).await;
        let run = steps[0].run;
        for (step, result) in steps.iter().zip(results) {
            world.store.settle(&ends(step, result)).await.expect("settles");
        }
        assert_eq!(world.claim(LEASE).await.len(), usize::from(is_due), "{awaits} {tolerates}");
        world.store.cancel_run(world.tenant, run, &person()).await.expect("cancels");
    }
    for table in ["open_steps", "open_runs", "containers", "container_parts"] {
        assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
}

/// A part that ends while a host works on the container is seen by it before it waits again.
#[tokio::test]
async fn no_part_is_missed_by_a_container_that_is_being_worked_on() {
    let world = World::new().await;
    let steps = world.container(2, 1).await;
    world.store.settle(&ends(&steps[0], Ok(json!(1)))).await.expect("settles");
    world.execute("UPDATE open_steps SET wait = 'ready', vt = now() WHERE node = 'c'").await.expect("wakes");
    let held = one(world.claim(LEASE).await);
    world.store.settle(&ends(&steps[1], Ok(json!(2)))).await.expect("settles");
    let more = GoOn {
        fence: held.fence,
        run: held.run,
        lineage: held.place.lineage,
        inline: vec![],
        open: vec![],
        parts: vec![],
        done: vec![],
        tolerates: 0,
        undone: vec![],
    };
    assert_eq!(world.store.go_on(&more).await.expect("goes on"), GoOnVerdict::Waiting);
    let due = one(world.claim(LEASE).await);
    assert_eq!(due.place.node, "c");
    assert_eq!(world.store.go_on(&more).await.expect("answers"), GoOnVerdict::Lost, "an old lease");
    // Those that nobody waits for any more are cancelled with it, and their late ends change nothing.
    let end = Some(run_end(RunEndState::Succeeded));
    world
        .store
        .settle(&Settlement { end: None, ..closing(&due, Closes::Cancelling) })
        .await
        .expect("settles");
    assert_eq!(world.number("SELECT open_steps::bigint FROM open_runs").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM open_steps").await, 0);
    let late = world.store.settle(&Settlement { end, ..ends(&steps[2], Ok(json!(3))) }).await;
    assert_eq!(late.expect("answers"), SettleVerdict::Lost);
}

#[tokio::test]
async fn what_is_left_goes_on_and_counts_for_nobody() {
    let world = World::new().await;
    let steps = world.container(1, 23).await;
    world.store.settle(&ends(&steps[0], Ok(json!(1)))).await.expect("settles");
    let due = one(world.claim(LEASE).await);
    let open = vec![ready("next")];
    world.store.settle(&Settlement { open, ..closing(&due, Closes::Leaving) }).await.expect("settles");
    assert_eq!(world.number("SELECT open_steps::bigint FROM open_runs").await, i64::from(PARTS));
    let left = world.store.settle(&ends(&steps[1], Ok(json!(2)))).await.expect("settles");
    assert_eq!(left, SettleVerdict::Settled { next: None });
    assert_eq!(world.number("SELECT open_steps::bigint FROM open_runs").await, i64::from(PARTS) - 1);
    assert_eq!(one(world.claim(LEASE).await).place.node, "next");
    let steps_open = "SELECT count(*) FROM open_steps";
    assert_eq!(world.number(steps_open).await, i64::from(PARTS) - 1);
}

/// Ends, cancellations and closings at once: each has an answer, and nothing deadlocks or is left over.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_first_nothing_is_left() {
    let world = World::new().await;
    let other = Arc::new(world.other_store().await);
    for round in 0..20 {
        let steps = world.container(1, 23).await;
        let run = steps[0].run;
        world.store.settle(&ends(&steps[0], Ok(json!(1)))).await.expect("settles");
        let due = one(world.claim(LEASE).await);
        let end = Some(run_end(RunEndState::Succeeded));
        let close = Settlement { end, ..closing(&due, Closes::Cancelling) };
        let others: Vec<Settlement> = steps[1..].iter().map(|step| ends(step, Err("no"))).collect();
        let by = person();
        let (closed, verdicts, cancelled) = tokio::join!(
            other.settle(&close),
            join_all(others.iter().map(|one| world.store.settle(one))),
            world.store.cancel_run(world.tenant, run, &by),
        );
        closed.expect("answers");
        cancelled.expect("answers");
        for verdict in verdicts {
            let verdict = verdict.expect("answers");
            assert!(
                matches!(verdict, SettleVerdict::Lost | SettleVerdict::Settled { next: None }),
                "{round}"
            );
        }
        let settled = format!("SELECT count(*) FROM settled_steps WHERE run_id = '{}'", run.0);
        assert_eq!(world.number(&settled).await, i64::from(PARTS) + 1, "{round}");
        assert_eq!(step_id(run, "c", &[]), due.fence.step);
        for table in ["open_steps", "open_runs", "containers", "container_parts"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table} {round}");
        }
    }
}
