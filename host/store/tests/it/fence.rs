//! An owner that has lost its lease changes nothing, whatever it tries.

use std::time::Duration;

use counterfoil_domain::effect::Safety;
use counterfoil_store::receipt::DispatchVerdict;
use counterfoil_store::settle::{
    BlockVerdict, Blocking, RetryLater, RetryVerdict, RunEndState, SettleVerdict, Settlement,
};
use counterfoil_store::step::Claimed;

use crate::world::{
    LEASE, World, answer, blocking, first, lose, one, ready, receipt, retry, run_end, settlement,
};

const WRITES: [&str; 9] = [
    "renew",
    "hand back",
    "dispatch",
    "dispatch with an answer",
    "settle",
    "settle and end",
    "retry",
    "block",
    "block with a loss",
];

async fn is_refused(
    world: &World,
    write: &str,
    owner: &Claimed,
    sent: &counterfoil_domain::receipt::Receipt,
) -> bool {
    let store = &world.store;
    let next = receipt(owner, 1, Safety::AtMostOnce);
    let is_lost = |verdict| matches!(verdict, Ok(SettleVerdict::Lost));
    match write {
        "renew" => store.renew(&[owner.fence], LEASE).await.expect("answers").is_empty(),
        "hand back" => !store.hand_back(&owner.fence, Duration::ZERO).await.expect("answers"),
        "dispatch" => {
            matches!(store.dispatch(&first(owner, &next)).await, Ok(DispatchVerdict::Stale))
        }
        "dispatch with an answer" => {
            let writes = answer(sent);
            let mut dispatch = first(owner, &next);
            dispatch.writes = &writes;
            matches!(store.dispatch(&dispatch).await, Ok(DispatchVerdict::Stale))
        }
        "settle" => {
            let settlement = Settlement { writes: answer(sent), open: vec![ready("b")], ..settlement(owner) };
            is_lost(store.settle(&settlement).await)
        }
        "settle and end" => {
            let end = Some(run_end(RunEndState::Failed));
            is_lost(store.settle(&Settlement { writes: answer(sent), end, ..settlement(owner) }).await)
        }
        "retry" => {
            let retry = RetryLater { writes: answer(sent), ..retry(owner, Duration::ZERO) };
            matches!(store.retry_later(&retry).await, Ok(RetryVerdict::Lost))
        }
        "block" => matches!(store.block(&blocking(owner)).await, Ok(BlockVerdict::Lost)),
        "block with a loss" => {
            let blocking = Blocking { lose: vec![lose(sent)], ..blocking(owner) };
            matches!(store.block(&blocking).await, Ok(BlockVerdict::Lost))
        }
        other => panic!("no write is called {other}"),
    }
}

#[tokio::test]
async fn a_stale_owner_changes_nothing() {
    let world = World::new().await;
    for how in ["taken over", "finished by another", "cancelled", "handed back"] {
        world.start(&["a"]).await;
        let owner = one(world.claim(LEASE).await);
        let sent = world.send(&owner, receipt(&owner, 0, Safety::AtMostOnce)).await;
        match how {
            "taken over" => {
                world.execute("UPDATE open_steps SET vt = now()").await.expect("expires");
                one(world.claim(LEASE).await);
            }
            // Its late end, a failure among them, changes nothing of a flow that has succeeded.
            "finished by another" => {
                let expired = format!("UPDATE open_steps SET vt = now() WHERE id = '{}'", owner.fence.step.0);
                world.execute(&expired).await.expect("expires");
                let other = one(world.claim(LEASE).await);
                let end = Some(run_end(RunEndState::Succeeded));
                let settlement = Settlement { writes: answer(&sent), end, ..settlement(&other) };
                let settled = world.store.settle(&settlement).await;
                assert!(matches!(settled, Ok(SettleVerdict::Settled { next: None })), "{settled:?}");
            }
            "cancelled" => {
                let cancelled =
                    world.store.cancel_run(world.tenant, owner.run, &crate::world::person()).await;
                cancelled.expect("cancels");
            }
            _ => {
                world.store.hand_back(&owner.fence, LEASE).await.expect("hands back");
            }
        }
        let before = world.dump().await;
        for write in WRITES {
            assert!(is_refused(&world, write, &owner, &sent).await, "{write}, {how}");
            assert_eq!(world.dump().await, before, "{write}, {how}");
        }
    }
}

/// Nobody has taken the step, so that its work is still worth keeping; but nothing more is sent.
#[tokio::test]
async fn an_owner_whose_lease_has_run_out_may_finish_and_not_send() {
    let world = World::new().await;
    let (step, sent) = world.dispatched().await;
    world.execute("UPDATE open_steps SET vt = now() - interval '1 second'").await.expect("expires");
    let before = world.dump().await;
    for write in ["dispatch", "dispatch with an answer"] {
        assert!(is_refused(&world, write, &step, &sent).await, "{write}");
        assert_eq!(world.dump().await, before, "{write}");
    }
    let settled = world.store.settle(&Settlement { writes: answer(&sent), ..settlement(&step) }).await;
    assert!(matches!(settled, Ok(SettleVerdict::Settled { next: None })), "{settled:?}");
}
