//! Wake-ups shorten a wait; nothing depends on them.

use std::time::Duration;

use counterfoil_store::wake::Wakes;
use tokio_util::sync::CancellationToken;

use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn work_here_wakes_everybody_here_and_elsewhere() {
    let world = World::new().await;
    let other = world.other_store().await;
    let (mut here, mut elsewhere) = (world.store.wakes(), other.wakes());
    let cancel = CancellationToken::new();
    let mut listeners = tokio::task::JoinSet::new();
    for store in [world.store.clone(), other.clone()] {
        let cancel = cancel.clone();
        listeners.spawn(async move { store.listen(cancel).await });
    }
    // Who begins to listen cannot know what was said before.
    heard(&mut here).await;
    heard(&mut elsewhere).await;
    world.start(&["a"]).await;
    heard(&mut here).await;
    heard(&mut elsewhere).await;

    // A wake-up that came while nobody waited is not forgotten, and one suffices for many.
    other.wake();
    other.wake();
    heard(&mut elsewhere).await;

    // A lost connection is made anew.
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(world.number(kill).await, 2);
    tokio::time::timeout(PATIENCE, async {
        while tokio::time::timeout(Duration::from_millis(50), elsewhere.changed()).await.is_err() {
            world.store.wake();
        }
    })
    .await
    .expect("hears again");

    cancel.cancel();
    tokio::time::timeout(PATIENCE, listeners.join_all()).await.expect("ends");
}

async fn heard(wakes: &mut Wakes) {
    tokio::time::timeout(PATIENCE, wakes.changed()).await.expect("wakes");
}
