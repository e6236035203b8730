//! Work for workers outside the host: queued with its receipt, and handed over when it is answered.

use counterfoil_domain::effect::{Answer, EffectCall, EffectReply, EffectRequest, Safety};
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_domain::receipt::task::{Said, TookPlace};
use counterfoil_store::step::Claimed;
use counterfoil_store::worker::{Poll, Task, TasksEnd, Told};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Desk, LEASE, call, grant, told};

fn work(queue: &str, input: &str, safety: Option<Safety>) -> EffectCall {
    EffectCall {
        request: EffectRequest::Worker { queue: queue.into(), input: input.into() },
        connection: None,
        ..call("POST", "/", Some("work"), safety)
    }
}

async fn take(desk: &Desk) -> anyhow::Result<Option<Task>> {
    let queues = ["papers".to_owned()];
    let poll = Poll { worker: "w", queues: &queues, claim: Uuid::now_v7(), tasks_max: 1, lease: LEASE };
    Ok(desk.work.store.poll_tasks(desk.work.tenant, &poll).await?.pop())
}

async fn say(desk: &Desk, task: &Task, said: Said) -> anyhow::Result<Told> {
    Ok(desk.work.store.answer_task(desk.work.tenant, task.id, task.claim, said).await?)
}

/// Performs, and ends as the engine would.
async fn queue(desk: &Desk, claimed: &Claimed, call: EffectCall) -> anyhow::Result<String> {
    let reply = desk.perform(claimed, call).await;
    Ok(format!("{}, {}", told(&reply), desk.end(claimed).await?))
}

#[tokio::test]
async fn a_step_that_gave_work_away_waits_and_hears_what_came_of_it() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("a").await?;
    let claimed = desk.begin().await?;
    // What was answered before is durable before the work is queued.
    assert_eq!(told(&desk.perform(&claimed, call("POST", "/charges", Some("c"), None)).await), "answer 201");
    assert_eq!(queue(&desk, &claimed, work("papers", "{\"n\": 1}", None)).await?, "nothing, Queued");
    assert_eq!(desk.work.receipts().await?, ["c:0 committed", "work:0 dispatched"]);
    assert!(desk.work.claim(LEASE).await.is_err(), "the step waits");
    let lies = "SELECT count(*) FROM worker_tasks t JOIN receipts r USING (tenant_id, id)
        WHERE r.dispatched_at = queued_at AND absence_known_at = claim_until + timeout + interval '20 seconds'";
    assert_eq!(desk.work.count(lies).await?, 1);
    let task = take(&desk).await?.expect("it lies in the queue");
    assert_eq!(task.input, json!({ "n": 1 }));
    // It was handed over now, and its worker has no more time than that.
    let is_taken = "SELECT count(*) FROM worker_tasks t JOIN receipts r USING (tenant_id, id)
        WHERE r.dispatched_at = claimed_at AND absence_known_at = claimed_at + timeout + interval '20 seconds'";
    assert_eq!(desk.work.count(is_taken).await?, 1);
    assert_eq!(take(&desk).await?, None);
    let done = Said::Done { output: json!({ "pages": 3 }) };
    assert_eq!(say(&desk, &task, done).await?, Told::Recorded { state: ReceiptState::Committed });

    let again = desk.begin().await?;
    assert_eq!(told(&desk.perform(&again, call("POST", "/charges", Some("c"), None)).await), "answer 201");
    let reply = desk.perform(&again, work("papers", "{\"n\": 1.0}", None)).await;
    let EffectReply::Answered(Answer::Worker(output)) = reply else { panic!("{reply:?}") };
    assert_eq!(serde_json::from_str::<Value>(&output)?, json!({ "pages": 3 }));
    assert_eq!(desk.end(&again).await?, "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    assert_eq!(desk.work.count("SELECT count(*) FROM worker_tasks").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_task_is_taken_only_while_its_receipt_is_dispatched() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("a").await?;
    let claimed = desk.begin().await?;
    queue(&desk, &claimed, work("papers", "1", None)).await?;
    for state in ["unknown", "rejected"] {
        let statement = match state {
            "unknown" => "UPDATE receipts SET state = 'unknown', unresolved = true",
            _ => "UPDATE receipts SET state = 'rejected', unresolved = false, answer_kind = 'not-sent'",
        };
        desk.work.execute(statement).await?;
        assert_eq!(take(&desk).await?, None, "{state}");
    }
    desk.work.execute("UPDATE receipts SET state = 'dispatched', answer_kind = NULL").await?;
    // Its step is another's at the moment: whoever has that may end the task.
    desk.work.let_time_pass().await?;
    let early = desk.work.claim(LEASE).await?;
    assert_eq!(take(&desk).await?, None);
    assert_eq!(desk.work.store.end_tasks(&early.fence).await?, TasksEnd::Waits, "its time is not over");
    assert!(take(&desk).await?.is_some());
    assert_eq!(desk.work.store.end_tasks(&early.fence).await?, TasksEnd::Lost);
    Ok(())
}

