//! What is unknown stops its step, and nothing else does: whoever settles it lets the step go on.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::resolution::{Outcome, Unresolvable};
use counterfoil_domain::receipt::{Receipt, ReceiptState, Transition};
use counterfoil_store::Page;
use counterfoil_store::receipt::{Dispatch, EffectFilter, Resolved, Resumed};
use counterfoil_store::settle::{BlockVerdict, Blocking, Swap};
use counterfoil_store::step::Claimed;

use crate::world::{
    LEASE, World, answer, blocking, commit, first, lose, numbered, one, person, receipt, reject,
};

const BLOCKED: Option<&str> = Some("blocked");
const READY: Option<&str> = Some("ready");

#[tokio::test]
async fn an_unknown_outcome_blocks_until_somebody_says_what_happened() {
    let world = World::new().await;
    for outcome in [Outcome::Committed, Outcome::Verified, Outcome::Compensated, Outcome::Abandoned] {
        let (step, sent) = world.blocked().await;
        assert_eq!(world.wait(&step).await.as_deref(), BLOCKED);
        assert_eq!(world.claim(LEASE).await, []);
        world.execute("UPDATE receipts SET absence_known_at = now()").await.expect("waits");
        let resolved = world.resolve(&sent, outcome, true).await;
        assert_eq!(resolved, Resolved::Done { resumed: true, run: step.run });
        assert_eq!(world.state(&sent).await, outcome.state());
        let again = one(world.claim(LEASE).await);
        assert_eq!((again.fence.step, again.attempt), (step.fence.step, step.attempt));

        let view = world.store.receipt(world.tenant, sent.id).await.expect("reads").expect("exists");
        let moves: Vec<_> = view
            .history
            .iter()
            .map(|entry| (entry.from, entry.to, entry.actor.as_str(), entry.evidence.as_str()))
            .collect();
        let (dispatched, unknown) = (ReceiptState::Dispatched, ReceiptState::Unknown);
        assert_eq!(
            moves,
            [
                (dispatched, unknown, "host", "the connection was reset"),
                (unknown, outcome.state(), "person:ada", "seen in the provider's own list"),
            ]
        );
        // What holds now is what was resolved, and when; not why nothing was known, and not as an answer of its own.
        let now_holds = (view.reason.as_deref(), view.answered_at, view.resolved_at);
        let told = (Some("seen in the provider's own list"), None, Some(view.history[1].at));
        assert_eq!(now_holds, told, "{outcome:?}");
        let filter = EffectFilter { state: Some(outcome.state()), run: Some(step.run) };
        let listed =
            world.store.effects(world.tenant, filter, Page { after: None, limit: 10 }).await.expect("reads");
        let listed = one(listed);
        assert_eq!((listed.reason.as_deref(), listed.answered_at, listed.resolved_at), told, "{outcome:?}");
        let timeline = world.timeline(step.run).await.expect("exists");
        let drawn = one(timeline.effects);
        assert_eq!((drawn.reason.as_deref(), drawn.answered_at, drawn.resolved_at), told, "{outcome:?}");
        assert_eq!(one(timeline.audit).action, "effect.resolve");
    }
}

/// Receipts that were resolved before had kept the old reason, and the resolution's time as their answer's.
#[tokio::test]
async fn what_was_resolved_before_shows_what_holds_now() {
    let world = World::new().await;
    let (_, unknown) = world.blocked().await;
    let (_, resolved) = world.blocked().await;
    world.resolve(&resolved, Outcome::Verified, false).await;
    let (_, late) = world.blocked().await;
    world.store.record_answer(&[commit(&late, ReceiptState::Unknown)]).await.expect("records");
    let now = world.dump().await;
    world
        .execute("UPDATE receipts SET reason = 'reset', answered_at = now() WHERE state = 'verified'")
        .await
        .expect("forgets");
    assert_ne!(world.dump().await, now);
    world
        .execute(include_str!("../../../../migrations/0027_resolved_receipts.sql"))
        .await
        .expect("puts it right");
    assert_eq!(world.dump().await, now);
    assert_eq!(world.state(&unknown).await, ReceiptState::Unknown);
}

