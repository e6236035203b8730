use std::fmt::Write as _;

use chrono::DateTime;
use uuid::Uuid;

use super::*;
use crate::effect::{Answer, EffectFailure, HttpResponse};
use crate::id::{LineageId, Place, RunId, StepId, TenantId};
use crate::receipt::RequestFacts;

const RUN: RunId = RunId(Uuid::from_u128(3));
const OURS: LeaseId = LeaseId(Uuid::from_u128(100));
const THEIRS: LeaseId = LeaseId(Uuid::from_u128(200));

fn answer() -> Recorded {
    Recorded::Answer(Answer::Emitted)
}

fn refusal() -> Recorded {
    let response = HttpResponse { status: 402, headers: vec![], body: vec![], truncated: false };
    Recorded::Failure(EffectFailure::Rejected(response))
}

fn unknown() -> Standing {
    let epoch = DateTime::UNIX_EPOCH;
    Standing::Unknown { reason: "reset".into(), dispatched_at: epoch, absence_known_at: epoch }
}

fn dispatched(lease: LeaseId) -> Standing {
    Standing::Dispatched { lease, at: DateTime::UNIX_EPOCH }
}

fn receipt(
    label: &str,
    position: u32,
    dispatch_number: u64,
    attempt: u32,
    safety: Safety,
    standing: Standing,
) -> Receipt {
    let id = u128::from(position) * 1_000 + u128::from(dispatch_number);
    Receipt {
        id: EffectId(Uuid::from_u128(id)),
        tenant: TenantId(Uuid::from_u128(1)),
        run: RUN,
        step: StepId(Uuid::from_u128(2)),
        place: Place { lineage: LineageId(Uuid::from_u128(3)), node: "n".into(), iteration: vec![] },
        slot: SlotKey::Label(label.into()),
        dispatch_number,
        position,
        attempt,
        request: RequestFacts {
            kind: "http".into(),
            safety,
            connection: None,
            destination: [0; 32],
            request_hash: [7; 32],
            content_key: [0; 16],
            idempotency_key: "k".into(),
            preview: serde_json::Value::Null,
        },
        standing,
    }
}

fn say(decision: &Decision) -> String {
    match decision {
        Decision::Dispatch { dispatch_number, lost, resend } => {
            let mut text = format!("dispatch {dispatch_number}");
            if *resend {
                text.push_str(" under the same key");
            }
            if !lost.is_empty() {
                text.push_str(", losing the old one");
            }
            text
        }
        Decision::HandOver(Recorded::Answer(_)) => "hand over the answer".into(),
        Decision::HandOver(Recorded::Failure(_)) => "hand over the refusal".into(),
        Decision::GoOn(_) => "go on".into(),
        Decision::Block { lost } if lost.is_empty() => "block".into(),
        Decision::Block { .. } => "lose and block".into(),
        Decision::Diverged(_) => "diverged".into(),
    }
}

fn decide(receipts: Vec<Receipt>, label: &str, safety: Safety, attempt: u32, begun: bool) -> String {
    let slot = SlotKey::Label(label.into());
    let call = Call { slot: &slot, safety, request_hash: &[7; 32] };
    let asker = Asker { lease: OURS, attempt, run: RUN };
    say(&Journal::new(receipts).decide(call, asker, |_| begun))
}

