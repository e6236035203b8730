//! Who gets a step, and when somebody else does.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil_domain::id::{Digest, HostId};
use counterfoil_store::settle::{NewStep, Settlement};
use counterfoil_store::step::{ClaimRequest, Wait};
use uuid::Uuid;

use crate::world::{LEASE, World, one, ready, settlement, tenant};

#[tokio::test(flavor = "multi_thread")]
async fn a_step_goes_to_one_of_two_hosts() {
    let world = World::new().await;
    let other = world.other_store().await;
    for round in 0..10 {
        let steps: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        world.start(&steps).await;
        let (mine, theirs) = (world.request(LEASE), world.request(LEASE));
        let (mine, theirs) = tokio::join!(world.store.claim(&mine), other.claim(&theirs));
        let mut claimed = mine.expect("claims");
        claimed.extend(theirs.expect("claims"));
        // What both were looking at when the other had it locked is left for the next look.
        claimed.extend(world.claim(LEASE).await);
        let distinct: BTreeSet<_> = claimed.iter().map(|step| step.fence.step).collect();
        assert_eq!((claimed.len(), distinct.len()), (20, 20), "round {round}");
    }
}

#[tokio::test]
async fn an_expired_lease_is_claimed_and_counted_as_a_loss() {
    let world = World::new().await;
    world.start(&["a"]).await;
    let lost = one(world.claim(Duration::ZERO).await);
    assert_eq!((lost.losses, lost.attempt, lost.wait), (0, 1, Wait::Ready));
    for losses in 1..=3 {
        let taken = one(world.claim(Duration::ZERO).await);
        assert_eq!((taken.losses, taken.attempt), (losses, 1));
        assert_ne!(taken.fence.lease, lost.fence.lease);
        assert_eq!(taken.first_started_at, lost.first_started_at);
    }
    let attempts = "SELECT count(*) FROM step_attempts WHERE ended = 'lost'";
    assert_eq!(world.number(attempts).await, 3);

    // An end that its owner brought about starts the count anew; a handing back does not.
    let step = one(world.claim(LEASE).await);
    assert!(world.store.hand_back(&step.fence, Duration::ZERO).await.expect("hands back"));
    let step = one(world.claim(LEASE).await);
    assert_eq!(step.losses, 4);
    world.store.retry_later(&crate::world::retry(&step, Duration::ZERO)).await.expect("waits");
    let step = one(world.claim(LEASE).await);
    assert_eq!((step.losses, step.attempt, step.wait), (0, 2, Wait::Retry));
}

#[tokio::test]
async fn a_rescue_leaves_a_step_whose_lease_is_renewed() {
    let world = World::new().await;
    world.start(&["a"]).await;
    let step = one(world.claim(Duration::ZERO).await);

    // The renewal is under way: its lock is passed over.
    let mut renewal = world.pool.begin().await.expect("begins");
    sqlx::query("UPDATE open_steps SET vt = now() + interval '1 hour'")
        .execute(&mut *renewal)
        .await
        .expect("renews");
    assert_eq!(world.claim(LEASE).await, vec![]);
    renewal.commit().await.expect("commits");
    assert_eq!(world.claim(LEASE).await, vec![]);
    assert_eq!(world.store.renew(&[step.fence], LEASE).await.expect("renews"), vec![step.fence.lease]);
}

#[tokio::test]
async fn a_renewal_says_which_leases_are_held() {
    let world = World::new().await;
    world.start(&["a", "b"]).await;
    let lost = world.claim(Duration::ZERO).await;
    let held = world.claim(LEASE).await;
    let fences: Vec<_> = lost.iter().chain(&held).map(|step| step.fence).collect();
    let mut renewed = world.store.renew(&fences, LEASE).await.expect("renews");
    let mut expected: Vec<_> = held.iter().map(|step| step.fence.lease).collect();
    renewed.sort();
    expected.sort();
    assert_eq!(renewed, expected);

    // A step that its owner has locked is held, and not waited for.
    let mut settle = world.pool.begin().await.expect("begins");
    sqlx::query("SELECT id FROM open_steps FOR UPDATE").fetch_all(&mut *settle).await.expect("locks");
    let mut renewed = world.store.renew(&fences, LEASE).await.expect("renews");
    renewed.sort();
    assert_eq!(renewed, expected);
}

