//! Who gets a step, and when somebody else does.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::TimeDelta;
use counterfoil_domain::fair_share::{Queue, Share};
use counterfoil_domain::id::{Digest, HostId};
use counterfoil_store::admission::Admission;
use counterfoil_store::settle::{NewStep, Settlement};
use counterfoil_store::share::Shares;
use counterfoil_store::step::{ClaimRequest, Line, Take, Wait};
use uuid::Uuid;

use crate::world::{LEASE, World, one, person, ready, settlement, tenant};

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

    let theirs = Queue { tenant: other, workflow };
    let takes = vec![Take::of(world.queue(), 1), Take::of(theirs, 5)];
    let claimed = world.store.claim(&ClaimRequest { takes, ..world.request(LEASE) }).await.expect("claims");
    let of = |tenant| claimed.iter().filter(|step| step.fence.tenant == tenant).count();
    assert_eq!((of(world.tenant), of(other)), (1, 2));
    assert!(
        claimed
            .iter()
            .all(|step| step.workflow == if step.fence.tenant == other { workflow } else { world.workflow })
    );
}

/// Since when a line has been due, and when its next step will be, by the look at everything and by the one at a tenant, which
/// say the same.
async fn look(world: &World) -> Vec<(Queue, bool, Option<Duration>)> {
    let all = world.store.due().await.expect("looks");
    let of_tenant = world.store.due_of(&[world.tenant]).await.expect("looks");
    let told = |lines: &[Line]| -> Vec<_> {
        lines.iter().map(|line| (line.queue, line.due_since.is_some(), line.next_in.is_some())).collect()
    };
    assert_eq!(told(&all), told(&of_tenant));
    all.iter().map(|line| (line.queue, line.due_since.is_some(), line.next_in)).collect()
}

#[tokio::test]
async fn what_is_due_is_found_and_what_will_be_is_foreseen() {
    let world = World::new().await;
    let queue = world.queue();
    assert_eq!(look(&world).await, []);

    let run = world.start(&["a"]).await;
    assert_eq!(look(&world).await, [(queue, true, None)]);
    assert_eq!(world.store.next_of(&[queue], Duration::ZERO).await.expect("looks"), [None]);

    // What became due since a claim began, the claim did not see.
    let since = world.store.next_of(&[queue], Duration::from_hours(1)).await.expect("looks");
    assert_eq!(since, [Some(Duration::ZERO)]);

    let step = one(world.claim(LEASE).await);
    let (_, is_due, next) = one(look(&world).await);
    let until_expiry = next.expect("a lease");
    assert!(!is_due && until_expiry <= LEASE && until_expiry > LEASE / 2, "{until_expiry:?}");

    // A step that is due does not hide the ones that will be.
    let wait =
        |node, seconds| NewStep { wait: Wait::Delay, delay: Duration::from_secs(seconds), ..ready(node) };
    let settlement = Settlement { open: vec![ready("b"), wait("c", 300)], ..settlement(&step) };
    world.store.settle(&settlement).await.expect("settles");
    let (_, is_due, next) = one(look(&world).await);
    let foreseen = one(world.store.next_of(&[queue], Duration::ZERO).await.expect("looks"));
    for until_wake in [next, foreseen] {
        let until_wake = until_wake.expect("a delay");
        assert!(
            is_due && until_wake <= Duration::from_mins(5) && until_wake > Duration::from_secs(150),
            "{until_wake:?}"
        );
    }

    // What waits for a person is never due.
    world.execute("UPDATE open_steps SET vt = 'infinity', wait = 'blocked'").await.expect("blocks");
    assert_eq!(look(&world).await, [(queue, false, None)], "{run}");
    assert_eq!(world.store.next_of(&[queue], Duration::ZERO).await.expect("looks"), [None]);
}

#[tokio::test]
async fn every_workflow_has_a_line_of_its_own() {
    let world = World::new().await;
    let mut queues = vec![world.queue()];
    world.start(&["a"]).await;
    for name in ["one", "two"] {
        let (tenant, workflow, version) = tenant(&world.store, name).await;
        for (tenant, workflow) in [(tenant, workflow), (world.tenant, workflow)] {
            let admission = Admission { tenant, workflow, version, ..world.admission(&["x"]) };
            world.store.admit(&admission).await.expect("admits");
            queues.push(Queue { tenant, workflow });
        }
    }
    queues.sort();
    let lines = world.store.due().await.expect("looks");
    assert_eq!(lines.iter().map(|line| line.queue).collect::<Vec<_>>(), queues);
    queues.retain(|queue| queue.tenant == world.tenant);
    let lines = world.store.due_of(&[world.tenant]).await.expect("looks");
    assert_eq!(lines.iter().map(|line| line.queue).collect::<Vec<_>>(), queues);
}

#[tokio::test]
async fn what_was_due_before_the_watermark_is_not_searched_for() {
    let world = World::new().await;
    world.start(&["early", "late"]).await;
    world
        .execute("UPDATE open_steps SET vt = now() - interval '1 hour' WHERE node = 'early'")
        .await
        .expect("moves");
    let since = world.store.ping().await.expect("answers") - TimeDelta::minutes(30);
    let take = Take { since: Some(since), ..Take::of(world.queue(), 9) };
    let request = ClaimRequest { takes: vec![take], ..world.request(LEASE) };
    assert_eq!(one(world.store.claim(&request).await.expect("claims")).place.node, "late");

    // The look at everything finds it all the same, and says since when.
    let due_since = one(world.store.due().await.expect("looks")).due_since.expect("due");
    assert!(due_since < since);
    assert_eq!(one(world.claim(LEASE).await).due_at, due_since);
}

#[tokio::test]
async fn a_share_is_kept_and_read_by_every_host() {
    let world = World::new().await;
    let acme = Share { weight: 3, in_flight_max: Some(7) };
    let of_workflow = Share { weight: 2, in_flight_max: None };
    let shares = world.store.shares().await.expect("reads");
    assert_eq!(shares, Shares::default());
    assert_eq!(shares.of_tenant(world.tenant), Share { weight: 1, in_flight_max: None });

    let by = person();
    assert!(world.store.set_tenant_share("acme", acme, &by).await.expect("sets"));
    assert!(!world.store.set_tenant_share("nobody", acme, &by).await.expect("sets"));
    let set = async |name, share| {
        world.store.set_workflow_share(world.tenant, name, share, &by).await.expect("sets")
    };
    assert!(set("flow", of_workflow).await);
    assert!(!set("none", of_workflow).await);
    let shares = world.other_store().await.shares().await.expect("reads");
    assert_eq!((shares.of_tenant(world.tenant), shares.of_workflow(&world.queue())), (acme, of_workflow));
    assert_eq!(world.store.tenant_share("acme").await.expect("reads"), Some(acme));

    // Nobody has less than some weight, or a cap that lets nothing run.
    for share in [
        Share { weight: 0, ..acme },
        Share { weight: 1_001, ..acme },
        Share { in_flight_max: Some(0), ..acme },
    ] {
        assert!(world.store.set_tenant_share("acme", share, &by).await.is_err(), "{share:?}");
    }
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
