//! The end of a step: all of it or nothing, and never over an effect that has no answer.

use std::time::Duration;

use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::HostId;
use counterfoil_domain::receipt::{ReceiptState, Standing};
use counterfoil_store::run::{Cancelled, RunState};
use counterfoil_store::settle::{
    NewStep, OwnWrite, RetryLater, RetryVerdict, RunEndState, SettleVerdict, SettledState, Settlement,
};
use counterfoil_store::step::{Fence, Wait};
use serde_json::json;
use uuid::Uuid;

use crate::world::{
    LEASE, World, accepted, answer, commit, id, lose, one, person, ready, receipt, refused, reject, retry,
    run_end, settled, settlement,
};

#[tokio::test]
async fn a_chain_is_kept_by_the_host_that_works_on_it() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    let (run, host) = (step.run, HostId(Uuid::now_v7()));
    let delayed = NewStep { wait: Wait::Delay, delay: LEASE, ..ready("later") };
    let settlement = Settlement {
        writes: answer(&sent),
        logs: Some(json!([{ "level": "info", "message": "charged" }])),
        inline: vec![
            settled(run, "decide", SettledState::Succeeded),
            settled(run, "else", SettledState::Skipped),
        ],
        open: vec![delayed, ready("b"), ready("c")],
        keep: Some((host, LEASE)),
        ..settlement(&step)
    };
    let verdict = world.store.settle(&settlement).await.expect("settles");
    let SettleVerdict::Settled { next: Some(next) } = verdict else { panic!("{verdict:?}") };
    let expected = Fence { tenant: world.tenant, step: id(run, "b"), lease: next.fence.lease };
    assert_eq!((next.fence, next.place.node.as_str(), next.run), (expected, "b", run));
    assert_eq!((next.attempt, next.wait, next.losses, next.block), (1, Wait::Ready, 0, None));
    assert_ne!(next.fence.lease, step.fence.lease);
    assert!(next.first_started_at < next.lease_expires_at);

    // It is as if it had been claimed: nobody else gets it, and it can be renewed and settled.
    assert_eq!(one(world.claim(LEASE).await).place.node, "c");
    assert_eq!(world.store.renew(&[next.fence], LEASE).await.expect("renews"), [next.fence.lease]);
    assert_eq!(world.state(&sent).await, ReceiptState::Committed);
    assert_eq!(world.number("SELECT open_steps::bigint FROM open_runs").await, 3);
    let context = world.store.run_context(world.tenant, run).await.expect("reads").expect("exists");
    let outputs: Vec<_> = context.outputs.iter().map(|(node, ..)| node.as_str()).collect();
    assert_eq!(outputs, ["a", "decide"]);
    let settled = world.store.settle(&crate::world::settlement(&next)).await.expect("settles");
    assert_eq!(settled, SettleVerdict::Settled { next: None });
}

#[tokio::test]
async fn a_run_that_ends_leaves_nothing_open() {
    let world = World::new().await;
    for (state, shown) in [
        (RunEndState::Succeeded, RunState::Succeeded),
        (RunEndState::Failed, RunState::Failed),
        (RunEndState::Cancelled, RunState::Cancelled),
    ] {
        let run = world.start(&["a", "b", "c"]).await;
        let mut steps = world.claim(LEASE).await;
        steps.sort_by(|one, other| one.place.node.cmp(&other.place.node));
        let (own, other) = (&steps[0], &steps[1]);
        let sent = world.send(own, receipt(own, 0, Safety::AtMostOnce)).await;
        let under_way = world.send(other, receipt(other, 0, Safety::AtMostOnce)).await;
        let end = Some(run_end(state));
        let settlement = Settlement { writes: answer(&sent), end, ..settlement(own) };
        let verdict = world.store.settle(&settlement).await.expect("settles");
        assert_eq!(verdict, SettleVerdict::Settled { next: None });

        let view = world.store.run(world.tenant, run).await.expect("reads").expect("exists");
        assert_eq!((view.row.state, view.row.ended_at.is_some()), (shown, true));
        assert_eq!((view.output, view.error), (run_end(state).output, run_end(state).error));
        for table in ["open_runs", "open_steps"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}, {state:?}");
        }
        let timeline = world.timeline(run).await.expect("exists");
        let states: Vec<_> = timeline.settled.iter().map(|step| (step.node.as_str(), step.state)).collect();
        let cancelled = SettledState::Cancelled;
        assert_eq!(states, [("a", SettledState::Succeeded), ("b", cancelled), ("c", cancelled)]);
        // Nobody is left who would settle it, and it may have happened.
        assert_eq!(world.state(&under_way).await, ReceiptState::Unknown);
        let late = world.store.settle(&crate::world::settlement(other)).await.expect("answers");
        assert_eq!(late, SettleVerdict::Lost);
    }
}

