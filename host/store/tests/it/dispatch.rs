//! What may be sent: once a slot, once a guarded content, and only by the owner.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::resolution::Outcome;
use counterfoil_domain::receipt::{Actor, Receipt, ReceiptState, Standing};
use counterfoil_store::StoreError;
use counterfoil_store::connection::{NewConnection, SecretChanges};
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::settle::OwnWrite;
use counterfoil_store::step::Claimed;
use serde_json::json;

use crate::world::{LEASE, World, accepted, answer, commit, first, lose, numbered, one, receipt, reject};

#[tokio::test(flavor = "multi_thread")]
async fn of_two_dispatches_of_one_receipt_one_is_sent() {
    let world = World::new().await;
    for round in 0..20 {
        let step = world.step().await;
        let receipt = receipt(&step, 0, Safety::AtMostOnce);
        let dispatch = first(&step, &receipt);
        let (one, other) = tokio::join!(world.store.dispatch(&dispatch), world.store.dispatch(&dispatch));
        let mut verdicts = [one.expect("answers"), other.expect("answers")];
        verdicts.sort_by_key(|verdict| *verdict == DispatchVerdict::Moved);
        assert!(
            matches!(verdicts, [DispatchVerdict::Dispatched { .. }, DispatchVerdict::Moved]),
            "round {round}: {verdicts:?}"
        );
    }
}

#[tokio::test]
async fn nothing_is_sent_by_a_connection_that_has_changed_since() {
    let world = World::new().await;
    let connection = NewConnection {
        name: "c".into(),
        base_url: "https://example.com".into(),
        allowed_hosts: vec![],
        abilities: json!({}),
        rate: None,
        in_flight_max: None,
        secrets: SecretChanges::default(),
    };
    let mut set_at = vec![];
    for _ in 0..2 {
        world.store.set_connection(world.tenant, &connection, &Actor::Host).await.expect("sets");
        let set = world.store.connection(world.tenant, "c").await.expect("reads").expect("is there");
        set_at.push(set.updated_at);
    }
    assert!(set_at[0] < set_at[1], "{set_at:?}");
    for (name, judged_by, is_sent) in
        [("c", set_at[1], true), ("c", set_at[0], false), ("gone", set_at[1], false)]
    {
        let step = world.step().await;
        let mut receipt = receipt(&step, 0, Safety::AtMostOnce);
        receipt.request.connection = Some(name.into());
        let dispatch = Dispatch { connection_set_at: Some(judged_by), ..first(&step, &receipt) };
        match world.store.dispatch(&dispatch).await.expect("answers") {
            DispatchVerdict::Dispatched { .. } => assert!(is_sent, "{name} {judged_by}"),
            verdict => assert_eq!((verdict, is_sent), (DispatchVerdict::ConnectionChanged, false), "{name}"),
        }
    }
}

/// A settle looks for open receipts once: a dispatch that comes after it must find the step gone.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_for_a_step_that_is_being_settled() {
    let world = World::new().await;
    let (step, older) = world.dispatched().await;
    for expected in [vec![], vec![(older.id, ReceiptState::Dispatched)]] {
        let mut settle = world.pool.begin().await.expect("begins");
        let gone = "UPDATE open_steps SET lease_id = gen_random_uuid()";
        sqlx::query(gone).execute(&mut *settle).await.expect("takes the lease away");
        let (store, fence) = (world.store.clone(), step.fence);
        let next = numbered(&step, 0, u64::from(!expected.is_empty()), Safety::AtMostOnce);
        let dispatch = tokio::spawn(async move {
            let dispatch = Dispatch {
                fence: &fence,
                receipt: &next,
                expected: &expected,
                lose: &[],
                guard: None,
                connection_set_at: None,
                absence_known_after: std::time::Duration::ZERO,
                writes: &[],
            };
            store.dispatch(&dispatch).await
        });
        world.until_somebody_waits().await;
        settle.commit().await.expect("commits");
        let verdict = dispatch.await.expect("runs").expect("answers");
        assert_eq!(verdict, DispatchVerdict::Stale);
        sqlx::query("UPDATE open_steps SET lease_id = $1")
            .bind(step.fence.lease.0)
            .execute(&world.pool)
            .await
            .expect("gives it back");
    }
}

fn guarded<'a>(step: &'a Claimed, receipt: &'a Receipt) -> Dispatch<'a> {
    Dispatch { guard: Some("one-charge"), ..first(step, receipt) }
}

