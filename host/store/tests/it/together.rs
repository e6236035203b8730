//! Many hosts' and many steps' writes in one commit: each has the verdict that it would have had alone.

use chrono::Utc;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::{Receipt, ReceiptState};
use counterfoil_store::StoreError;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::settle::{RunEndState, SettleVerdict, Settlement};
use counterfoil_store::step::{Claimed, Fence};
use futures::future::join_all;
use serde_json::json;

use crate::world::{LEASE, World, answer, first, ready, receipt, run_end, settlement};

const GOOD: usize = 20;

impl World {
    /// Carries out `writes` while nobody can write to `table`, so that what does not go with the first flush goes with the
    /// next. Returns what came of them, and how many transactions wrote.
    async fn together<R>(&self, table: &str, writes: Vec<impl Future<Output = R>>) -> (Vec<R>, i64) {
        let mut lock = self.pool.begin().await.expect("begins");
        let share = format!("LOCK TABLE {table} IN SHARE MODE");
        sqlx::query(sqlx::AssertSqlSafe(share)).execute(&mut *lock).await.expect("locks");
        let before = self.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await;
        let release = async {
            self.until_somebody_waits().await;
            lock.commit().await.expect("releases");
        };
        let (verdicts, ()) = tokio::join!(join_all(writes), release);
        let after = self.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await;
        (verdicts, after - before)
    }

    async fn count(&self, table: &str) -> usize {
        let count = self.number(&format!("SELECT count(*) FROM {table}")).await;
        usize::try_from(count).expect("a count")
    }

    async fn steps(&self, count: usize) -> Vec<Claimed> {
        for _ in 0..count {
            self.start(&["a"]).await;
        }
        let claimed = self.claim(LEASE).await;
        assert_eq!(claimed.len(), count);
        claimed
    }

    /// Steps with a dispatched receipt each.
    async fn sent(&self, count: usize) -> Vec<(Claimed, Receipt)> {
        let mut sent = vec![];
        for step in self.steps(count).await {
            let receipt = self.send(&step, receipt(&step, 0, Safety::AtMostOnce)).await;
            sent.push((step, receipt));
        }
        sent
    }
}