#[tokio::test]
async fn only_what_is_unknown_can_be_resolved() {
    let world = World::new().await;
    let (_, dispatched) = world.dispatched().await;
    let (_, committed) = world.dispatched().await;
    world.store.record_answer(&[commit(&committed, ReceiptState::Dispatched)]).await.expect("records");
    let (_, rejected) = world.dispatched().await;
    world.store.record_answer(&[reject(&rejected, ReceiptState::Dispatched)]).await.expect("records");
    let (_, verified) = world.blocked().await;
    world.resolve(&verified, Outcome::Verified, true).await;
    one(world.claim(LEASE).await);
    let before = world.dump().await;
    for (receipt, state) in [
        (dispatched, ReceiptState::Dispatched),
        (committed, ReceiptState::Committed),
        (rejected, ReceiptState::Rejected),
        (verified, ReceiptState::Verified),
    ] {
        let resolved = world.resolve(&receipt, Outcome::Committed, true).await;
        assert_eq!(resolved, Resolved::Refused(Unresolvable::NotUnknown(state)));
    }
    assert_eq!(world.dump().await, before);

    // Absence cannot be known while the request may still arrive, by the database's clock.
    let (_, unknown) = world.blocked().await;
    let resolved = world.resolve(&unknown, Outcome::Abandoned, true).await;
    assert!(matches!(resolved, Resolved::Refused(Unresolvable::TooEarly(_))), "{resolved:?}");
}

#[tokio::test]
async fn a_person_may_resolve_now_and_resume_later() {
    let world = World::new().await;
    let (step, sent) = world.blocked().await;
    let resume = || async { world.store.resume(world.tenant, step.run, &person()).await.expect("answers") };
    assert_eq!(resume().await, Resumed::Done { resumed: 0, blocked: 1 });
    let resolved = world.resolve(&sent, Outcome::Committed, false).await;
    assert_eq!(resolved, Resolved::Done { resumed: false, run: step.run });
    assert_eq!(world.wait(&step).await.as_deref(), BLOCKED);
    assert_eq!(resume().await, Resumed::Done { resumed: 1, blocked: 0 });
    assert_eq!(world.wait(&step).await.as_deref(), READY);
}

#[tokio::test]
async fn a_step_goes_on_only_when_nothing_of_it_is_unknown() {
    let world = World::new().await;
    let step = world.step().await;
    let mut sent = vec![];
    for n in 0..3 {
        sent.push(world.send(&step, receipt(&step, n, Safety::AtMostOnce)).await);
    }
    world.store.block(&Blocking { lose: vec![lose(&sent[0])], ..blocking(&step) }).await.expect("blocks");
    // Those that nobody gave a reason for went with it.
    for receipt in &sent {
        assert_eq!(world.state(receipt).await, ReceiptState::Unknown);
    }
    world.resolve(&sent[0], Outcome::Committed, true).await;
    assert_eq!(world.wait(&step).await.as_deref(), BLOCKED);
    world.store.record_answer(&[reject(&sent[1], ReceiptState::Unknown)]).await.expect("records");
    assert_eq!(world.wait(&step).await.as_deref(), BLOCKED);
    world.resolve(&sent[2], Outcome::Verified, true).await;
    assert_eq!(world.wait(&step).await.as_deref(), READY);
}

#[tokio::test]
async fn a_late_answer_settles_its_receipt_and_lets_the_step_go_on() {
    let world = World::new().await;
    for late in [commit as fn(&Receipt, ReceiptState) -> Transition, reject] {
        let (step, sent) = world.blocked().await;
        // Whoever sent it saw it dispatched, learns where it stands, and says so again.
        let swap =
            world.store.record_answer(&[late(&sent, ReceiptState::Dispatched)]).await.expect("answers");
        assert_eq!(swap, Swap::Lost { found: Some(ReceiptState::Unknown) });
        assert_eq!(world.wait(&step).await.as_deref(), BLOCKED);
        let answer = late(&sent, ReceiptState::Unknown);
        let swap = world.store.record_answer(std::slice::from_ref(&answer)).await.expect("answers");
        assert_eq!(swap, Swap::Moved);
        assert_eq!(world.wait(&step).await.as_deref(), READY);
        let swap = world.store.record_answer(std::slice::from_ref(&answer)).await.expect("answers");
        assert_eq!(swap, Swap::Lost { found: Some(answer.to()) });
        one(world.claim(LEASE).await);
    }
    let (step, _) = world.dispatched().await;
    let nowhere = commit(&receipt(&step, 9, Safety::AtMostOnce), ReceiptState::Unknown);
    let swap = world.store.record_answer(&[nowhere]).await.expect("answers");
    assert_eq!(swap, Swap::Lost { found: None });
}