#[tokio::test]
async fn a_host_leaves_blocks_that_it_cannot_run_to_others() {
    let world = World::new().await;
    let (poor, rich) = (Digest([1; 32]), Digest([2; 32]));
    let mut admission = world.admission(&[]);
    admission.open = vec![
        NewStep { block: Some(poor), ..ready("poor") },
        NewStep { block: Some(rich), ..ready("rich") },
        ready("none"),
    ];
    world.store.admit(&admission).await.expect("admits");
    let request = ClaimRequest { without: vec![poor], ..world.request(LEASE) };
    let mut nodes: Vec<_> = world
        .store
        .claim(&request)
        .await
        .expect("claims")
        .into_iter()
        .map(|step| (step.place.node, step.block))
        .collect();
    nodes.sort();
    assert_eq!(nodes, [("none".to_owned(), None), ("rich".into(), Some(rich))]);
    assert_eq!(one(world.claim(LEASE).await).block, Some(poor));
}

#[tokio::test]
async fn each_tenant_gets_what_it_was_given() {
    let world = World::new().await;
    world.start(&["a", "b", "c", "d"]).await;
    let (other, workflow, version) = tenant(&world.store, "other").await;
    let mut admission = world.admission(&["x", "y"]);
    (admission.tenant, admission.workflow, admission.version) = (other, workflow, version);
    world.store.admit(&admission).await.expect("admits");

    let request = ClaimRequest { tenants: vec![(world.tenant, 1), (other, 5)], ..world.request(LEASE) };
    let claimed = world.store.claim(&request).await.expect("claims");
    let of = |tenant| claimed.iter().filter(|step| step.fence.tenant == tenant).count();
    assert_eq!((of(world.tenant), of(other)), (1, 2));
}

#[tokio::test]
async fn what_is_due_is_found_and_what_will_be_is_foreseen() {
    let world = World::new().await;
    let due = world.store.due().await.expect("looks");
    assert_eq!((due.tenants, due.next_in), (vec![], None));

    let run = world.start(&["a"]).await;
    assert_eq!(world.store.due().await.expect("looks").tenants, [world.tenant]);

    let step = one(world.claim(LEASE).await);
    let due = world.store.due().await.expect("looks");
    assert_eq!(due.tenants, []);
    let until_expiry = due.next_in.expect("a lease");
    assert!(until_expiry <= LEASE && until_expiry > LEASE / 2, "{until_expiry:?}");

    // A step that is due does not hide the ones that will be.
    let wait =
        |node, seconds| NewStep { wait: Wait::Delay, delay: Duration::from_secs(seconds), ..ready(node) };
    let settlement = Settlement { open: vec![ready("b"), wait("c", 300)], ..settlement(&step) };
    world.store.settle(&settlement).await.expect("settles");
    let due = world.store.due().await.expect("looks");
    assert_eq!(due.tenants, [world.tenant]);
    let until_wake = due.next_in.expect("a delay");
    assert!(until_wake <= Duration::from_mins(5) && until_wake > Duration::from_secs(150), "{until_wake:?}");

    // What waits for a person is never due.
    world.execute("UPDATE open_steps SET vt = 'infinity', wait = 'blocked'").await.expect("blocks");
    let due = world.store.due().await.expect("looks");
    assert_eq!((due.tenants, due.next_in), (vec![], None), "{run}");
}

#[tokio::test]
async fn a_delay_that_comes_due_is_known_as_one() {
    let world = World::new().await;
    let mut admission = world.admission(&[]);
    admission.open = vec![NewStep { wait: Wait::Delay, ..ready("nap") }];
    world.store.admit(&admission).await.expect("admits");
    for _ in 0..2 {
        assert_eq!(one(world.claim(Duration::ZERO).await).wait, Wait::Delay);
    }
}

#[tokio::test]
async fn a_host_under_an_old_name_holds_nothing() {
    let world = World::new().await;
    world.start(&["a"]).await;
    let request = ClaimRequest { host: HostId(Uuid::from_u128(1)), ..world.request(Duration::ZERO) };
    let dead = one(world.store.claim(&request).await.expect("claims"));
    let back = one(world.store.claim(&ClaimRequest { lease: LEASE, ..request }).await.expect("claims"));
    assert_eq!(world.store.renew(&[dead.fence], LEASE).await.expect("renews"), vec![]);
    assert_eq!(world.store.renew(&[back.fence], LEASE).await.expect("renews"), vec![back.fence.lease]);
}
