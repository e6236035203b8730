//! Whose blocks are asked what became of their effects, when, and by which host.

use std::time::Duration;

use counterfoil_domain::effect::Safety;
use counterfoil_domain::id::{Digest, EffectId};
use counterfoil_domain::receipt::resolution::{Outcome, Unresolvable, resolve};
use counterfoil_domain::receipt::verification::Next;
use counterfoil_domain::receipt::{Actor, Move, Receipt, ReceiptState, Transition};
use counterfoil_store::block::NewBlock;
use counterfoil_store::receipt::{Dispatch, Resolved};
use counterfoil_store::settle::{Blocking, NewStep, RetryLater, RunEndState, SettledState, Settlement};
use counterfoil_store::step::Claimed;
use counterfoil_store::verification::{AskRequest, HeldVerification, Verification};
use serde_json::json;

use crate::world::{
    LEASE, World, accepted, blocking, commit, first, lose, numbered, one, person, receipt, reject,
    resolution, retry, run_end, settlement,
};

const HOLD: Duration = Duration::from_mins(1);

fn request() -> AskRequest {
    AskRequest { hold: HOLD, room: 10, per_tenant_max: 10, without: vec![] }
}

impl World {
    /// Keeps a block, and says what it is called by.
    async fn keep(&self, name: &str, verifies: bool) -> Digest {
        let (digest, descriptor) = (Digest::of(name.as_bytes()), &json!({}));
        let bytes = name.as_bytes();
        let block = NewBlock { name, digest, bytes, descriptor, imports: &[], verifies };
        self.store.put_block(self.tenant, &block).await.expect("keeps");
        digest
    }

    /// A claimed step of this block.
    async fn step_of(&self, block: Option<Digest>) -> Claimed {
        let mut admission = self.admission(&["a"]);
        admission.open = admission.open.into_iter().map(|step| NewStep { block, ..step }).collect();
        self.store.admit(&admission).await.expect("admits");
        one(self.claim(LEASE).await)
    }

    async fn sent_by(&self, block: Digest, safety: Safety) -> (Claimed, Receipt) {
        let step = self.step_of(Some(block)).await;
        let receipt = receipt(&step, 0, safety);
        let receipt = self.send(&step, receipt).await;
        (step, receipt)
    }

    /// A step that is blocked on its one receipt, about which its block is to be asked.
    async fn asked_about(&self) -> (Claimed, Receipt) {
        let block = self.keep("asks", true).await;
        let (step, receipt) = self.sent_by(block, Safety::AtMostOnce).await;
        let lose = vec![lose(&receipt)];
        self.store.block(&Blocking { lose, ..blocking(&step) }).await.expect("blocks");
        (step, receipt)
    }

    async fn make_due(&self) {
        self.execute("UPDATE verifications SET due_at = now() - interval '1 second'").await.expect("moves");
    }

    async fn hold_due(&self, request: &AskRequest) -> Vec<HeldVerification> {
        self.store.hold_verifications(request).await.expect("holds")
    }

    async fn verification(&self, receipt: &Receipt) -> Option<Verification> {
        self.store.receipt(self.tenant, receipt.id).await.expect("reads").expect("exists").verification
    }
}

/// Every way in which a receipt becomes unknown, of a block that can be asked, one that cannot, and no block.
#[tokio::test]
async fn a_block_that_can_be_asked_is_asked_about_whatever_it_loses() {
    let ways: [&str; 6] = ["block", "block, unsaid", "retry", "re-send", "cancel", "end"];
    for way in ways {
        let world = World::new().await;
        let blocks = [Some(world.keep("asks", true).await), Some(world.keep("silent", false).await), None];
        for block in blocks {
            let step = world.step_of(block).await;
            let sent = world.send(&step, receipt(&step, 0, Safety::Idempotent)).await;
            lose_it(&world, way, &step, &sent).await;
            assert_eq!(world.state(&sent).await, ReceiptState::Unknown, "{way}");
            world.execute("DELETE FROM open_steps").await.expect("deletes");
        }
        let asked = world.number("SELECT count(*) FROM verifications").await;
        assert_eq!(asked, 1, "{way}");
        let early = world.number("SELECT count(*) FROM verifications WHERE due_at > now()").await;
        assert_eq!(early, 1, "{way}: a late answer may come first");
    }
}