#[tokio::test]
async fn an_answer_speaks_for_the_other_receipts_of_its_slot() {
    let world = World::new().await;
    for (by_person, of_older) in [(false, false), (false, true), (true, false), (true, true)] {
        let (step, older, resend) = sent_again(&world).await;
        world.store.block(&blocking(&step)).await.expect("blocks");
        let (answered, other) = if of_older { (&older, &resend) } else { (&resend, &older) };
        if by_person {
            world.resolve(answered, Outcome::Committed, true).await;
        } else {
            // Whoever sent it need not know of the others.
            world.store.record_answer(&[commit(answered, ReceiptState::Unknown)]).await.expect("records");
        }
        assert_eq!(world.state(answered).await, ReceiptState::Committed);
        assert_eq!(world.state(other).await, ReceiptState::Verified, "by a person: {by_person}");
        assert_eq!(world.wait(&step).await.as_deref(), READY);
        one(world.claim(LEASE).await);
    }
}

/// What is under way again under the same key may still be answered: then it would stand as done, and was undone.
#[tokio::test]
async fn what_is_sent_again_is_not_undone_meanwhile() {
    let world = World::new().await;
    let (step, older, resend) = sent_again(&world).await;
    world.execute("UPDATE receipts SET absence_known_at = now()").await.expect("lets time pass");
    let before = world.dump().await;
    let refused = world.resolve(&older, Outcome::Compensated, true).await;
    assert_eq!(refused, Resolved::Refused(Unresolvable::UnderWay));
    assert_eq!(world.dump().await, before);
    world.store.block(&blocking(&step)).await.expect("blocks");
    world.resolve(&older, Outcome::Compensated, true).await;
    assert_eq!(world.state(&older).await, ReceiptState::Compensated);
    assert_eq!(
        world.state(&resend).await,
        ReceiptState::Compensated,
        "to its receiver it is the same effect"
    );
    assert_eq!(world.wait(&step).await.as_deref(), READY);
}

/// A step whose idempotent effect was sent, lost, and is under way again.
async fn sent_again(world: &World) -> (Claimed, Receipt, Receipt) {
    let step = world.step().await;
    let older = world.send(&step, numbered(&step, 0, 0, Safety::Idempotent)).await;
    let resend = numbered(&step, 0, 1, Safety::Idempotent);
    let expected = [(older.id, ReceiptState::Dispatched)];
    let lost = [lose(&older)];
    let dispatch = Dispatch { expected: &expected, lose: &lost, ..first(&step, &resend) };
    world.store.dispatch(&dispatch).await.expect("answers");
    (step, older, resend)
}

#[tokio::test]
async fn a_block_whose_cause_is_gone_is_none() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    let blocking = Blocking { writes: answer(&sent), ..blocking(&step) };
    assert_eq!(world.store.block(&blocking).await.expect("answers"), BlockVerdict::Resumed);
    let again = one(world.claim(LEASE).await);
    assert_eq!((again.fence.step, again.attempt, again.losses), (step.fence.step, 1, 0));
}

/// Of a block and what settles its cause, each may come first; in no order is a step left blocked on nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_and_its_end_never_miss_each_other() {
    let world = World::new().await;
    for round in 0..60 {
        let (step, sent) = world.dispatched().await;
        world.store.record_answer(&[lose(&sent)]).await.expect("records");
        let blocking = blocking(&step);
        let block = world.store.block(&blocking);
        let verdict = match round % 3 {
            0 => tokio::join!(block, late_answer(&world, &sent)).0,
            1 => tokio::join!(block, resolved(&world, &sent)).0,
            _ => tokio::join!(resumed(&world, &step, &sent), block).1,
        };
        assert!(
            matches!(verdict, Ok(BlockVerdict::Blocked | BlockVerdict::Resumed)),
            "round {round}: {verdict:?}"
        );
        assert_eq!(world.state(&sent).await, ReceiptState::Committed);
        assert_eq!(world.wait(&step).await.as_deref(), READY, "round {round}");
        one(world.claim(LEASE).await);
    }
}

async fn late_answer(world: &World, sent: &Receipt) {
    world.store.record_answer(&[commit(sent, ReceiptState::Unknown)]).await.expect("records");
}

async fn resolved(world: &World, sent: &Receipt) {
    world.resolve(sent, Outcome::Committed, true).await;
}

async fn resumed(world: &World, step: &Claimed, sent: &Receipt) {
    world.resolve(sent, Outcome::Committed, false).await;
    // Whoever declined to resume does so afterwards; a block that comes later has nothing to wait for.
    world.until(&format!("SELECT lease_id IS NULL FROM open_steps WHERE id = '{}'", step.fence.step.0)).await;
    world.store.resume(world.tenant, step.run, &person()).await.expect("answers");
}
