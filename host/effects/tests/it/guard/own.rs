//! Effects on our own database: nothing of them is there until the step succeeds, and then all of it, once.

use counterfoil_domain::effect::{EffectCall, EffectRequest, Safety, StorageRequest};
use counterfoil_domain::limits::{
    EMIT_DATA_BYTES_MAX, NAME_BYTES_MAX, OWN_CHANGES_BYTES_MAX, STORAGE_KEY_BYTES_MAX,
    STORAGE_VALUE_BYTES_MAX,
};
use counterfoil_effects::{ExecutionContext, Finished};
use counterfoil_store::step::Claimed;
use counterfoil_testkit::provider::Act;

use super::{Desk, call, grant, told};

fn plain(request: EffectRequest) -> EffectCall {
    EffectCall { request, connection: None, ..call("GET", "/", None, None) }
}

fn emit(event_type: &str, data: &str) -> EffectCall {
    let (event_type, record_id) = (event_type.into(), Some("o-1".into()));
    plain(EffectRequest::Emit { event_type, record_id, data: data.into() })
}

fn get(key: &str) -> EffectCall {
    plain(EffectRequest::Storage(StorageRequest::Get(key.into())))
}

fn put(key: &str, value: &str) -> EffectCall {
    plain(EffectRequest::Storage(StorageRequest::Put(key.into(), value.into())))
}

fn delete(key: &str) -> EffectCall {
    plain(EffectRequest::Storage(StorageRequest::Delete(key.into())))
}

impl Desk {
    /// What of our own database a step may change: events, and values by key.
    async fn own(&self) -> anyhow::Result<(i64, String)> {
        let events = self.work.count("SELECT count(*) FROM events").await?;
        Ok((events, self.values().await?))
    }

    async fn values(&self) -> anyhow::Result<String> {
        let mut shown = vec![];
        for key in ["a", "b", "c"] {
            if let Some(value) = self.work.store.stored_value(self.work.tenant, key).await? {
                shown.push(format!("{key}={}", String::from_utf8_lossy(&value)));
            }
        }
        Ok(shown.join(" "))
    }

    /// Emits once and writes three keys, of which it keeps one.
    async fn change(&self, claimed: &Claimed) -> Vec<String> {
        let mut heard = vec![];
        for call in [
            emit("order.booked", r#"{"cents":500}"#),
            put("a", "1"),
            get("a"),
            put("a", "2"),
            put("b", "3"),
            get("c"),
            delete("b"),
            get("a"),
            get("b"),
        ] {
            heard.push(told(&self.perform(claimed, call).await));
        }
        heard
    }
}

const HEARD: [&str; 9] =
    ["emitted", "no value", "value 1", "no value", "no value", "no value", "no value", "value 2", "no value"];

/// Slots are numbered by call; those that the step's own writes answered have no receipt.
const RECEIPTS: [&str; 6] = [
    "#0:0 committed",
    "#1:0 committed",
    "#3:0 committed",
    "#4:0 committed",
    "#5:0 committed",
    "#6:0 committed",
];

#[tokio::test]
async fn what_a_step_changes_is_there_when_it_has_succeeded() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("book").await?;
    let claimed = desk.begin().await?;
    assert_eq!(desk.change(&claimed).await, HEARD);
    assert_eq!(desk.own().await?, (0, String::new()), "nothing before the end");
    assert_eq!(desk.work.receipts().await?, Vec::<String>::new());
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.own().await?, (1, "a=2".into()));
    assert_eq!(desk.work.receipts().await?, RECEIPTS);
    let same = "SELECT count(*) FROM events e JOIN receipts r ON r.tenant_id = e.tenant_id AND r.id = e.id
                WHERE r.kind = 'emit' AND e.type = 'order.booked' AND e.record_id = 'o-1' AND e.pending
                  AND e.data::text = '{\"cents\":500}'";
    assert_eq!(desk.work.count(same).await?, 1, "the event has its receipt's id");
    Ok(())
}

