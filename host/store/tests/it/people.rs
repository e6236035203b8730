//! What people see: where runs stand, lists that go on where they stopped, timelines.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_store::admission::Admission;
use counterfoil_store::receipt::EffectFilter;
use counterfoil_store::run::{RunFilter, RunState};
use counterfoil_store::settle::{NewStep, RunEndState, Settlement};
use counterfoil_store::step::Wait;
use counterfoil_store::{Page, StoreError};
use serde_json::json;

use crate::world::{
    LEASE, World, answer, blocking, one, person, ready, receipt, run_end, settled, settlement,
};

#[tokio::test]
async fn a_run_stands_where_its_steps_do() {
    let world = World::new().await;
    let run = world.start(&["a"]).await;
    let shown = || async {
        let view = world.store.run(world.tenant, run).await.expect("reads").expect("exists");
        let filter = RunFilter { state: Some(view.row.state), ..RunFilter::default() };
        let listed = world.store.runs(world.tenant, &filter, page(None, 10)).await.expect("lists");
        assert_eq!(one(listed), view.row, "a list by state has what stands there");
        view.row.state
    };
    assert_eq!(shown().await, RunState::Pending);
    let step = one(world.claim(LEASE).await);
    assert_eq!(shown().await, RunState::Running);
    world.store.retry_later(&crate::world::retry(&step, LEASE)).await.expect("waits");
    assert_eq!(shown().await, RunState::Waiting);
    world.execute("UPDATE open_steps SET vt = now()").await.expect("passes the time");
    assert_eq!(shown().await, RunState::Running);
    let step = one(world.claim(LEASE).await);
    let sent = world.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
    world.store.block(&blocking(&step)).await.expect("blocks");
    assert_eq!(shown().await, RunState::Blocked);
    world.resolve(&sent, counterfoil_domain::receipt::resolution::Outcome::Committed, true).await;
    assert_eq!(shown().await, RunState::Running);
    let step = one(world.claim(LEASE).await);
    let delay = NewStep { wait: Wait::Delay, delay: LEASE, ..ready("nap") };
    world.store.settle(&Settlement { open: vec![delay], ..settlement(&step) }).await.expect("settles");
    assert_eq!(shown().await, RunState::Waiting);
    world.store.cancel_run(world.tenant, run, &person()).await.expect("cancels");
    assert_eq!(shown().await, RunState::Cancelled);
}

fn page(after: Option<String>, limit: u32) -> Page {
    Page { after, limit }
}

#[tokio::test]
async fn a_list_goes_on_where_it_stopped_whatever_was_added() {
    let world = World::new().await;
    let mut started = vec![];
    for n in 0..7 {
        let admission = Admission { record: Some(format!("r-{}", n % 2)), ..world.admission(&["a"]) };
        world.store.admit(&admission).await.expect("admits");
        started.push(admission.run);
    }
    let mut seen = vec![];
    let mut after = None;
    loop {
        let rows =
            world.store.runs(world.tenant, &RunFilter::default(), page(after, 3)).await.expect("lists");
        let Some(last) = rows.last() else { break };
        after = Some(last.cursor());
        seen.extend(rows.iter().map(|row| row.id));
        world.start(&["late"]).await;
    }
    started.reverse();
    assert_eq!(seen, started);

    let filter = RunFilter { record: Some("r-1".into()), workflow: Some(world.workflow), state: None };
    let of_record = world.store.runs(world.tenant, &filter, page(None, 10)).await.expect("lists");
    assert_eq!(of_record.len(), 3);
    let refused = world.store.runs(world.tenant, &filter, page(Some("x".into()), 10)).await;
    assert!(matches!(refused, Err(StoreError::InvalidCursor)), "{refused:?}");
}

#[tokio::test]
async fn effects_are_listed_by_run_and_the_unknown_ones_by_age() {
    let world = World::new().await;
    let mut unknown = vec![];
    let mut committed = vec![];
    for _ in 0..3 {
        let step = world.step().await;
        for n in 0..2 {
            let sent = world.send(&step, receipt(&step, n, Safety::AtMostOnce)).await;
            unknown.push(sent.id);
        }
        world.store.block(&blocking(&step)).await.expect("blocks");
        let (step, sent) = world.dispatched().await;
        world
            .store
            .settle(&Settlement { writes: answer(&sent), ..settlement(&step) })
            .await
            .expect("settles");
        committed.push(sent);
    }
    for (filter, expected) in [
        (EffectFilter { state: Some(ReceiptState::Unknown), run: None }, unknown.clone()),
        (
            EffectFilter { state: Some(ReceiptState::Committed), run: None },
            committed.iter().rev().map(|receipt| receipt.id).collect(),
        ),
        (EffectFilter { state: None, run: Some(committed[1].run) }, vec![committed[1].id]),
        (EffectFilter { state: Some(ReceiptState::Rejected), run: None }, vec![]),
    ] {
        let mut seen = vec![];
        let mut after = None;
        loop {
            let rows = world.store.effects(world.tenant, filter, page(after, 2)).await.expect("lists");
            let Some(last) = rows.last() else { break };
            after = Some(last.cursor());
            seen.extend(rows.iter().map(|row| row.id));
        }
        assert_eq!(seen, expected, "{filter:?}");
    }
    let all =
        world.store.effects(world.tenant, EffectFilter::default(), page(None, 100)).await.expect("lists");
    assert_eq!(all.len(), 9);
    let counts = world.store.counts().await.expect("counts");
    assert_eq!((counts.unknown, counts.open_steps["blocked"], counts.open_steps["ready"]), (6, 3, 0));
    assert!(counts.unknown_oldest.is_some());
}

#[tokio::test]
async fn a_timeline_has_every_row_of_its_run() {
    let world = World::new().await;
    let lost = {
        world.start(&["a"]).await;
        one(world.claim(std::time::Duration::ZERO).await)
    };
    let step = one(world.claim(LEASE).await);
    let sent = world.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
    let settlement = Settlement {
        writes: answer(&sent),
        logs: Some(json!(["a line"])),
        inline: vec![settled(step.run, "b", counterfoil_store::settle::SettledState::Skipped)],
        open: vec![ready("c")],
        ..settlement(&step)
    };
    world.store.settle(&settlement).await.expect("settles");
    let rows = world.timeline(step.run).await.expect("exists");
    assert_eq!((rows.head.plan, rows.audit), (json!({ "plan": 1 }), vec![]));
    let own = &rows.settled[0];
    assert_eq!((own.node.as_str(), own.losses, own.logs.as_ref()), ("a", 1, Some(&json!(["a line"]))));
    assert!(own.queued_at <= own.started_at.expect("started") && own.started_at < Some(own.settled_at));
    assert_eq!((rows.settled[1].node.as_str(), rows.settled.len()), ("b", 2));
    let attempt = one(rows.attempts);
    assert_eq!((attempt.lease, attempt.ended.name()), (lost.fence.lease, "lost"));
    let effect = one(rows.effects);
    assert_eq!((effect.receipt.id, effect.receipt.standing.state()), (sent.id, ReceiptState::Committed));
    let open = one(rows.open);
    assert_eq!((open.node.as_str(), open.lease, open.wait), ("c", None, Wait::Ready));
    let end = Some(run_end(RunEndState::Failed));
    let next = one(world.claim(LEASE).await);
    world.store.settle(&Settlement { end, ..crate::world::settlement(&next) }).await.expect("settles");
    let view = world.store.run(world.tenant, step.run).await.expect("reads").expect("exists");
    assert_eq!(view.row.state, RunState::Failed);
}
