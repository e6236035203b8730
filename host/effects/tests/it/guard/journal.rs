//! What a re-run, a new attempt and a second host are told, and that nothing is sent for it.

use counterfoil_domain::effect::{Answer, EffectReply, Safety};
use counterfoil_testkit::provider::Act;
use serde_json::{Value, json};

use super::{Desk, call, told};

#[tokio::test]
async fn a_recorded_answer_is_handed_over_and_not_asked_for_again() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let first = desk.begin().await?;
    let reply = desk.perform(&first, call("POST", "/charges", Some("charge"), None)).await;
    let finished = desk.guard.finish(first.fence.lease).await;
    desk.guard.record_alone(finished.writes).await;
    // The host dies here, with the answer durable and the step not settled.
    desk.work.let_time_pass().await?;
    let second = desk.begin().await?;
    assert_eq!((second.attempt, second.losses), (1, 1), "a crash uses up no attempt");
    assert_eq!(desk.perform(&second, call("POST", "/charges", Some("charge"), None)).await, reply);
    assert_eq!(desk.end(&second).await?, "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_dispatch_whose_host_is_gone_is_unknown_and_only_an_idempotent_one_is_sent_again()
-> anyhow::Result<()> {
    for (safety, expected_told, expected_end, receipts, calls) in [
        (Safety::AtMostOnce, "nothing", "blocked", vec!["charge:0 unknown"], 1),
        (Safety::Idempotent, "answer 201", "settled", vec!["charge:0 verified", "charge:1 committed"], 2),
    ] {
        let desk = Desk::new().await?;
        desk.work.admit("charge").await?;
        let first = desk.begin().await?;
        let charge = || call("POST", "/charges", Some("charge"), Some(safety));
        desk.perform(&first, charge()).await;
        // The host dies here: the answer had come, and was not durable. Its guard goes with it.
        let _ = desk.guard.finish(first.fence.lease).await;
        desk.work.let_time_pass().await?;
        let second = desk.begin().await?;
        let reply = desk.perform(&second, charge()).await;
        assert_eq!(told(&reply), expected_told, "{safety:?}");
        assert_eq!(desk.end(&second).await?, expected_end, "{safety:?}");
        assert_eq!(desk.work.receipts().await?, receipts, "{safety:?}");
        let keys: Vec<_> =
            desk.provider.calls().iter().map(|call| call.idempotency_key().map(str::to_owned)).collect();
        assert_eq!(keys.len(), calls, "{safety:?}");
        assert!(keys.iter().all(|key| key.is_some() && *key == keys[0]), "one key for the slot: {keys:?}");
    }
    Ok(())
}

/// The key must not hold anything that changes between tries.
#[tokio::test]
async fn every_attempt_uses_the_key_of_the_first() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    for attempt in 1..=3 {
        desk.provider.script("/charges", Act::status(500));
        let claimed = desk.begin().await?;
        assert_eq!(claimed.attempt, attempt);
        let reply =
            desk.perform(&claimed, call("POST", "/charges", Some("charge"), Some(Safety::Idempotent))).await;
        assert_eq!(told(&reply), "nothing");
        assert_eq!(desk.end(&claimed).await?, "waits");
    }
    let calls = desk.provider.calls();
    let keys: std::collections::BTreeSet<_> = calls.iter().map(|call| call.idempotency_key()).collect();
    assert_eq!((calls.len(), keys.len()), (3, 1));
    assert_eq!(desk.work.receipts().await?, ["charge:0 unknown", "charge:1 unknown", "charge:2 unknown"]);
    Ok(())
}

/// Two calls of one step that look alike are two effects.
#[tokio::test]
async fn calls_without_a_label_get_their_own_answers() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let id = |reply: EffectReply| match reply {
        EffectReply::Answered(Answer::Http(response)) => {
            serde_json::from_slice::<Value>(&response.body).map(|body| body["id"].clone()).unwrap_or_default()
        }
        other => panic!("{other:?}"),
    };
    let mut first = vec![];
    let claimed = desk.begin().await?;
    for _ in 0..2 {
        first.push(id(desk.perform(&claimed, call("POST", "/charges", None, None)).await));
    }
    assert_eq!(first, [json!("ch_1"), json!("ch_2")]);
    let finished = desk.guard.finish(claimed.fence.lease).await;
    desk.guard.record_alone(finished.writes).await;
    desk.work.let_time_pass().await?;
    let again = desk.begin().await?;
    for expected in &first {
        assert_eq!(&id(desk.perform(&again, call("POST", "/charges", None, None)).await), expected);
    }
    assert_eq!(desk.provider.calls().len(), 2);
    Ok(())
}

/// A refusal within the attempt is repeated, and forgotten by the next attempt, which may ask again.
#[tokio::test]
async fn a_refusal_is_remembered_for_its_attempt() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.provider.script("/charges", Act::status(402));
    desk.work.admit("charge").await?;
    let charge = || call("POST", "/charges", Some("charge"), None);
    let first = desk.begin().await?;
    assert_eq!(told(&desk.perform(&first, charge()).await), "rejected 402");
    let finished = desk.guard.finish(first.fence.lease).await;
    desk.guard.record_alone(finished.writes).await;
    desk.work.let_time_pass().await?;
    let rerun = desk.begin().await?;
    assert_eq!(told(&desk.perform(&rerun, charge()).await), "rejected 402");
    assert_eq!(desk.provider.calls().len(), 1);
    let finished = desk.guard.finish(rerun.fence.lease).await;
    assert_eq!(desk.retry(&rerun, finished).await?, "waits");
    let next = desk.begin().await?;
    assert_eq!(next.attempt, 2);
    assert_eq!(told(&desk.perform(&next, charge()).await), "answer 201");
    assert_eq!(desk.end(&next).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["charge:0 rejected", "charge:1 committed"]);
    Ok(())
}

#[tokio::test]
async fn a_re_run_that_asks_for_something_else_fails_and_sends_nothing() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let first = desk.begin().await?;
    desk.perform(&first, call("POST", "/charges", Some("charge"), None)).await;
    let finished = desk.guard.finish(first.fence.lease).await;
    desk.guard.record_alone(finished.writes).await;
    desk.work.let_time_pass().await?;
    let second = desk.begin().await?;
    let reply = desk.perform(&second, call("POST", "/reservations", Some("charge"), None)).await;
    assert_eq!(told(&reply), "nothing");
    let end = desk.end(&second).await?;
    assert!(end.contains("Diverged"), "{end}");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}