/// However an execution ends other than in success, the next one finds nothing of it and does it again.
#[tokio::test]
async fn what_does_not_succeed_has_changed_nothing() -> anyhow::Result<()> {
    for end in ["crash", "retry", "block"] {
        let desk = Desk::new().await?;
        desk.provider.script("/charges", Act::dropped());
        desk.work.admit("book").await?;
        let first = desk.begin().await?;
        assert_eq!(desk.change(&first).await, HEARD, "{end}");
        match end {
            "crash" => {
                let _ = desk.guard.finish(first.fence.lease).await;
                desk.work.let_time_pass().await?;
            }
            "retry" => {
                let finished = desk.guard.finish(first.fence.lease).await;
                assert_eq!(desk.retry(&first, finished).await?, "waits");
            }
            _ => {
                let charge = call("POST", "/charges", Some("charge"), None);
                assert_eq!(told(&desk.perform(&first, charge).await), "nothing");
                assert_eq!(desk.end(&first).await?, "blocked");
                assert_eq!(desk.own().await?, (0, String::new()), "{end}");
                continue;
            }
        }
        assert_eq!(desk.own().await?, (0, String::new()), "{end}");
        let second = desk.begin().await?;
        assert_eq!(desk.change(&second).await, HEARD, "{end}");
        assert_eq!(desk.end(&second).await?, "settled", "{end}");
        assert_eq!(desk.own().await?, (1, "a=2".into()), "{end}");
    }
    Ok(())
}