/// Every row of the journal's table, by both safeties.
#[test]
fn one_deciding_receipt_decides_as_the_table_says() {
    let rows = [
        ("none", None),
        ("committed", Some(Standing::Committed(answer()))),
        ("verified", Some(Standing::Verified(answer()))),
        ("rejected", Some(Standing::Rejected(refusal()))),
        ("abandoned", Some(Standing::Abandoned)),
        ("compensated", Some(Standing::Compensated)),
        ("planned", Some(Standing::Planned)),
        ("prepared", Some(Standing::Prepared)),
        ("dispatched, another lease", Some(dispatched(THEIRS))),
        ("dispatched, own lease, not begun", Some(dispatched(OURS))),
        ("unknown", Some(unknown())),
    ];
    let mut table = String::new();
    for (name, standing) in rows {
        let decide = |safety| {
            let receipts = standing.clone().map(|standing| receipt("a", 0, 0, 1, safety, standing));
            decide(receipts.into_iter().collect(), "a", safety, 1, false)
        };
        let (at_most_once, idempotent) = (decide(Safety::AtMostOnce), decide(Safety::Idempotent));
        writeln!(table, "{name}: {at_most_once} | {idempotent}").expect("a string takes it");
    }
    let begun = decide(
        vec![receipt("a", 0, 0, 1, Safety::AtMostOnce, dispatched(OURS))],
        "a",
        Safety::AtMostOnce,
        1,
        true,
    );
    writeln!(table, "dispatched, own lease, begun: {begun}").expect("a string takes it");
    insta::assert_snapshot!(table, @r"
    none: dispatch 0 | dispatch 0
    committed: hand over the answer | hand over the answer
    verified: hand over the answer | hand over the answer
    rejected: hand over the refusal | hand over the refusal
    abandoned: dispatch 1 | dispatch 1
    compensated: dispatch 1 | dispatch 1
    planned: go on | go on
    prepared: go on | go on
    dispatched, another lease: lose and block | dispatch 1 under the same key, losing the old one
    dispatched, own lease, not begun: go on | go on
    unknown: block | dispatch 1 under the same key
    dispatched, own lease, begun: diverged
    ");
}

/// A charge is refused, then a fallback is charged; a later call fails, and a new attempt begins.
#[test]
fn a_new_attempt_hears_its_history_and_forgets_its_tail() {
    let receipts = || {
        vec![
            receipt("look", 0, 0, 1, Safety::ReadOnly, Standing::Committed(answer())),
            receipt("first-card", 1, 0, 1, Safety::AtMostOnce, Standing::Rejected(refusal())),
            receipt("second-card", 2, 0, 1, Safety::AtMostOnce, Standing::Committed(answer())),
            receipt("look-again", 3, 0, 1, Safety::ReadOnly, Standing::Committed(answer())),
            receipt("notify", 4, 0, 1, Safety::AtMostOnce, Standing::Rejected(refusal())),
        ]
    };
    let cases = [
        ("look", Safety::ReadOnly, "hand over the answer", "hand over the answer"),
        ("first-card", Safety::AtMostOnce, "hand over the refusal", "hand over the refusal"),
        ("second-card", Safety::AtMostOnce, "hand over the answer", "hand over the answer"),
        ("look-again", Safety::ReadOnly, "hand over the answer", "dispatch 1"),
        ("notify", Safety::AtMostOnce, "hand over the refusal", "dispatch 1"),
    ];
    for (label, safety, same_attempt, next_attempt) in cases {
        assert_eq!(decide(receipts(), label, safety, 1, false), same_attempt, "{label}, same attempt");
        assert_eq!(decide(receipts(), label, safety, 2, false), next_attempt, "{label}, next attempt");
    }
}

#[test]
fn a_refused_resend_says_nothing_while_an_older_dispatch_is_unknown() {
    let receipts = |older: Standing| {
        vec![
            receipt("a", 0, 0, 1, Safety::Idempotent, older),
            receipt("a", 0, 1, 1, Safety::Idempotent, Standing::Rejected(refusal())),
        ]
    };
    let decide = |older| decide(receipts(older), "a", Safety::Idempotent, 1, false);
    assert_eq!(decide(unknown()), "dispatch 2 under the same key");
    assert_eq!(decide(Standing::Abandoned), "hand over the refusal");
    assert_eq!(decide(Standing::Verified(answer())), "hand over the answer");
}

#[test]
fn the_newest_dispatch_says_nothing_of_an_older_one_that_is_unknown() {
    for newest in [Standing::Abandoned, Standing::Compensated] {
        for (safety, expected) in
            [(Safety::AtMostOnce, "block"), (Safety::Idempotent, "dispatch 2 under the same key")]
        {
            let receipts =
                vec![receipt("a", 0, 0, 1, safety, unknown()), receipt("a", 0, 1, 1, safety, newest.clone())];
            assert_eq!(decide(receipts, "a", safety, 1, false), expected, "{newest:?} {safety:?}");
        }
    }
}

#[test]
fn a_slot_keeps_its_key_until_its_effect_is_undone() {
    let rejected = || Standing::Rejected(refusal());
    let cases = [
        (vec![], "own"),
        (vec![("k", unknown())], "k"),
        (vec![("k", Standing::Abandoned), ("k", unknown())], "k"),
        (vec![("k", Standing::Compensated)], "next"),
        (vec![("k", Standing::Compensated), ("k", rejected())], "next"),
        (vec![("k", rejected()), ("k", Standing::Compensated)], "next"),
        (vec![("k", Standing::Compensated), ("l", unknown())], "l"),
        (vec![("k", Standing::Compensated), ("l", Standing::Compensated)], "next"),
    ];
    let next = EffectId(Uuid::from_u128(9));
    for (receipts, expected) in cases {
        let dispatches = (0..).zip(&receipts).map(|(number, (key, standing))| {
            let mut receipt = receipt("a", 0, number, 1, Safety::Idempotent, standing.clone());
            receipt.request.idempotency_key = (*key).into();
            receipt
        });
        let key = Journal::new(dispatches.collect()).key(&SlotKey::Label("a".into()), next, "own");
        let expected = if expected == "next" { next.to_string() } else { expected.to_owned() };
        assert_eq!(key, expected, "{receipts:?}");
    }
}

#[test]
fn a_call_that_differs_from_what_may_have_happened_diverges() {
    let standings = [
        (dispatched(THEIRS), true),
        (unknown(), true),
        (Standing::Committed(answer()), true),
        (Standing::Verified(answer()), true),
        (Standing::Rejected(refusal()), false),
        (Standing::Abandoned, false),
        (Standing::Compensated, false),
    ];
    let slot = SlotKey::Label("a".into());
    let asker = Asker { lease: OURS, attempt: 1, run: RUN };
    for (standing, binds) in standings {
        let journal = Journal::new(vec![receipt("a", 0, 0, 1, Safety::AtMostOnce, standing.clone())]);
        for (safety, request_hash) in [(Safety::AtMostOnce, [8; 32]), (Safety::Idempotent, [7; 32])] {
            let call = Call { slot: &slot, safety, request_hash: &request_hash };
            let decision = journal.decide(call, asker, |_| false);
            assert_eq!(matches!(decision, Decision::Diverged(_)), binds, "{standing:?} {safety:?}");
        }
    }
}

#[test]
fn a_read_that_was_made_anew_is_answered_as_it_was_heard_last() {
    let (read, act) = (Safety::ReadOnly, Safety::AtMostOnce);
    let heard = |standing| {
        vec![
            receipt("look", 0, 0, 1, read, Standing::Committed(answer())),
            receipt("look", 0, 1, 2, read, standing),
            // What followed from the second look must not be contradicted by the first.
            receipt("act", 1, 0, 2, act, Standing::Committed(answer())),
        ]
    };
    for attempt in [2, 3] {
        assert_eq!(
            decide(heard(Standing::Rejected(refusal())), "look", read, attempt, false),
            "hand over the refusal"
        );
        assert_eq!(
            decide(heard(Standing::Committed(answer())), "look", read, attempt, false),
            "hand over the answer"
        );
    }
}
