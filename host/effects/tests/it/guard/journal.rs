//! What a re-run, a new attempt and a second host are told, and that nothing is sent for it.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil_domain::effect::{Answer, EffectReply, Safety};
use counterfoil_testkit::provider::Act;
use serde_json::{Value, json};
use tokio::time::timeout;

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
async fn an_answer_that_nobody_else_knows_waits_for_a_database_that_is_away() -> anyhow::Result<()> {
    const LONGER_THAN_TRIES_IN_A_ROW: Duration = Duration::from_millis(500);
    for (comes_back, receipts, said) in [
        (
            true,
            ["charge:0 committed"],
            ["WARN an answer cannot be recorded now", "INFO an answer that had to wait is recorded"],
        ),
        (
            false,
            ["charge:0 unknown"],
            [
                "WARN an answer cannot be recorded now",
                "ERROR an answer is lost, since it could not be recorded",
            ],
        ),
    ] {
        let desk = Desk::new().await?;
        desk.work.admit("charge").await?;
        let first = desk.begin().await?;
        desk.perform(&first, call("POST", "/charges", Some("charge"), None)).await;
        let finished = desk.guard.finish(first.fence.lease).await;
        let log = Log::default();
        let listening = log.listen();
        desk.work.execute("ALTER TABLE receipts RENAME TO receipts_that_are_away").await?;
        let mut recording = pin!(desk.guard.record_alone(finished.writes));
        assert!(timeout(LONGER_THAN_TRIES_IN_A_ROW, &mut recording).await.is_err(), "it was given up");
        if !comes_back {
            (&mut recording).await;
        }
        desk.work.execute("ALTER TABLE receipts_that_are_away RENAME TO receipts").await?;
        if comes_back {
            recording.await;
        }
        drop(listening);
        let lines = log.of("an answer");
        assert_eq!(lines.len(), said.len(), "{lines:#?}");
        for (line, said) in lines.iter().zip(said) {
            assert!(line.contains(said) && line.contains("receipt=eff_"), "{line}");
        }
        if !comes_back {
            desk.work.let_time_pass().await?;
            let second = desk.begin().await?;
            desk.perform(&second, call("POST", "/charges", Some("charge"), None)).await;
            assert_eq!(desk.end(&second).await?, "blocked");
            let told = "SELECT count(*) FROM receipts WHERE reason LIKE '%the database was away%'";
            assert_eq!(desk.work.count(told).await?, 1);
        }
        assert_eq!(desk.work.receipts().await?, receipts);
    }
    Ok(())
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || log.clone())
            .with_ansi(false)
            .with_target(false)
            .without_time();
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// The lines that speak of it.
    fn of(&self, what: &str) -> Vec<String> {
        let text = self.0.lock().expect("whole").clone();
        let text = String::from_utf8(text).expect("text");
        text.lines().filter(|line| line.contains(what)).map(|line| line.trim().to_owned()).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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

/// A receiver that remembers a key would repeat what it answered before, and do nothing.
#[tokio::test]
async fn what_was_undone_is_done_anew_under_another_key() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("charge").await?;
    let charge = || call("POST", "/charges", Some("charge"), Some(Safety::Idempotent));
    desk.provider.script("/charges", Act::status(500));
    let first = desk.begin().await?;
    desk.perform(&first, charge()).await;
    assert_eq!(desk.end(&first).await?, "waits");
    desk.work
        .execute("UPDATE receipts SET state = 'compensated', unresolved = false WHERE state = 'unknown'")
        .await?;
    let second = desk.begin().await?;
    assert_eq!(told(&desk.perform(&second, charge()).await), "answer 201");
    assert_eq!(desk.end(&second).await?, "settled");
    assert_eq!(desk.work.receipts().await?, ["charge:0 compensated", "charge:1 committed"]);
    let calls = desk.provider.calls();
    assert_ne!(calls[0].idempotency_key(), calls[1].idempotency_key());
    Ok(())
}

/// What a step has heard must be what its journal says, or a re-run would do something else.
#[tokio::test]
async fn an_answer_that_came_after_anothers_runs_the_step_again() -> anyhow::Result<()> {
    let desk = Desk::with_answers_at_once().await?;
    desk.work.admit("charge").await?;
    let charge = || call("POST", "/charges?hold", Some("charge"), None);
    let claimed = desk.begin().await?;
    let performing = desk.perform(&claimed, charge());
    let meanwhile = async {
        desk.provider.wait_for_calls(1).await?;
        // A person has looked into the provider's records.
        desk.work
            .execute(
                "UPDATE receipts SET state = 'verified', answer_kind = 'http', answer_status = 200,
                     answer_headers = '[]', answer_body = 'seen', answer_truncated = false, answered_at = now()",
            )
            .await?;
        desk.provider.release();
        anyhow::Ok(())
    };
    let (reply, meanwhile) = tokio::join!(performing, meanwhile);
    meanwhile?;
    assert_eq!(told(&reply), "nothing");
    assert_eq!(desk.end(&claimed).await?, "Rerun");
    desk.work.let_time_pass().await?;
    let again = desk.begin().await?;
    let EffectReply::Answered(Answer::Http(heard)) = desk.perform(&again, charge()).await else {
        panic!("no answer");
    };
    assert_eq!((heard.status, heard.body.as_slice()), (200, &b"seen"[..]));
    assert_eq!(desk.end(&again).await?, "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}