#[tokio::test]
async fn a_run_is_cancelled_once_with_all_its_steps() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    let by = person();
    let cancel = || world.store.cancel_run(world.tenant, step.run, &by);
    assert_eq!(cancel().await.expect("cancels"), Cancelled::Done);
    assert_eq!(world.state(&sent).await, ReceiptState::Unknown);
    assert_eq!(world.store.renew(&[step.fence], LEASE).await.expect("renews"), []);
    let before = world.dump().await;
    assert_eq!(cancel().await.expect("answers"), Cancelled::AlreadyEnded);
    assert_eq!(world.dump().await, before);
    // Its receipt can still be settled, by a late answer for one.
    world.store.record_answer(&[commit(&sent, ReceiptState::Unknown)]).await.expect("records");
    assert_eq!(world.state(&sent).await, ReceiptState::Committed);
    let timeline = world.timeline(step.run).await.expect("exists");
    assert_eq!(one(timeline.audit).action, "run.cancel");
    assert_eq!((timeline.head.run.row.state, timeline.open.len()), (RunState::Cancelled, 0));
}

/// A step that settles may open others while its run is being cancelled: either they are seen, or they never are.
#[tokio::test(flavor = "multi_thread")]
async fn no_step_outlives_its_run() {
    let world = World::new().await;
    for round in 0..40 {
        let run = world.start(&["a", "b"]).await;
        let steps = world.claim(LEASE).await;
        let settlements: Vec<Settlement> = steps
            .iter()
            .map(|step| Settlement {
                open: vec![ready(&format!("{}-next", step.place.node))],
                ..settlement(step)
            })
            .collect();
        let by = person();
        let (one, two, cancelled) = tokio::join!(
            world.store.settle(&settlements[0]),
            world.store.settle(&settlements[1]),
            world.store.cancel_run(world.tenant, run, &by),
        );
        for verdict in [one, two] {
            let verdict = verdict.expect("answers");
            assert!(
                matches!(verdict, SettleVerdict::Lost | SettleVerdict::Settled { next: None }),
                "{round}: {verdict:?}"
            );
        }
        assert_eq!(cancelled.expect("cancels"), Cancelled::Done);
        for table in ["open_runs", "open_steps"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}, {round}");
        }
        let opened = format!("SELECT count(*) FROM settled_steps WHERE run_id = '{}'", run.0);
        assert!((2..=4).contains(&world.number(&opened).await), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_that_settle_at_once_are_all_counted() {
    let world = World::new().await;
    let nodes = ["a", "b", "c", "d", "e", "f"];
    let run = world.start(&nodes).await;
    let mut branches = tokio::task::JoinSet::new();
    for step in world.claim(LEASE).await {
        let store = world.store.clone();
        branches.spawn(async move {
            let next = format!("{}-next", step.place.node);
            let open =
                if next.as_str() < "d" { vec![ready(&next), ready(&format!("{next}-too"))] } else { vec![] };
            store.settle(&Settlement { open, ..settlement(&step) }).await.expect("settles")
        });
    }
    assert_eq!(branches.join_all().await, vec![SettleVerdict::Settled { next: None }; nodes.len()]);
    let counted = format!("SELECT open_steps::bigint FROM open_runs WHERE run_id = '{}'", run.0);
    assert_eq!(world.number(&counted).await, 6);
    assert_eq!(world.number("SELECT count(*) FROM open_steps").await, 6);
}

#[tokio::test]
async fn no_step_ends_over_an_effect_without_an_answer() {
    let world = World::new().await;
    for end in [None, Some(run_end(RunEndState::Succeeded)), Some(run_end(RunEndState::Failed))] {
        for is_unknown in [false, true] {
            let (step, sent) = world.dispatched().await;
            if is_unknown {
                world.store.record_answer(&[lose(&sent)]).await.expect("records");
            }
            let inline = vec![settled(step.run, "x", SettledState::Skipped)];
            let open = if end.is_none() { vec![ready("b")] } else { vec![] };
            let settlement = Settlement { inline, open, end: end.clone(), ..settlement(&step) };
            let before = world.dump().await;
            let verdict = world.store.settle(&settlement).await.expect("answers");
            assert_eq!(verdict, SettleVerdict::Unanswered, "{end:?} {is_unknown}");
            assert_eq!(world.dump().await, before);
        }
    }
    // Whoever cancels the run knows that.
    let (step, sent) = world.dispatched().await;
    let settlement = Settlement {
        settled: settled(step.run, "a", SettledState::Cancelled),
        end: Some(run_end(RunEndState::Cancelled)),
        ..settlement(&step)
    };
    let verdict = world.store.settle(&settlement).await.expect("settles");
    assert_eq!(verdict, SettleVerdict::Settled { next: None });
    assert_eq!(world.state(&sent).await, ReceiptState::Unknown);
}

/// A dispatch may outlive the execution that made it: its host gave up waiting, and the database had not.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_under_way_is_seen_by_the_settle() {
    let world = World::new().await;
    let step = world.step().await;
    let spent = world.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
    world.store.record_answer(&[commit(&spent, ReceiptState::Dispatched)]).await.expect("records");

    let mut dispatch = world.pool.begin().await.expect("begins");
    sqlx::query("SELECT id FROM open_steps FOR SHARE").fetch_all(&mut *dispatch).await.expect("locks");
    let (store, settlement) = (world.store.clone(), settlement(&step));
    let settle = tokio::spawn(async move { store.settle(&settlement).await });
    world.until_somebody_waits().await;
    sqlx::query("UPDATE receipts SET state = 'dispatched', answer_kind = NULL, answered_at = NULL")
        .execute(&mut *dispatch)
        .await
        .expect("dispatches");
    dispatch.commit().await.expect("commits");
    let verdict = settle.await.expect("runs").expect("answers");
    assert_eq!(verdict, SettleVerdict::Unanswered);
}

#[tokio::test]
async fn an_answer_that_is_there_already_is_no_obstacle_and_another_one_is() {
    let world = World::new().await;
    for (found, verdict) in
        [(commit as fn(&_, _) -> _, SettleVerdict::Settled { next: None }), (reject, SettleVerdict::Lost)]
    {
        let (step, sent) = world.dispatched().await;
        world.store.record_answer(&[found(&sent, ReceiptState::Dispatched)]).await.expect("records");
        let before = world.dump().await;
        let settlement = Settlement { writes: answer(&sent), ..settlement(&step) };
        assert_eq!(world.store.settle(&settlement).await.expect("answers"), verdict);
        assert_eq!(world.dump().await == before, verdict == SettleVerdict::Lost);
    }
}

#[tokio::test]
async fn read_only_answers_commit_with_the_step_or_it_is_run_again() {
    let world = World::new().await;
    let step = world.step().await;
    let writes: Vec<OwnWrite> = [Standing::Committed(accepted()), Standing::Rejected(refused())]
        .into_iter()
        .zip(0..)
        .map(|(standing, n)| {
            let mut looked_up = receipt(&step, n, Safety::ReadOnly);
            looked_up.standing = standing;
            OwnWrite::ReadOnly(looked_up)
        })
        .collect();
    let before = world.dump().await;
    let twice = Settlement { writes: [writes.clone(), writes.clone()].concat(), ..settlement(&step) };
    assert_eq!(world.store.settle(&twice).await.expect("answers"), SettleVerdict::Rerun);
    assert_eq!(world.dump().await, before);

    let settlement = Settlement { writes, ..settlement(&step) };
    world.store.settle(&settlement).await.expect("settles");
    let journal = world.store.journal(world.tenant, &step.place).await.expect("reads");
    assert_eq!(journal.len(), 2);
}

#[tokio::test]
async fn a_retry_waits_and_is_another_attempt() {
    let world = World::new().await;
    let step = world.step().await;
    let sent = world.send(&step, receipt(&step, 0, Safety::Idempotent)).await;
    let later = RetryLater { lose: vec![lose(&sent)], ..retry(&step, LEASE) };
    world.store.retry_later(&later).await.expect("waits");
    assert_eq!(world.state(&sent).await, ReceiptState::Unknown);
    assert_eq!(world.claim(LEASE).await, []);
    world.execute("UPDATE open_steps SET vt = now()").await.expect("passes the time");
    let again = one(world.claim(LEASE).await);
    assert_eq!((again.attempt, again.wait), (2, Wait::Retry));
    assert_eq!(again.first_started_at, step.first_started_at);

    let same = RetryLater { next_attempt: false, ..retry(&again, Duration::ZERO) };
    world.store.retry_later(&same).await.expect("waits");
    assert_eq!(one(world.claim(LEASE).await).attempt, 2);
    let timeline = world.timeline(step.run).await.expect("exists");
    let ended: Vec<_> =
        timeline.attempts.iter().map(|attempt| (attempt.attempt, attempt.ended.name())).collect();
    assert_eq!(ended, [(1, "retry"), (2, "retry")]);
}

/// Steps of one run that are open at once count their attempts by themselves, and a lost host uses none up.
#[tokio::test]
async fn attempts_are_counted_for_each_step() {
    let world = World::new().await;
    world.start(&["a", "b"]).await;
    for attempt in 1..=3 {
        let mut claimed = world.claim(LEASE).await;
        claimed.sort_by(|one, other| one.place.node.cmp(&other.place.node));
        let counted: Vec<_> = claimed.iter().map(|step| (step.place.node.as_str(), step.attempt)).collect();
        assert_eq!(counted, [("a", attempt), ("b", 1)]);
        let waits = world.store.retry_later(&retry(&claimed[0], Duration::ZERO)).await;
        assert_eq!(waits.expect("answers"), RetryVerdict::Waiting);
        // The host of `b` is lost.
        world.execute("UPDATE open_steps SET vt = now()").await.expect("expires");
    }
}
