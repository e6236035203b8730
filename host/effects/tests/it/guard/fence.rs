//! Who may send: the holder of the lease, and of what an invariant guards one of all.

use counterfoil_domain::workflow::definition::{Invariant, InvariantRule, InvariantScope};
use counterfoil_testkit::provider::Act;

use super::{Desk, LEASE, call, told};

#[tokio::test]
async fn a_host_that_lost_its_lease_sends_nothing() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let frozen = desk.begin().await?;
    desk.work.let_time_pass().await?;
    let thief = desk.work.claim(LEASE).await?;
    assert_ne!(frozen.fence.lease, thief.fence.lease);
    let reply = desk.perform(&frozen, call("POST", "/charges", Some("charge"), None)).await;
    assert_eq!(told(&reply), "nothing");
    assert_eq!(desk.end(&frozen).await?, "Stale");
    assert_eq!(desk.provider.calls(), vec![]);
    assert_eq!(desk.work.receipts().await?, Vec::<String>::new());
    Ok(())
}

/// The lease ran out and nobody has taken the step yet: that is late enough.
#[tokio::test]
async fn an_expired_lease_sends_nothing_even_if_nobody_wants_it() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let late = desk.begin().await?;
    desk.work.let_time_pass().await?;
    let reply = desk.perform(&late, call("POST", "/charges", Some("charge"), None)).await;
    assert_eq!((told(&reply).as_str(), desk.provider.calls().len()), ("nothing", 0));
    Ok(())
}

#[tokio::test]
async fn of_two_steps_with_the_same_content_one_sends() -> anyhow::Result<()> {
    let mut desk = Desk::new().await?;
    desk.invariants = vec![Invariant {
        id: "one-charge".into(),
        kind: "http".into(),
        rule: InvariantRule::EffectAtMostOnce,
        commit_guard: true,
        scope: InvariantScope::Workflow,
    }];
    for node in ["one", "two"] {
        desk.work.admit(node).await?;
    }
    let (one, two) = (desk.begin().await?, desk.begin().await?);
    let charge = || call("POST", "/charges", Some("charge"), None);
    let (first, second) = tokio::join!(desk.perform(&one, charge()), desk.perform(&two, charge()));
    let mut told = [told(&first), told(&second)];
    told.sort();
    assert_eq!(told, ["answer 201", "nothing"]);
    let mut ends = [desk.end(&one).await?, desk.end(&two).await?];
    ends.sort();
    assert!(ends[0].contains("Duplicate"), "{ends:?}");
    assert_eq!(ends[1], "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}

/// What is known not to have happened does not stand in the way.
#[tokio::test]
async fn a_refused_effect_guards_nothing() -> anyhow::Result<()> {
    let mut desk = Desk::new().await?;
    desk.invariants = vec![Invariant {
        id: "one-charge".into(),
        kind: "http".into(),
        rule: InvariantRule::EffectAtMostOnce,
        commit_guard: true,
        scope: InvariantScope::Tenant,
    }];
    desk.provider.script("/charges", Act::status(402));
    for (node, expected) in [("one", "rejected 402"), ("two", "answer 201"), ("three", "nothing")] {
        desk.work.admit(node).await?;
        let claimed = desk.begin().await?;
        let reply = desk.perform(&claimed, call("POST", "/charges", Some("charge"), None)).await;
        assert_eq!(told(&reply), expected, "{node}");
        desk.end(&claimed).await?;
        // A step that failed by `Duplicate` is settled by the engine; here it only has to get out of the way.
        desk.work.store.hand_back(&claimed.fence, LEASE).await?;
    }
    assert_eq!(desk.provider.calls().len(), 2);
    Ok(())
}