/// A later run of the lineage meets the receipts: it hears what the first one heard, whatever has been written since.
#[tokio::test]
async fn what_has_been_done_is_not_done_again() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let first_run = desk.work.admit("book").await?;
    let first = desk.begin().await?;
    desk.change(&first).await;
    assert_eq!(desk.end(&first).await?, "settled");
    desk.work.execute("UPDATE stored_values SET value = 'x'").await?;

    desk.work.admit("book").await?;
    // As a replay has it: another run of the same lineage.
    desk.work.execute("UPDATE open_steps SET lineage = (SELECT DISTINCT lineage FROM receipts)").await?;
    let again = desk.begin().await?;
    assert_ne!(again.run, first_run);
    assert_eq!(desk.change(&again).await, HEARD);
    let finished = desk.guard.finish(again.fence.lease).await;
    assert_eq!((finished.own.len(), finished.writes.len()), (0, 0));
    assert_eq!(desk.settle(&again, finished).await?, "settled");
    assert_eq!(desk.own().await?, (1, "a=x".into()));
    assert_eq!(desk.work.receipts().await?, RECEIPTS);

    // And if it asks for something else, it has diverged.
    desk.work.admit("book").await?;
    desk.work.execute("UPDATE open_steps SET lineage = (SELECT DISTINCT lineage FROM receipts)").await?;
    let other = desk.begin().await?;
    assert_eq!(told(&desk.perform(&other, emit("order.booked", r#"{"cents":501}"#)).await), "nothing");
    let end = desk.end(&other).await?;
    assert!(end.contains("Diverged"), "{end}");
    Ok(())
}

/// A read is journaled: after a crash the step hears what it heard, whatever has been written since.
#[tokio::test]
async fn a_value_that_was_read_stays_read() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("write").await?;
    let writer = desk.begin().await?;
    desk.perform(&writer, put("a", "old")).await;
    assert_eq!(desk.end(&writer).await?, "settled");

    desk.work.admit("read").await?;
    let first = desk.begin().await?;
    assert_eq!(told(&desk.perform(&first, get("a")).await), "value old");
    // The dispatch makes what was read before it durable.
    assert_eq!(told(&desk.perform(&first, call("POST", "/charges", None, None)).await), "answer 201");
    desk.guard.record_alone(desk.guard.finish(first.fence.lease).await.writes).await;
    desk.work.execute("UPDATE stored_values SET value = 'new'").await?;
    desk.work.let_time_pass().await?;
    let second = desk.begin().await?;
    assert_eq!(told(&desk.perform(&second, get("a")).await), "value old");
    assert_eq!(told(&desk.perform(&second, call("POST", "/charges", None, None)).await), "answer 201");
    assert_eq!(desk.end(&second).await?, "settled");
    assert_eq!(desk.provider.calls().len(), 1);
    Ok(())
}

/// A refusal is journaled as every other is, and nothing of it is written.
#[tokio::test]
async fn what_cannot_be_kept_is_refused() -> anyhow::Result<()> {
    let text = |len: usize| "x".repeat(len);
    let json = |len: usize| format!("\"{}\"", text(len - 2));
    let with = |call: EffectCall, change: fn(&mut EffectCall)| {
        let mut call = call;
        change(&mut call);
        call
    };
    let cases = [
        (emit(&text(NAME_BYTES_MAX), "1"), "emitted"),
        (emit(&text(NAME_BYTES_MAX + 1), "1"), "denied"),
        (emit("", "1"), "denied"),
        (emit("a\nb", "1"), "denied"),
        (emit("a", &json(EMIT_DATA_BYTES_MAX)), "emitted"),
        (emit("a", &json(EMIT_DATA_BYTES_MAX + 1)), "denied"),
        (emit("a", "{"), "denied"),
        (emit("a", ""), "denied"),
        (emit("a", r#"{"b":"\u0000"}"#), "denied"),
        (put(&text(STORAGE_KEY_BYTES_MAX), "1"), "no value"),
        (put(&text(STORAGE_KEY_BYTES_MAX + 1), "1"), "denied"),
        (get(""), "denied"),
        (delete("a\0b"), "denied"),
        (put("a", &text(STORAGE_VALUE_BYTES_MAX)), "no value"),
        (put("a", &text(STORAGE_VALUE_BYTES_MAX + 1)), "denied"),
        (put("empty", ""), "no value"),
        (get("empty"), "value "),
        (with(emit("a", "1"), |call| call.connection = Some("p".into())), "denied"),
        (with(emit("a", "1"), |call| call.safety = Some(Safety::Idempotent)), "denied"),
        (with(put("a", "1"), |call| call.safety = Some(Safety::ReadOnly)), "denied"),
        (with(put("a", "1"), |call| call.idempotency_key = Some("k".into())), "denied"),
        (with(get("empty"), |call| call.safety = Some(Safety::ReadOnly)), "value "),
    ];
    let desk = Desk::new().await?;
    desk.work.admit("odd").await?;
    let claimed = desk.begin().await?;
    let accepted = cases.iter().filter(|(_, expected)| *expected != "denied").count();
    for (call, expected) in cases {
        let shown = format!("{:.120}", format!("{call:?}"));
        assert_eq!(told(&desk.perform(&claimed, call).await), expected, "{shown}");
    }
    assert_eq!(desk.end(&claimed).await?, "settled");
    let count = |statement| desk.work.count(statement);
    assert_eq!(count("SELECT count(*) FROM receipts WHERE state = 'rejected'").await?, 15);
    assert_eq!(accepted, 7);
    let committed = count("SELECT count(*) FROM receipts WHERE state = 'committed'").await?;
    assert_eq!(committed, 5, "two reads were answered by the step's own writes");
    Ok(())
}

/// What waits for the end of a step is held in memory, and so has a bound.
#[tokio::test]
async fn a_step_changes_only_so_much() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    desk.work.admit("much").await?;
    let claimed = desk.begin().await?;
    let value = "x".repeat(STORAGE_VALUE_BYTES_MAX - 1);
    for _ in 0..OWN_CHANGES_BYTES_MAX / STORAGE_VALUE_BYTES_MAX {
        assert_eq!(told(&desk.perform(&claimed, put("a", &value)).await), "no value");
    }
    assert_eq!(told(&desk.perform(&claimed, put("a", "x")).await), "limit effect_limit");
    assert_eq!(told(&desk.perform(&claimed, emit("a", "1")).await), "limit effect_limit");
    assert_eq!(told(&desk.perform(&claimed, delete("")).await), "denied");
    assert_eq!(desk.end(&claimed).await?, "settled");
    assert_eq!(desk.values().await?, format!("a={value}"));
    Ok(())
}

/// What a block may do is what it declared: a read-only grant is for reading.
#[tokio::test]
async fn a_block_does_what_it_declared() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    for (grants, expected) in [
        (Some(vec![]), ["denied", "denied", "denied"]),
        (Some(vec![grant("storage", Safety::ReadOnly)]), ["denied", "no value", "denied"]),
        (Some(vec![grant("storage", Safety::AtMostOnce)]), ["denied", "no value", "no value"]),
        (Some(vec![grant("emit", Safety::AtMostOnce)]), ["emitted", "denied", "denied"]),
        (Some(vec![grant("emit", Safety::ReadOnly)]), ["denied", "denied", "denied"]),
        (None, ["emitted", "no value", "no value"]),
    ] {
        desk.work.admit("step").await?;
        let claimed = desk.work.claim(super::LEASE).await?;
        let shown = format!("{grants:?}");
        desk.guard.begin(ExecutionContext { grants, ..desk.context(&claimed) });
        let mut heard = vec![];
        for call in [emit("a", "1"), get("b"), put("b", "1")] {
            heard.push(told(&desk.perform(&claimed, call).await));
        }
        assert_eq!(heard, expected, "{shown}");
        let _: Finished = desk.guard.finish(claimed.fence.lease).await;
    }
    Ok(())
}