async fn lose_it(world: &World, way: &str, step: &Claimed, sent: &Receipt) {
    let lose = vec![lose(sent)];
    match way {
        "block" => drop(world.store.block(&Blocking { lose, ..blocking(step) }).await.expect("blocks")),
        "block, unsaid" => drop(world.store.block(&blocking(step)).await.expect("blocks")),
        "retry" => {
            let retry = RetryLater { lose, ..retry(step, Duration::ZERO) };
            world.store.retry_later(&retry).await.expect("waits");
        }
        "re-send" => {
            let resend = numbered(step, 0, 1, Safety::Idempotent);
            let expected = [(sent.id, ReceiptState::Dispatched)];
            let dispatch = Dispatch { expected: &expected, lose: &lose, ..first(step, &resend) };
            world.store.dispatch(&dispatch).await.expect("dispatches");
        }
        "cancel" => {
            world.store.cancel_run(world.tenant, step.run, &person()).await.expect("cancels");
        }
        _ => {
            let mut settlement = settlement(step);
            settlement.settled.state = SettledState::Cancelled;
            settlement.settled.output = None;
            let end = Some(run_end(RunEndState::Cancelled));
            world.store.settle(&Settlement { end, ..settlement }).await.expect("settles");
        }
    }
}

/// A component is asked about once it is known that it can be, by whichever upload.
#[tokio::test]
async fn an_upload_learns_what_an_older_host_did_not_look_for() {
    let world = World::new().await;
    for (verifies, expected) in [(false, 0), (true, 1), (false, 1)] {
        world.keep("asks", verifies).await;
        let known = world.number("SELECT count(*) FROM components WHERE verifies").await;
        assert_eq!(known, expected, "{verifies}");
    }
}

#[tokio::test]
async fn one_host_asks_at_a_time_and_is_told_all_that_it_needs() {
    let world = World::new().await;
    let (step, sent) = world.asked_about().await;
    assert_eq!(world.hold_due(&request()).await, [], "it is not due yet");
    world.make_due().await;
    let without = vec![Digest::of(b"asks")];
    assert_eq!(world.hold_due(&AskRequest { without, ..request() }).await, [], "left to others");
    let held = one(world.hold_due(&request()).await);
    let told = (held.tenant, held.receipt, held.block, held.asked, held.workflow, held.started_at);
    let block = Digest::of(b"asks");
    assert_eq!(told, (world.tenant, sent.id, block, 1, world.workflow, step.first_started_at));
    assert_eq!(world.hold_due(&request()).await, [], "it is held");
    let known = world.verification(&sent).await.expect("it is unknown");
    let asking = Verification {
        asked: 1,
        asked_at: Some(held.asked_at),
        said: None,
        is_being_asked: true,
        next_at: None,
    };
    assert_eq!(known, asking);

    // The host is lost: another asks, and the first one's word does not count any more.
    world.make_due().await;
    let other = one(world.hold_due(&request()).await);
    assert_eq!(other.asked, 2);
    assert_ne!(other.hold, held.hold);
    let again = async |held: &HeldVerification| {
        let next = Next::After(Duration::from_secs(30));
        world.store.ask_again(held, next, "no").await.expect("answers")
    };
    assert!(!again(&held).await);
    assert!(again(&other).await);
    assert!(!again(&other).await, "said once");
}

/// What each next time means in the table.
#[tokio::test]
async fn what_was_said_is_kept_and_says_when_it_is_asked_next() {
    let world = World::new().await;
    let (_, sent) = world.asked_about().await;
    let at = chrono::DateTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let soon = Duration::from_secs(30);
    let mut asked = 0;
    for (next, counts, is_left) in [
        (Next::After(soon), true, false),
        (Next::At(at), false, false),
        (Next::HandBack(soon), false, false),
        (Next::Person, true, true),
    ] {
        world.make_due().await;
        let held = one(world.hold_due(&request()).await);
        assert!(world.store.ask_again(&held, next, "what it said").await.expect("answers"));
        asked += u32::from(counts);
        let known = world.verification(&sent).await.expect("it is unknown");
        let told = (known.asked, known.said.as_deref(), known.is_being_asked);
        assert_eq!(told, (asked, Some("what it said"), false), "{next:?}");
        assert_eq!(known.next_at.is_none(), is_left, "{next:?}");
        if let Next::At(at) = next {
            assert_eq!(known.next_at, Some(at));
        }
        assert_eq!(world.hold_due(&request()).await, [], "{next:?}");
    }
}

