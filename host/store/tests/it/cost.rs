//! What a step costs the database.

use counterfoil_domain::effect::Safety;
use counterfoil_store::settle::{RunEndState, SettleVerdict, Settlement};

use crate::world::{LEASE, World, answer, first, one, ready, receipt, run_end, settlement};

/// Nothing of an answer is in an index, so that it is written beside the receipt, and no index is touched.
#[tokio::test]
async fn answers_are_hot_updates() {
    const PAIRS: i64 = 200;
    let world = World::new().await;
    for _ in 0..PAIRS {
        let (step, sent) = world.dispatched().await;
        let end = Some(run_end(RunEndState::Succeeded));
        let settlement = Settlement { writes: answer(&sent), end, ..settlement(&step) };
        let verdict = world.store.settle(&settlement).await.expect("settles");
        assert_eq!(verdict, SettleVerdict::Settled { next: None });
    }
    // A connection says what it did when it ends.
    world.store.close().await;
    let updates = |column| format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = 'receipts'");
    world.until(&format!("SELECT ({}) >= {PAIRS}", updates("n_tup_upd"))).await;
    let hot = world.number(&updates("n_tup_hot_upd")).await;
    assert!(hot * 100 >= PAIRS * 95, "{hot} of {PAIRS}");
}

/// The transactions that wrote something since, on the whole server.
async fn transactions(world: &World) -> i64 {
    world.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await
}

/// Two flushes an effect step: one before its first byte, one for its end and all that follows. Other tests on the same
/// server can only add to what is counted, so that the least of many tries is what one costs.
#[tokio::test]
async fn an_effect_step_takes_two_commits() {
    let world = World::new().await;
    let (mut for_dispatch, mut for_settle, mut for_end) = (i64::MAX, i64::MAX, i64::MAX);
    for _ in 0..40 {
        let step = world.step().await;
        let sent = receipt(&step, 0, Safety::AtMostOnce);
        let before = transactions(&world).await;
        world.store.dispatch(&first(&step, &sent)).await.expect("dispatches");
        let dispatched = transactions(&world).await;
        let settlement = Settlement { writes: answer(&sent), open: vec![ready("b")], ..settlement(&step) };
        world.store.settle(&settlement).await.expect("settles");
        let settled = transactions(&world).await;
        for_dispatch = for_dispatch.min(dispatched - before);
        for_settle = for_settle.min(settled - dispatched);

        let last = one(world.claim(LEASE).await);
        let before = transactions(&world).await;
        let end = Some(run_end(RunEndState::Succeeded));
        world.store.settle(&Settlement { end, ..crate::world::settlement(&last) }).await.expect("settles");
        for_end = for_end.min(transactions(&world).await - before);
    }
    assert_eq!((for_dispatch, for_settle, for_end), (1, 1, 1));
}