fn with_content(mut receipt: Receipt, content: u8) -> Receipt {
    receipt.request.content_key = [content; 16];
    receipt
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_contenders_for_guarded_content_one_sends_and_the_others_learn_who() {
    let world = World::new().await;
    for round in 0..10_u8 {
        let nodes = ["a", "b", "c", "d", "e", "f"];
        world.start(&nodes).await;
        let steps = world.claim(LEASE).await;
        let receipts: Vec<Receipt> =
            steps.iter().map(|step| with_content(receipt(step, 0, Safety::AtMostOnce), round)).collect();
        let mut contenders = tokio::task::JoinSet::new();
        for (step, receipt) in steps.into_iter().zip(receipts) {
            let store = world.store.clone();
            contenders.spawn(async move { (receipt.id, store.dispatch(&guarded(&step, &receipt)).await) });
        }
        let mut sent = vec![];
        let mut told = vec![];
        for (id, verdict) in contenders.join_all().await {
            match verdict.expect("answers") {
                DispatchVerdict::Dispatched { .. } => sent.push(id),
                DispatchVerdict::Duplicate { held_by } => told.push(held_by),
                other => panic!("round {round}: {other:?}"),
            }
        }
        let winner = one(sent);
        assert_eq!(told, vec![winner; nodes.len() - 1], "round {round}");
        let evidence = format!("SELECT count(*) FROM invariant_results WHERE held_by = '{}'", winner.0);
        assert_eq!(world.number(&evidence).await, 5);
    }
}

#[tokio::test]
async fn content_may_be_sent_again_once_it_is_known_not_to_have_happened() {
    let world = World::new().await;
    let states = ["dispatched", "committed", "unknown", "verified", "rejected", "abandoned", "compensated"];
    for (n, state) in states.into_iter().enumerate() {
        let content = u8::try_from(n).expect("few");
        let step = world.step().await;
        let receipt_of_first = with_content(receipt(&step, 0, Safety::AtMostOnce), content);
        let sent = world.store.dispatch(&guarded(&step, &receipt_of_first)).await.expect("answers");
        assert!(matches!(sent, DispatchVerdict::Dispatched { .. }), "{sent:?}");
        bring_to(&world, &receipt_of_first, state).await;

        let other = world.step().await;
        let next = with_content(receipt(&other, 0, Safety::AtMostOnce), content);
        let verdict = world.store.dispatch(&guarded(&other, &next)).await.expect("answers");
        match state {
            "rejected" | "abandoned" | "compensated" => {
                assert!(matches!(verdict, DispatchVerdict::Dispatched { .. }), "{state}: {verdict:?}");
            }
            _ => assert_eq!(verdict, DispatchVerdict::Duplicate { held_by: receipt_of_first.id }, "{state}"),
        }
        // Without an invariant nobody asks.
        let third = world.step().await;
        let free = with_content(receipt(&third, 0, Safety::AtMostOnce), content);
        world.send(&third, free).await;
    }
}

async fn bring_to(world: &World, receipt: &Receipt, state: &str) {
    let transition = match state {
        "dispatched" => return,
        "committed" => commit(receipt, ReceiptState::Dispatched),
        "rejected" => reject(receipt, ReceiptState::Dispatched),
        _ => lose(receipt),
    };
    world.store.record_answer(&[transition]).await.expect("records");
    let outcome = match state {
        "verified" => Outcome::Verified,
        "abandoned" => Outcome::Abandoned,
        "compensated" => Outcome::Compensated,
        _ => return,
    };
    // Until then the request may still arrive.
    world.execute("UPDATE receipts SET absence_known_at = now()").await.expect("waits");
    world.resolve(receipt, outcome, true).await;
    assert_eq!(world.state(receipt).await.name(), state);
}

/// A re-send goes under the first one's guard, and nobody else gets in while either may have happened.
#[tokio::test]
async fn a_resend_does_not_stand_in_its_own_way() {
    let world = World::new().await;
    let step = world.step().await;
    let older = with_content(numbered(&step, 0, 0, Safety::Idempotent), 9);
    world.store.dispatch(&guarded(&step, &older)).await.expect("answers");
    let resend = with_content(numbered(&step, 0, 1, Safety::Idempotent), 9);
    let expected = [(older.id, ReceiptState::Dispatched)];
    let lost = [lose(&older)];
    let dispatch = Dispatch { expected: &expected, lose: &lost, ..guarded(&step, &resend) };
    let sent = world.store.dispatch(&dispatch).await.expect("answers");
    assert!(matches!(sent, DispatchVerdict::Dispatched { .. }), "{sent:?}");
    assert_eq!(world.state(&older).await, ReceiptState::Unknown);

    let other = world.step().await;
    let contender = with_content(receipt(&other, 0, Safety::AtMostOnce), 9);
    let held = DispatchVerdict::Duplicate { held_by: older.id };
    assert_eq!(world.store.dispatch(&guarded(&other, &contender)).await.expect("answers"), held);

    // Known not to have happened, and yet the older one may have.
    world.store.record_answer(&[reject(&resend, ReceiptState::Dispatched)]).await.expect("records");
    assert_eq!(world.store.dispatch(&guarded(&other, &contender)).await.expect("answers"), held);
    world.store.record_answer(&[reject(&older, ReceiptState::Unknown)]).await.expect("records");
    let sent = world.store.dispatch(&guarded(&other, &contender)).await.expect("answers");
    assert!(matches!(sent, DispatchVerdict::Dispatched { .. }), "{sent:?}");
}

#[tokio::test]
async fn a_slot_that_is_not_as_expected_is_left_alone() {
    let world = World::new().await;
    let (step, older) = world.dispatched().await;
    let next = numbered(&step, 0, 1, Safety::AtMostOnce);
    let lost = [lose(&older)];
    let stranger = receipt(&step, 7, Safety::AtMostOnce);
    let before = world.dump().await;
    for expected in [
        vec![],
        vec![(older.id, ReceiptState::Abandoned)],
        vec![(stranger.id, ReceiptState::Dispatched)],
        vec![(older.id, ReceiptState::Dispatched), (stranger.id, ReceiptState::Rejected)],
    ] {
        let dispatch = Dispatch { expected: &expected, lose: &lost, ..first(&step, &next) };
        let verdict = world.store.dispatch(&dispatch).await.expect("answers");
        assert_eq!(verdict, DispatchVerdict::Moved, "{expected:?}");
        assert_eq!(world.dump().await, before, "{expected:?}");
    }
    // The slot moved after the decision: its answer came late.
    world.store.record_answer(&[commit(&older, ReceiptState::Dispatched)]).await.expect("records");
    let before = world.dump().await;
    let expected = [(older.id, ReceiptState::Dispatched)];
    let dispatch = Dispatch { expected: &expected, lose: &lost, ..first(&step, &next) };
    assert_eq!(world.store.dispatch(&dispatch).await.expect("answers"), DispatchVerdict::Moved);
    assert_eq!(world.dump().await, before);
}

#[tokio::test]
async fn earlier_answers_are_durable_before_the_next_effect_leaves() {
    let world = World::new().await;
    let (step, charged) = world.dispatched().await;
    let mut looked_up = receipt(&step, 1, Safety::ReadOnly);
    looked_up.standing = Standing::Committed(accepted());
    let mut writes = answer(&charged);
    writes.push(OwnWrite::ReadOnly(looked_up.clone()));
    let next = receipt(&step, 2, Safety::AtMostOnce);
    let dispatch = Dispatch { writes: &writes, ..first(&step, &next) };
    let verdict = world.store.dispatch(&dispatch).await.expect("answers");
    assert!(matches!(verdict, DispatchVerdict::Dispatched { .. }), "{verdict:?}");

    let mut journal = world.store.journal(world.tenant, &step.place).await.expect("reads");
    journal.sort_by_key(|receipt| receipt.position);
    let states: Vec<_> = journal.iter().map(|receipt| receipt.standing.state()).collect();
    assert_eq!(states, [ReceiptState::Committed, ReceiptState::Committed, ReceiptState::Dispatched]);
    assert_eq!(journal[1], looked_up);

    // Written by an execution that this one does not know of: whatever followed from it must be done again.
    let before = world.dump().await;
    let writes = [OwnWrite::ReadOnly(looked_up)];
    let after = receipt(&step, 3, Safety::AtMostOnce);
    let dispatch = Dispatch { writes: &writes, ..first(&step, &after) };
    assert_eq!(world.store.dispatch(&dispatch).await.expect("answers"), DispatchVerdict::Rerun);
    assert_eq!(world.dump().await, before);
}

#[tokio::test]
async fn what_is_recorded_is_what_is_read() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    let journal = world.store.journal(world.tenant, &step.place).await.expect("reads");
    assert_eq!(journal, std::slice::from_ref(&sent));
    world.store.record_answer(&[commit(&sent, ReceiptState::Dispatched)]).await.expect("records");
    let answered = Receipt { standing: Standing::Committed(accepted()), ..sent.clone() };
    let view = world.store.receipt(world.tenant, sent.id).await.expect("reads").expect("exists");
    assert_eq!(view.receipt, answered);
    assert_eq!(
        (view.provider_receipt_id.as_deref(), view.reason.as_deref(), view.workflow.as_str(), view.history),
        (Some("ch_1"), Some("status 201 means applied"), "flow", vec![])
    );
    let (dispatched, answered) = (view.dispatched_at.expect("sent"), view.answered_at.expect("answered"));
    assert!(view.prepared_at <= dispatched && dispatched <= answered);
    assert_eq!(view.absence_known_at.expect("known") - dispatched, chrono::TimeDelta::seconds(60));
}

#[tokio::test]
async fn an_id_that_names_something_else_is_an_error() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    let mut other = receipt(&step, 5, Safety::AtMostOnce);
    other.id = sent.id;
    let verdict = world.store.dispatch(&first(&step, &other)).await;
    assert!(matches!(verdict, Err(StoreError::IdentityMismatch { what: "slot", .. })), "{verdict:?}");
}