/// Whatever settles a receipt ends the asking, and whoever asks meanwhile hears of it.
#[tokio::test]
async fn nobody_is_asked_about_what_is_settled() {
    let world = World::new().await;
    for way in ["person", "late answer", "late refusal", "sibling"] {
        let (_, sent) = world.asked_about().await;
        world.make_due().await;
        let held = one(world.hold_due(&request()).await);
        let settled = match way {
            "person" => {
                world.resolve(&sent, Outcome::Committed, true).await;
                ReceiptState::Committed
            }
            "late answer" => answered(&world, commit(&sent, ReceiptState::Unknown)).await,
            "late refusal" => answered(&world, reject(&sent, ReceiptState::Unknown)).await,
            _ => {
                let what = Move::VerifyBySibling { sibling: EffectId(sent.id.0), recorded: accepted() };
                let by = Actor::Host;
                let verify = Transition::new(world.tenant, sent.id, ReceiptState::Unknown, by, what);
                answered(&world, verify.expect("legal")).await
            }
        };
        assert_eq!(world.number("SELECT count(*) FROM verifications").await, 0, "{way}");
        assert_eq!(said(&world, &sent).await, Resolved::Refused(Unresolvable::NotUnknown(settled)), "{way}");
        assert!(!world.store.ask_again(&held, Next::Person, "late").await.expect("answers"), "{way}");
        one(world.claim(LEASE).await);
    }
    let (step, sent) = world.asked_about().await;
    assert_eq!(said(&world, &sent).await, Resolved::Done { resumed: true, run: step.run });
    assert_eq!(world.number("SELECT count(*) FROM verifications").await, 0);
    let resolved = world.resolve(&sent, Outcome::Committed, true).await;
    let found = Unresolvable::NotUnknown(ReceiptState::Verified);
    assert_eq!(resolved, Resolved::Refused(found), "the person hears that the block came first");
}

async fn answered(world: &World, answer: Transition) -> ReceiptState {
    world.store.record_answer(std::slice::from_ref(&answer)).await.expect("records");
    answer.to()
}

/// The block says that it took place.
async fn said(world: &World, sent: &Receipt) -> Resolved {
    let by = Actor::Verifier;
    let decide = |receipt: &Receipt, now| resolve(receipt, resolution(Outcome::Verified), by.clone(), now);
    world.store.resolve(world.tenant, sent.id, decide, true, &by).await.expect("answers")
}

/// Those that wait longest come first, and a tenant with many leaves room for the others.
#[tokio::test]
async fn askings_are_shared_among_tenants() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO runs (tenant_id, id, lineage, workflow_id, version_id, start_key, trigger, event, input)
             SELECT tenant, run, run, tenant, tenant, run::text, 'api', '{}', '{}'
             FROM (SELECT ('00000000-0000-0000-0000-00000000000' || t)::uuid AS tenant,
                       ('00000000-0000-0000-0000-0000000000' || t || n)::uuid AS run
                   FROM generate_series(1, 3) t, generate_series(1, 4) n) many;
             ",
        )
        .await
        .expect("inserts");
    world
        .execute(
            "INSERT INTO receipts (tenant_id, id, lineage, run_id, step_id, epoch, node, iteration, slot_ordinal,
                 dispatch_number, position, attempt, kind, safety, destination, request_hash, content_key,
                 idempotency_key, preview, state, lease_id, unresolved, dispatched_at, absence_known_at)
             SELECT tenant_id, id, lineage, id, id, 0, 'a', '{}', 0, 0, 0, 1, 'http', 'at-most-once', sha256(''),
                 sha256(''), substr(sha256(''), 1, 16), 'k', '{}', 'unknown', id, true, now(), now()
             FROM runs",
        )
        .await
        .expect("inserts");
    world
        .execute(
            "INSERT INTO verifications (tenant_id, receipt_id, block, due_at)
             SELECT tenant_id, id, sha256(''), now() - interval '1 minute' * (100 - right(id::text, 2)::int)
             FROM runs",
        )
        .await
        .expect("inserts");
    let request = AskRequest { room: 5, per_tenant_max: 2, ..request() };
    let mut looks = vec![];
    for _ in 0..4 {
        let mut held: Vec<String> = world
            .hold_due(&request)
            .await
            .iter()
            .map(|held| held.receipt.0.simple().to_string()[30..].to_owned())
            .collect();
        held.sort();
        looks.push(held.join(" "));
    }
    assert_eq!(looks, ["11 12 21 22 31", "13 14 23 24 32", "33 34", ""]);
}
