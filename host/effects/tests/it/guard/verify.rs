//! A block that is asked what became of an effect: it may look, as often as it likes, and nothing is kept of it.

use counterfoil_domain::connection::Rate;
use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, EffectRequest, Safety, StorageRequest};
use counterfoil_domain::id::LeaseId;
use counterfoil_domain::limits::EFFECTS_PER_STEP_MAX;
use counterfoil_domain::ports::EffectPort as _;
use counterfoil_domain::step::Stop;
use counterfoil_effects::ExecutionContext;
use counterfoil_store::connection::SecretChanges;
use counterfoil_store::step::{Claimed, Fence};
use counterfoil_testkit::provider::Act;
use uuid::Uuid;

use super::connection::connection;
use super::{Desk, call, told};

/// Opens the door for a look at what became of a step's effect.
fn begin(desk: &Desk, claimed: &Claimed) -> LeaseId {
    let lease = LeaseId(Uuid::now_v7());
    let context = desk.context(claimed);
    desk.guard.begin_verification(ExecutionContext { fence: Fence { lease, ..context.fence }, ..context });
    lease
}

fn own(request: EffectRequest, safety: Option<Safety>) -> EffectCall {
    EffectCall { request, connection: None, ..call("GET", "/", None, safety) }
}

#[tokio::test]
async fn a_look_is_taken_afresh_each_time_and_leaves_nothing() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    desk.perform(&claimed, call("POST", "/charges", Some("charge"), None)).await;
    let lease = begin(&desk, &claimed);
    for (script, expected) in [
        (Act::default(), "answer 200"),
        (Act::status(404), "rejected 404"),
        (Act::status(500), "rejected 500"),
        (Act::dropped(), "no answer"),
        (Act::default(), "answer 200"),
    ] {
        desk.provider.script("/charges", script);
        // A label that is used again names nothing here.
        let reply = desk.guard.perform(lease, call("GET", "/charges", Some("charge"), None)).await;
        assert_eq!(told(&reply), expected);
    }
    let finished = desk.guard.finish(lease).await;
    assert!(
        finished.writes.is_empty() && finished.lose.is_empty() && finished.stop.is_none(),
        "{finished:?}"
    );
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["charge:0 committed"]);
    assert_eq!(desk.provider.calls().len(), 6);
    assert_eq!(told(&desk.guard.perform(lease, call("GET", "/charges", None, None)).await), "nothing");
    Ok(())
}

/// Whatever changes something is denied, however it is declared, and so is what the block was not granted.
#[tokio::test]
async fn whoever_looks_changes_nothing() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let lease = begin(&desk, &claimed);
    let read_only = Some(Safety::ReadOnly);
    let emit = || EffectRequest::Emit { event_type: "a.b".into(), record_id: None, data: "{}".into() };
    let put = || EffectRequest::Storage(StorageRequest::Put("k".into(), vec![1]));
    let delete = || EffectRequest::Storage(StorageRequest::Delete("k".into()));
    for (what, call) in [
        ("POST", call("POST", "/charges", Some("charge"), None)),
        ("idempotent POST", call("POST", "/charges", None, Some(Safety::Idempotent))),
        ("GET that is said to act", call("GET", "/charges", None, Some(Safety::AtMostOnce))),
        ("emit", own(emit(), None)),
        ("emit that is said to read", own(emit(), read_only)),
        ("put", own(put(), None)),
        ("put that is said to read", own(put(), read_only)),
        ("delete that is said to read", own(delete(), read_only)),
        ("another connection", EffectCall { connection: Some("q".into()), ..call("GET", "/", None, None) }),
    ] {
        assert_eq!(told(&desk.guard.perform(lease, call).await), "denied", "{what}");
    }
    let finished = desk.guard.finish(lease).await;
    assert!(finished.writes.is_empty() && finished.stop.is_none(), "{finished:?}");
    assert_eq!(desk.provider.calls(), vec![]);
    assert_eq!(desk.work.receipts().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn whoever_looks_sees_what_is_stored() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let lease = begin(&desk, &claimed);
    let get = || own(EffectRequest::Storage(StorageRequest::Get("k".into())), None);
    let reply = desk.guard.perform(lease, get()).await;
    assert_eq!(reply, EffectReply::Answered(Answer::Stored(None)));
    Ok(())
}

#[tokio::test]
async fn whoever_looks_is_bounded_like_a_step() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let lease = begin(&desk, &claimed);
    for count in 1..=EFFECTS_PER_STEP_MAX + 1 {
        let reply = desk.guard.perform(lease, call("GET", "/companies/acme", None, None)).await;
        let expected = if count <= EFFECTS_PER_STEP_MAX { "answer 200" } else { "limit effect_limit" };
        assert_eq!(told(&reply), expected, "{count}");
    }
    Ok(())
}

/// The rate is the connection's, whoever calls: a look waits for a turn that is near, and gives way to one that is not.
#[tokio::test]
async fn whoever_looks_keeps_to_the_rate() -> anyhow::Result<()> {
    for (per_ms, expected) in [(300, "answer 200"), (3_600_000, "nothing")] {
        let desk = Desk::new().await?;
        let rate = Rate { limit: 1, per_ms, burst: Some(0) };
        desk.work.set_connection(&connection(&desk, Some(rate), SecretChanges::default())).await?;
        desk.work.admit("charge").await?;
        let claimed = desk.begin().await?;
        let lease = begin(&desk, &claimed);
        let look = || desk.guard.perform(lease, call("GET", "/charges", None, None));
        assert_eq!(told(&look().await), "answer 200");
        assert_eq!(told(&look().await), expected, "{per_ms}");
        let at: Vec<u64> = desk.provider.calls().iter().map(|call| call.received_at_ms).collect();
        match desk.guard.finish(lease).await.stop {
            None => assert!(at[1] - at[0] >= u64::from(per_ms) - 50, "{at:?}"),
            Some(stop) => assert!(matches!(stop, Stop::NoRoom { .. }) && at.len() == 1, "{stop:?}"),
        }
    }
    Ok(())
}
