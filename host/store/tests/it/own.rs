//! What a step does to our own database commits with its end, or not at all.

use std::time::Duration;

use counterfoil_domain::effect::{Answer, Safety};
use counterfoil_domain::id::EventId;
use counterfoil_domain::receipt::{ReceiptState, Recorded, RequestFacts, Standing};
use counterfoil_store::settle::{Change, OwnEffect, SettleVerdict, SettledState, Settlement};
use counterfoil_store::step::{Claimed, Fence};
use serde_json::{Value, json};

use crate::world::{LEASE, World, one, receipt, settled, settlement};

/// The effect in a slot of a step.
fn effect(step: &Claimed, ordinal: u64, change: Change) -> OwnEffect {
    let (kind, answer) = match &change {
        Change::Emit { .. } => ("emit", Answer::Emitted),
        Change::Put { .. } | Change::Delete { .. } => ("storage", Answer::Stored(None)),
    };
    let mut receipt = receipt(step, ordinal, Safety::AtMostOnce);
    receipt.request = RequestFacts { kind: kind.into(), connection: None, ..receipt.request };
    receipt.standing = Standing::Committed(Recorded::Answer(answer));
    OwnEffect { receipt, change }
}

fn emit(data: Value) -> Change {
    Change::Emit { event_type: "order.booked".into(), record: Some("o-1".into()), data }
}

fn put(key: &str, value: &str) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

fn delete(key: &str) -> Change {
    Change::Delete { key: key.into() }
}

/// In this order, whatever the order of calls.
fn effects(step: &Claimed, changes: impl IntoIterator<Item = Change>) -> Vec<OwnEffect> {
    (0..).zip(changes).map(|(ordinal, change)| effect(step, ordinal, change)).collect()
}

impl World {
    async fn value(&self, key: &str) -> Option<String> {
        let value = self.store.stored_value(self.tenant, key).await.expect("reads");
        value.map(|value| String::from_utf8(value).expect("text"))
    }
}

#[tokio::test]
async fn a_step_that_succeeds_leaves_its_events_and_its_last_values() {
    let world = World::new().await;
    let step = world.step().await;
    let mut wakes = world.store.wakes();
    let own = effects(
        &step,
        [
            put("b", "old"),
            emit(json!({ "z": 1, "a": -0.0 })),
            put("a", "1"),
            put("b", "2"),
            emit(json!(2)),
            delete("a"),
        ],
    );
    let verdict = world.store.settle(&Settlement { own: own.clone(), ..settlement(&step) }).await;
    assert_eq!(verdict.expect("settles"), SettleVerdict::Settled { next: None });
    assert_eq!((world.value("a").await, world.value("b").await), (None, Some("2".into())));
    let by_last = format!("SELECT count(*) FROM stored_values WHERE effect_id = '{}'", own[3].receipt.id.0);
    assert_eq!(world.number(&by_last).await, 1);
    for own in &own {
        assert_eq!(world.state(&own.receipt).await, ReceiptState::Committed);
    }

    // A publisher is told, and finds them in the order in which they were emitted, each under its receipt's id.
    tokio::time::timeout(Duration::from_secs(10), wakes.changed()).await.expect("a wake-up");
    let held = world.store.hold_events(10, LEASE, None).await.expect("holds");
    let found: Vec<_> = held.into_iter().map(|event| (event.id, event.record, event.data)).collect();
    let event = |n: usize, data| (EventId(own[n].receipt.id.0), Some("o-1".to_owned()), Ok(data));
    assert_eq!(found, [event(1, json!({ "z": 1, "a": -0.0 })), event(4, json!(2))]);
}

