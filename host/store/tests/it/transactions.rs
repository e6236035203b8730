//! A caller may be dropped at any await, and a host may die.

use std::time::Duration;

use counterfoil_domain::receipt::ReceiptState;
use counterfoil_store::StoreError;
use counterfoil_store::settle::Settlement;

use crate::world::{World, answer, commit, settlement, version};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_dropped_leaves_no_transaction_behind() {
    let world = World::new().await;
    for n in 0..150_u64 {
        let version = version(u8::try_from(n % 200).expect("few"));
        let save = world.store.save_workflow(world.tenant, "dropped", &version);
        // From before BEGIN is answered to after COMMIT is.
        let _ = tokio::time::timeout(Duration::from_micros(n * 25), save).await;
        // Whichever connection this gets: it must commit by itself.
        let name = format!("t{n}");
        let id = counterfoil_domain::id::TenantId(uuid::Uuid::now_v7());
        world.store.create_tenant(id, &name).await.expect("creates");
        let seen = format!("SELECT count(*) FROM tenants WHERE name = '{name}'");
        assert_eq!(world.number(&seen).await, 1, "round {n}: committed by nobody");
    }
    world
        .until(
            "SELECT count(*) = 0 FROM pg_stat_activity
             WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_that_is_dropped_is_whole_or_not_at_all() {
    let world = World::new().await;
    for n in 0..60_u64 {
        let (step, sent) = world.dispatched().await;
        // Twice the same answer is one, and no plain settlement.
        let settlement = Settlement { writes: [answer(&sent), answer(&sent)].concat(), ..settlement(&step) };
        let settle = world.store.settle(&settlement);
        let _ = tokio::time::timeout(Duration::from_micros(n * 50), settle).await;
        let is_open = format!("SELECT count(*) FROM open_steps WHERE id = '{}'", step.fence.step.0);
        world.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'").await;
        if world.number(&is_open).await == 0 {
            assert_eq!(world.state(&sent).await, ReceiptState::Committed, "round {n}");
            continue;
        }
        assert_eq!(world.state(&sent).await, ReceiptState::Dispatched, "round {n}");
        world.store.record_answer(&[commit(&sent, ReceiptState::Dispatched)]).await.expect("records");
        world.store.settle(&crate::world::settlement(&step)).await.expect("settles");
    }
}

/// What goes with others is not the caller's any more: it is carried out, whoever still waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_settle_that_is_dropped_is_carried_out() {
    let world = World::new().await;
    for n in 0..20_u64 {
        let (step, sent) = world.dispatched().await;
        let settlement = Settlement { writes: answer(&sent), ..settlement(&step) };
        let _ = tokio::time::timeout(Duration::from_micros(n * 50), world.store.settle(&settlement)).await;
        let is_settled = format!("SELECT count(*) = 0 FROM open_steps WHERE id = '{}'", step.fence.step.0);
        world.until(&is_settled).await;
        assert_eq!(world.state(&sent).await, ReceiptState::Committed, "round {n}");
    }
}

#[tokio::test]
async fn a_backend_that_is_killed_is_a_passing_failure() {
    let world = World::new().await;
    world.store.ping().await.expect("answers");
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'counterfoil' AND pid <> pg_backend_pid()";
    assert!(world.number(kill).await > 0);
    let mut failures = 0;
    let answered = loop {
        match world.store.ping().await {
            Ok(now) => break now,
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                failures += 1;
                assert!(failures <= 12, "every connection failed");
            }
        }
    };
    assert!(answered > chrono::DateTime::UNIX_EPOCH);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_named() {
    let world = World::new().await;
    let (_, sent) = world.dispatched().await;
    world.execute("UPDATE receipts SET preview = '{', answer_headers = '3'").await.expect_err("is not JSON");
    world.execute("UPDATE receipts SET state = 'rejected', answer_kind = 'shrug'").await.expect("is text");
    let error = world.store.receipt(world.tenant, sent.id).await.expect_err("unreadable");
    assert!(
        matches!(&error, StoreError::Undecodable { table: "receipts", column: "answer_kind", row, .. } if *row == sent.id.to_string()),
        "{error:?}"
    );
    assert!(!error.is_transient());
}

#[tokio::test]
async fn hosts_that_start_at_once_migrate_once() {
    let world = World::new().await;
    let other = world.other_store().await;
    assert!(world.store.is_migrated().await.expect("looks"));
    world.execute("DROP SCHEMA public CASCADE").await.expect("drops");
    world.execute("DROP SCHEMA counterfoil CASCADE").await.expect("drops");
    world.execute("CREATE SCHEMA public").await.expect("creates");
    assert!(!world.store.is_migrated().await.expect("looks"));
    let (one, two) = tokio::join!(world.store.migrate(), other.migrate());
    one.expect("migrates");
    two.expect("migrates");
    assert!(other.is_migrated().await.expect("looks"));
    other.due().await.expect("looks");
}

#[tokio::test]
async fn a_host_can_serve_with_its_own_tables_and_newer_ones() {
    let world = World::new().await;
    let looks = || async {
        let store = &world.store;
        (store.is_migrated().await.expect("looks"), store.has_its_tables().await.expect("looks"))
    };
    assert_eq!(looks().await, (true, true));
    let newer = "INSERT INTO _sqlx_migrations SELECT 9999, description, installed_on, success, checksum, execution_time
                 FROM _sqlx_migrations WHERE version = 1";
    world.execute(newer).await.expect("brings in a newer version");
    assert_eq!(looks().await, (false, true));
    world.execute("DELETE FROM _sqlx_migrations WHERE version = 2").await.expect("takes one away");
    assert_eq!(looks().await, (false, false));
}
