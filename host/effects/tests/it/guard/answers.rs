//! Every row of the table of answers, over the wire, by every safety.

use std::fmt::Write as _;

use counterfoil_domain::effect::Safety;
use counterfoil_testkit::provider::Act;
use serde_json::json;

use super::{Desk, call, told};

fn acts() -> Vec<(&'static str, Act)> {
    let retry_after = |status| Act { retry_after: Some(1), ..Act::status(status) };
    vec![
        ("201", Act::default()),
        ("302", Act { headers: vec![("location".into(), "/elsewhere".into())], ..Act::status(302) }),
        ("400", Act::status(400)),
        ("408", Act::status(408)),
        ("409", Act::status(409)),
        ("425", Act::status(425)),
        ("429 with Retry-After", retry_after(429)),
        ("503 with Retry-After", retry_after(503)),
        ("503", Act::status(503)),
        ("500", Act::status(500)),
        ("504", Act::status(504)),
        ("dropped", Act::dropped()),
        ("reset in the head", Act { reset_at: Some(5), ..Act::default() }),
        ("cut in the body", Act { cut_at: Some(80), ..Act::default() }),
        ("over the cap", Act { body_bytes: Some((1 << 20) + 1), ..Act::default() }),
    ]
}

#[tokio::test]
async fn an_answer_means_what_its_row_says() -> anyhow::Result<()> {
    let mut table = String::new();
    for (name, act) in acts() {
        writeln!(table, "{name}")?;
        for safety in [Safety::AtMostOnce, Safety::Idempotent, Safety::ReadOnly] {
            let desk = Desk::new().await?;
            desk.provider.script("/charges", act.clone());
            desk.work.admit("charge").await?;
            let claimed = desk.begin().await?;
            let reply = desk.perform(&claimed, call("POST", "/charges", Some("charge"), Some(safety))).await;
            let end = desk.end(&claimed).await?;
            let receipts = desk.work.receipts().await?.join(", ");
            let calls = desk.provider.calls().len();
            writeln!(
                table,
                "  {:<12} told {}; {end}; {receipts}; {calls} call",
                safety.name(),
                told(&reply)
            )?;
        }
    }
    insta::assert_snapshot!(table);
    Ok(())
}

#[tokio::test]
async fn nothing_listens_means_nothing_was_sent() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    desk.work.connect("p", &format!("http://127.0.0.1:{port}"), json!({})).await?;
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let reply = desk.perform(&claimed, call("POST", "/charges", Some("charge"), None)).await;
    assert_eq!(told(&reply), "not sent");
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["charge:0 rejected"]);
    Ok(())
}

#[tokio::test]
async fn a_connection_may_say_that_a_status_means_not_applied() -> anyhow::Result<()> {
    let desk = Desk::with_abilities(json!({ "statuses": { "500": "not-applied" } })).await?;
    desk.provider.script("/charges", Act::status(500));
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let reply = desk.perform(&claimed, call("POST", "/charges", Some("charge"), None)).await;
    assert_eq!(told(&reply), "rejected 500");
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["charge:0 rejected"]);
    Ok(())
}

/// The answer is still recorded when whoever asked for it is gone, and a step that it unblocks goes on.
#[tokio::test]
async fn a_late_answer_settles_its_receipt_and_resumes_its_step() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.provider.script("/charges", Act::held());
    desk.work.admit("charge").await?;
    let claimed = desk.begin().await?;
    let performing = desk.perform(&claimed, call("POST", "/charges", Some("charge"), None));
    tokio::select! {
        reply = performing => anyhow::bail!("the provider holds the answer, and yet: {reply:?}"),
        calls = desk.provider.wait_for_calls(1) => { calls?; }
    }
    // The sandbox was dropped in the middle of the call: the step cannot end, so it is blocked.
    let finished = desk.guard.finish(claimed.fence.lease).await;
    assert_eq!(desk.settle(&claimed, finished).await?, "Unanswered");
    let blocking = counterfoil_store::settle::Blocking {
        fence: claimed.fence,
        run: claimed.run,
        writes: vec![],
        lose: vec![],
        error: json!({}),
        logs: None,
    };
    desk.work.store.block(&blocking).await?;
    assert_eq!(desk.work.receipts().await?, ["charge:0 unknown"]);
    let mut wakes = desk.work.store.wakes();
    desk.provider.release();
    tokio::time::timeout(std::time::Duration::from_secs(10), wakes.changed()).await?;
    assert_eq!(desk.work.receipts().await?, ["charge:0 committed"]);

    let again = desk.begin().await?;
    assert_eq!(again.attempt, 1, "a resumed step goes on in its attempt");
    let reply = desk.perform(&again, call("POST", "/charges", Some("charge"), None)).await;
    assert_eq!(told(&reply), "answer 201");
    assert_eq!(desk.end(&again).await?, "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}

/// The call's own total time counts, however it compares with the usual one: until it is over, nobody can know.
#[tokio::test]
async fn absence_is_known_after_the_lease_and_the_calls_own_time() -> anyhow::Result<()> {
    for (timeout_ms, expected_ms) in
        [(None, 5_000), (Some(300), 300), (Some(60_000), 60_000), (Some(500_000), 120_000)]
    {
        let desk = Desk::new().await?;
        desk.provider.script("/charges", Act::dropped());
        desk.work.admit("charge").await?;
        let claimed = desk.begin().await?;
        let mut charge = call("POST", "/charges", Some("charge"), None);
        charge.timeout_ms = timeout_ms;
        assert_eq!(told(&desk.perform(&claimed, charge).await), "nothing");
        let waits =
            "SELECT (extract(epoch FROM absence_known_at - dispatched_at) * 1000)::bigint FROM receipts";
        let lease_ms = i64::try_from(super::LEASE.as_millis())?;
        assert_eq!(desk.work.count(waits).await?, lease_ms + expected_ms, "{timeout_ms:?}");
    }
    Ok(())
}