fn word(verdict: &Result<DispatchVerdict, StoreError>) -> &'static str {
    match verdict {
        Ok(DispatchVerdict::Dispatched { .. }) => "dispatched",
        Ok(DispatchVerdict::Stale) => "stale",
        Ok(DispatchVerdict::Duplicate { .. }) => "duplicate",
        Ok(DispatchVerdict::ConnectionChanged) => "changed",
        Ok(_) => "another",
        Err(error) if error.is_transient() => "transient",
        Err(_) => "refused",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_dispatch_fails_none_of_its_neighbours() {
    let world = World::new().await;
    let mut steps = world.steps(GOOD + 5).await;
    let stolen = steps[GOOD].fence.step.0;
    world
        .execute(&format!("UPDATE open_steps SET lease_id = gen_random_uuid() WHERE id = '{stolen}'"))
        .await
        .expect("steals");
    let mut receipts: Vec<Receipt> = steps.iter().map(|step| receipt(step, 0, Safety::AtMostOnce)).collect();
    // Two steps that send the same content, and one whose key no column can hold.
    receipts[GOOD + 2].request.content_key = receipts[GOOD + 1].request.content_key;
    receipts[GOOD + 3].request.idempotency_key = "a\0b".into();
    // One whose connection is not there any more.
    receipts[GOOD + 4].request.connection = Some("gone".into());
    let judged_at = |n: usize| (n == GOOD + 4).then(Utc::now);
    let guard = |n: usize| (GOOD + 1..=GOOD + 2).contains(&n).then_some("once");
    let writes = steps.iter_mut().zip(&receipts).enumerate().map(|(n, (step, receipt))| {
        let dispatch = Dispatch { guard: guard(n), connection_set_at: judged_at(n), ..first(step, receipt) };
        let store = &world.store;
        async move { store.dispatch(&dispatch).await }
    });
    let (verdicts, transactions) = world.together("receipts", writes.collect()).await;
    let words: Vec<&str> = verdicts.iter().map(word).collect();
    assert_eq!(words[..GOOD], ["dispatched"; GOOD]);
    let mut contenders = [words[GOOD + 1], words[GOOD + 2]];
    contenders.sort_unstable();
    assert_eq!((words[GOOD], contenders), ("stale", ["dispatched", "duplicate"]));
    assert_eq!(words[GOOD + 3..], ["refused", "changed"]);
    assert_eq!(world.count("receipts").await, GOOD + 1);
    assert!(transactions > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_dispatches_are_one_commit() {
    let world = World::new().await;
    let steps = world.steps(60).await;
    let receipts: Vec<Receipt> = steps.iter().map(|step| receipt(step, 0, Safety::AtMostOnce)).collect();
    let writes = steps.iter().zip(&receipts).map(|(step, receipt)| {
        let dispatch = first(step, receipt);
        let store = &world.store;
        async move { store.dispatch(&dispatch).await }
    });
    let (verdicts, transactions) = world.together("receipts", writes.collect()).await;
    assert!(verdicts.iter().all(|verdict| word(verdict) == "dispatched"), "{verdicts:?}");
    // Other tests write to the same server meanwhile; sixty by themselves would be sixty.
    assert!(transactions < 40, "{transactions}");
    for receipt in &receipts {
        let seen = world.store.receipt(world.tenant, receipt.id).await.expect("reads").expect("exists");
        assert_eq!(seen.receipt.request, receipt.request);
        assert_eq!((seen.receipt.place, seen.receipt.slot), (receipt.place.clone(), receipt.slot.clone()));
        assert!(seen.absence_known_at > seen.dispatched_at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_settlement_fails_none_of_its_neighbours() {
    let world = World::new().await;
    let sent = world.sent(GOOD + 4).await;
    let mut settlements: Vec<Settlement> = sent
        .iter()
        .enumerate()
        .map(|(n, (step, sent))| {
            let keep = Some((counterfoil_domain::id::HostId(uuid::Uuid::now_v7()), LEASE));
            let settlement = Settlement { writes: answer(sent), keep, ..settlement(step) };
            match n % 2 {
                0 => Settlement { open: vec![ready("b")], ..settlement },
                _ => Settlement { end: Some(run_end(RunEndState::Succeeded)), ..settlement },
            }
        })
        .collect();
    let foreign = Fence { lease: uuid::Uuid::now_v7().into(), ..settlements[GOOD].fence };
    settlements[GOOD].fence = foreign;
    settlements[GOOD + 1].writes = vec![];
    settlements[GOOD + 2].settled.choice = Some("a\0b".into());
    // Its answer is recorded already, late.
    world
        .store
        .record_answer(&[crate::world::commit(&sent[GOOD + 3].1, ReceiptState::Dispatched)])
        .await
        .expect("records");
    let writes = settlements.iter().map(|settlement| world.store.settle(settlement));
    let (verdicts, _) = world.together("settled_steps", writes.collect()).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        let expected = match n {
            GOOD => matches!(verdict, Ok(SettleVerdict::Lost)),
            n if n == GOOD + 1 => matches!(verdict, Ok(SettleVerdict::Unanswered)),
            n if n == GOOD + 2 => verdict.as_ref().is_err_and(|error| !error.is_transient()),
            n if n % 2 == 0 => matches!(verdict, Ok(SettleVerdict::Settled { next: Some(_) })),
            _ => matches!(verdict, Ok(SettleVerdict::Settled { next: None })),
        };
        assert!(expected, "settlement {n}: {verdict:?}");
    }
    // What was kept can be worked on, and what ended has ended.
    for (n, verdict) in verdicts.into_iter().enumerate() {
        let Ok(SettleVerdict::Settled { next }) = verdict else { continue };
        let state =
            world.store.run(world.tenant, sent[n].0.run).await.expect("reads").expect("exists").row.state;
        match next {
            Some(next) => {
                assert_eq!(next.place.node, "b");
                let held = world.store.renew(&[next.fence], LEASE).await.expect("renews");
                assert_eq!(held, [next.fence.lease]);
            }
            None => assert_eq!(state.name(), "succeeded"),
        }
        assert_eq!(world.state(&sent[n].1).await, ReceiptState::Committed);
    }
    let wrong = "SELECT count(*) FROM open_runs r WHERE open_steps <>
        (SELECT count(*) FROM open_steps s WHERE s.tenant_id = r.tenant_id AND s.run_id = r.run_id)";
    assert_eq!(world.number(wrong).await, 0);
}

/// Branches of one run that settle at the same moment: their run counts every one.
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_one_run_settle_together() {
    let world = World::new().await;
    let nodes: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    let run = world.start(&nodes.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let steps = world.claim(LEASE).await;
    assert_eq!(steps.len(), nodes.len());
    let settlements: Vec<Settlement> = steps
        .iter()
        .enumerate()
        .map(|(n, step)| {
            let open =
                if n < 3 { vec![ready(&format!("after-{n}")), ready(&format!("and-{n}"))] } else { vec![] };
            Settlement { open, ..settlement(step) }
        })
        .collect();
    let writes = settlements.iter().map(|settlement| world.store.settle(settlement));
    let (verdicts, _) = world.together("settled_steps", writes.collect()).await;
    assert!(
        verdicts.iter().all(|verdict| matches!(verdict, Ok(SettleVerdict::Settled { .. }))),
        "{verdicts:?}"
    );
    assert_eq!(world.number("SELECT open_steps::bigint FROM open_runs").await, 6);
    assert_eq!(world.number("SELECT count(*) FROM open_steps").await, 6);
    assert_eq!(world.count("settled_steps").await, nodes.len());
    let found = world.store.run(world.tenant, run).await.expect("reads").expect("exists");
    assert_eq!(found.input, json!({ "order": "o-1" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_runtime_waits_for_holds_up_nobody_on_another() {
    let world = World::new().await;
    let [first, second, third] = <[Claimed; 3]>::try_from(world.steps(3).await).expect("three");
    let other =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    {
        let _other = other.enter();
        world.store.open_lane(2);
    }
    let mut locked = world.pool.begin().await.expect("begins");
    let mut stuck = vec![];
    for step in [&first, &second] {
        let lock = sqlx::query("SELECT 1 FROM open_steps WHERE id = $1 FOR UPDATE").bind(step.fence.step.0);
        lock.execute(&mut *locked).await.expect("locks");
        let (store, settlement) = (world.store.clone(), settlement(step));
        stuck.push(tokio::spawn(async move { store.settle(&settlement).await }));
        world.until(&format!("SELECT count(*) = {} FROM pg_locks WHERE NOT granted", stuck.len())).await;
    }
    let (store, settlement) = (world.store.clone(), settlement(&third));
    let settled = other.spawn(async move { store.settle(&settlement).await }).await.expect("ends");
    assert!(matches!(settled, Ok(SettleVerdict::Settled { .. })), "{settled:?}");
    assert!(stuck.iter().all(|settling| !settling.is_finished()));
    locked.commit().await.expect("releases");
    for settled in join_all(stuck).await {
        assert!(matches!(settled.expect("ends"), Ok(SettleVerdict::Settled { .. })));
    }
    other.shutdown_background();
}
