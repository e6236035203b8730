//! A connection's rate: who may call now, and when the others may.

use std::time::Duration;

use counterfoil_domain::connection::Rate;
use counterfoil_domain::receipt::Actor;
use counterfoil_store::connection::{NewConnection, Room, SecretChanges};
use counterfoil_store::settle::{HandBack, RetryVerdict};
use counterfoil_store::step::Claimed;
use serde_json::json;

use crate::world::World;

/// Between two calls of the rate below: so long that a test takes no time beside it.
const EVERY: Duration = Duration::from_hours(1);

async fn limited(world: &World, burst: u32) {
    declare(world, Some(Rate { limit: 24, per_ms: 24 * 3_600_000, burst: Some(burst) })).await;
}

async fn declare(world: &World, rate: Option<Rate>) {
    let connection = NewConnection {
        name: "c".into(),
        base_url: "https://example.com".into(),
        allowed_hosts: vec![],
        abilities: json!({}),
        rate,
        in_flight_max: None,
        secrets: SecretChanges::default(),
    };
    world.store.set_connection(world.tenant, &connection, &Actor::Host).await.expect("sets");
}

/// What a step is told: 0 if it may go, else the calls that pass before its turn.
async fn ask(world: &World, step: &Claimed) -> u64 {
    match world.store.take_room(world.tenant, "c", &step.fence).await.expect("asks") {
        Room::Free => 0,
        Room::Full { wait } => (wait + EVERY / 2).as_secs() / EVERY.as_secs(),
    }
}

async fn ask_all(world: &World, steps: &[Claimed]) -> Vec<u64> {
    let mut told = vec![];
    for step in steps {
        told.push(ask(world, step).await);
    }
    told
}

async fn steps(world: &World, count: usize) -> Vec<Claimed> {
    let mut steps = vec![];
    for _ in 0..count {
        steps.push(world.step().await);
    }
    steps
}

/// Lets so many minutes pass for the rate and for those that wait.
async fn pass(world: &World, minutes: u32) {
    let ago = format!("- interval '{minutes} minutes'");
    world
        .execute(&format!("UPDATE connection_rates SET tat = tat {ago}, tail = tail {ago}"))
        .await
        .expect("passes");
    world.execute(&format!("UPDATE open_steps SET turn_at = turn_at {ago}")).await.expect("passes");
}

#[tokio::test]
async fn those_that_wait_have_each_a_turn_and_it_is_right() {
    let world = World::new().await;
    limited(&world, 1).await;
    let steps = steps(&world, 6).await;
    assert_eq!(ask_all(&world, &steps).await, [0, 0, 1, 2, 3, 4]);
    // Whoever asks again before its turn loses nothing by it, and gains nothing.
    assert_eq!(ask_all(&world, &steps[2..]).await, [1, 2, 3, 4]);
    for (turn, step) in steps.iter().enumerate().skip(2) {
        pass(&world, 60).await;
        assert_eq!(ask(&world, step).await, 0, "turn {turn}");
        // Who comes now is behind all that wait.
        assert_eq!(ask(&world, &world.step().await).await, 4, "turn {turn}");
    }
}

#[tokio::test]
async fn a_turn_that_comes_a_little_late_is_kept_and_much_later_is_lost() {
    let world = World::new().await;
    limited(&world, 1).await;
    let steps = steps(&world, 7).await;
    assert_eq!(ask_all(&world, &steps).await, [0, 0, 1, 2, 3, 4, 5]);
    // Half a call late: within what may be ahead, so that those behind it are not late.
    pass(&world, 90).await;
    assert_eq!(ask(&world, &steps[2]).await, 0);
    pass(&world, 30).await;
    assert_eq!(ask(&world, &steps[3]).await, 0);
    // Nobody was there for ten hours. What goes now is what the rate allows, and the others wait again, each its turn.
    pass(&world, 600).await;
    assert_eq!(ask_all(&world, &steps[4..]).await, [0, 0, 1]);
    pass(&world, 60).await;
    assert_eq!(ask(&world, &steps[6]).await, 0);
}

#[tokio::test]
async fn a_rate_that_is_declared_anew_begins_anew() {
    let world = World::new().await;
    limited(&world, 0).await;
    let steps = steps(&world, 4).await;
    assert_eq!(ask_all(&world, &steps).await, [0, 1, 2, 3]);
    limited(&world, 0).await;
    assert_eq!(ask(&world, &steps[1]).await, 1, "it is the same as before");
    limited(&world, 2).await;
    assert_eq!(ask_all(&world, &steps[1..]).await, [0, 0, 0]);
    declare(&world, None).await;
    assert_eq!(ask_all(&world, &steps).await, [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_step_that_waits_is_in_its_attempt_still_and_only_its_owner_makes_it_wait() {
    let world = World::new().await;
    let step = world.step().await;
    let back = HandBack { fence: step.fence, writes: vec![], delay: Duration::ZERO, why: None, lost: false };
    assert_eq!(world.store.hand_back_with(&back).await.expect("waits"), RetryVerdict::Waiting);
    let again = world.claim(EVERY).await.pop().expect("it is due");
    assert_eq!((again.attempt, again.losses, again.wait), (step.attempt, 0, step.wait));
    assert_eq!(world.store.hand_back_with(&back).await.expect("answers"), RetryVerdict::Lost);
}