/// What follows when the step is claimed again, by what became of its task.
#[tokio::test]
async fn what_becomes_of_a_task_decides_how_its_step_goes_on() -> anyhow::Result<()> {
    let failed = |took_place| Said::Failed { code: "c".into(), message: "m".into(), took_place };
    let (at_most_once, idempotent) = (None, Some(Safety::Idempotent));
    let nothing = |again| Some(failed(TookPlace::Nothing { again }));
    for (name, safety, is_taken, said, expected) in [
        ("never taken", at_most_once, false, None, "not sent, settled: work:0 rejected"),
        ("taken and left", at_most_once, true, None, "nothing, blocked: work:0 unknown"),
        ("failed", at_most_once, true, Some(failed(TookPlace::Maybe)), "nothing, blocked: work:0 unknown"),
        ("in vain", at_most_once, true, nothing(true), "not sent, settled: work:0 rejected"),
        ("refused", at_most_once, true, nothing(false), "rejected 422, settled: work:0 rejected"),
        ("taken and left, repeatable", idempotent, true, None, "nothing, waits: work:0 unknown"),
        (
            "failed, repeatable",
            idempotent,
            true,
            Some(failed(TookPlace::Maybe)),
            "nothing, waits: work:0 unknown",
        ),
    ] {
        let desk = Desk::new().await?;
        desk.work.admit("a").await?;
        let claimed = desk.begin().await?;
        assert_eq!(queue(&desk, &claimed, work("papers", "1", safety)).await?, "nothing, Queued", "{name}");
        if is_taken {
            let task = take(&desk).await?.expect(name);
            if let Some(said) = said {
                say(&desk, &task, said).await?;
            }
        }
        desk.work.execute("UPDATE worker_tasks SET claim_until = now(), lease_until = CASE WHEN waiting THEN NULL ELSE now() END").await?;
        desk.work.let_time_pass().await?;
        let again = desk.begin().await?;
        if again.wait == counterfoil_store::step::Wait::Worker {
            assert_eq!(desk.work.store.end_tasks(&again.fence).await?, TasksEnd::Over, "{name}");
        }
        let came = queue(&desk, &again, work("papers", "1", safety)).await?;
        assert_eq!(format!("{came}: {}", desk.work.receipts().await?.join(" ")), expected, "{name}");
        if safety.is_some() {
            // The next attempt queues it anew, under the same key.
            let next = desk.begin().await?;
            assert_eq!(queue(&desk, &next, work("papers", "1", safety)).await?, "nothing, Queued", "{name}");
            assert_eq!(desk.work.receipts().await?, ["work:0 unknown", "work:1 dispatched"], "{name}");
            let task = take(&desk).await?.expect(name);
            say(&desk, &task, Said::Done { output: json!(1) }).await?;
            assert_eq!(desk.work.receipts().await?, ["work:0 verified", "work:1 committed"], "{name}");
            let keys = "SELECT count(DISTINCT idempotency_key) FROM receipts";
            assert_eq!(desk.work.count(keys).await?, 1, "{name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn work_that_is_none_is_denied_and_nothing_is_queued() -> anyhow::Result<()> {
    let good = work("papers", "{}", None);
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (name, call) in [
        ("a queue that is no name", work("Papers", "{}", None)),
        ("input that is no JSON", work("papers", "{", None)),
        ("input with a NUL", work("papers", "\"\\u0000\"", None)),
        ("input that is nested too deeply", work("papers", &deep, None)),
        ("input that is too large", work("papers", &format!("\"{}\"", "x".repeat(256 << 10)), None)),
        ("reading", work("papers", "{}", Some(Safety::ReadOnly))),
        ("a connection", EffectCall { connection: Some("p".into()), ..good.clone() }),
        ("a key that is none", EffectCall { idempotency_key: Some("\n".into()), ..good.clone() }),
        ("no time", EffectCall { timeout_ms: Some(0), ..good.clone() }),
        (
            "a time that is none",
            EffectCall { extra: vec![("claim-within-ms".into(), "soon".into())], ..good.clone() },
        ),
        ("another addition", EffectCall { extra: vec![("priority".into(), "1".into())], ..good.clone() }),
    ] {
        let desk = Desk::new().await?;
        desk.work.admit("a").await?;
        let claimed = desk.begin().await?;
        assert_eq!(queue(&desk, &claimed, call).await?, "denied, settled", "{name}");
        assert_eq!(desk.work.count("SELECT count(*) FROM worker_tasks").await?, 0, "{name}");
    }
    // What a block did not declare.
    let desk = Desk::new().await?;
    desk.work.admit("a").await?;
    let claimed = desk.work.claim(LEASE).await?;
    let mut context = desk.context(&claimed);
    context.grants = Some(vec![grant("http", Safety::AtMostOnce)]);
    desk.guard.begin(context);
    assert_eq!(queue(&desk, &claimed, good).await?, "denied, settled");
    Ok(())
}