#[tokio::test]
async fn what_settles_nothing_changes_nothing() {
    let world = World::new().await;
    let changes = || [emit(json!(1)), put("a", "1")];

    // The lease is another's.
    let step = world.step().await;
    let lease = world.step().await.fence.lease;
    let stale = Claimed { fence: Fence { lease, ..step.fence }, ..step.clone() };
    let before = world.dump().await;
    let lost =
        world.store.settle(&Settlement { own: effects(&stale, changes()), ..settlement(&stale) }).await;
    assert_eq!(lost.expect("answers"), SettleVerdict::Lost);
    assert_eq!(world.dump().await, before);

    // An effect of the step has no answer.
    let (unanswered, sent) = world.dispatched().await;
    let own = vec![effect(&unanswered, 1, emit(json!(1)))];
    let before = world.dump().await;
    let verdict = world.store.settle(&Settlement { own, ..settlement(&unanswered) }).await;
    assert_eq!(verdict.expect("answers"), SettleVerdict::Unanswered, "{}", sent.id);
    assert_eq!(world.dump().await, before);

    // One of the values cannot be stored: the others are not stored either, and the step can still end.
    let own = effects(&step, [emit(json!(1)), put("a", "1"), put("", "1")]);
    let before = world.dump().await;
    let refused =
        world.store.settle(&Settlement { own, ..settlement(&step) }).await.expect_err("no such key");
    assert!(!refused.is_transient(), "{refused}");
    assert_eq!(world.dump().await, before);

    // It did not succeed.
    let failed = Settlement {
        settled: settled(step.run, &step.place.node, SettledState::Failed),
        own: effects(&step, changes()),
        ..settlement(&step)
    };
    assert!(!world.store.settle(&failed).await.expect_err("unstorable").is_transient());
    assert_eq!(world.dump().await, before);
    let failed = world.store.settle(&Settlement { own: vec![], ..failed }).await.expect("settles");
    assert_eq!(failed, SettleVerdict::Settled { next: None });
    assert_eq!((world.value("a").await, world.number("SELECT count(*) FROM events").await), (None, 0));
}

/// What has been done under a receipt is not done under it again.
#[tokio::test]
async fn a_receipt_that_exists_sends_the_step_back_to_its_journal() {
    let world = World::new().await;
    let step = world.step().await;
    let own = effects(&step, [emit(json!(1)), put("a", "1")]);
    world.store.settle(&Settlement { own: own.clone(), ..settlement(&step) }).await.expect("settles");
    world.execute("UPDATE stored_values SET value = 'later'").await.expect("writes");

    world.start(&["a"]).await;
    let again = one(world.claim(LEASE).await);
    let before = world.dump().await;
    let verdict = world.store.settle(&Settlement { own, ..settlement(&again) }).await;
    assert_eq!(verdict.expect("answers"), SettleVerdict::Rerun);
    assert_eq!(world.dump().await, before);
}

/// Two steps that write the same keys crosswise both succeed; the last one to settle wins.
#[tokio::test]
async fn steps_that_write_the_same_keys_do_not_wait_for_each_other_in_a_circle() {
    let world = World::new().await;
    for round in 0..20 {
        world.start(&["one", "two"]).await;
        let steps = world.claim(LEASE).await;
        let keys = ["a", "b", "c", "d"];
        let writes = |step: &Claimed, backwards: bool| {
            let mut changes: Vec<Change> = keys.iter().map(|key| put(key, &step.place.node)).collect();
            if round % 2 == 0 {
                changes.push(delete("c"));
            }
            if backwards {
                changes.reverse();
            }
            Settlement { own: effects(step, changes), ..settlement(step) }
        };
        let (one, two) = (writes(&steps[0], false), writes(&steps[1], true));
        let other = world.other_store().await;
        let (one, two) = tokio::join!(world.store.settle(&one), other.settle(&two));
        for verdict in [one, two] {
            assert_eq!(verdict.expect("settles"), SettleVerdict::Settled { next: None }, "round {round}");
        }
        let winners =
            "SELECT count(DISTINCT convert_from(value, 'UTF8')) FROM stored_values WHERE key <> 'c'";
        assert_eq!(world.number(winners).await, 1, "round {round}: the last one wins whole");
    }
}
