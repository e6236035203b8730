use std::time::Duration;

use counterfoil_domain::key::Scope;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::told;
use crate::world::World;

#[tokio::test]
async fn one_idempotency_key_starts_one_run() {
    let world = World::new().await;
    world.set_up().await;
    let key = world.key(Scope::Operator);
    let path = "/v1/workflows/pay/runs";
    let start = async |idempotency_key: &'static str, body: &'static str| {
        world.ask(key, "POST", path, &[("idempotency-key", idempotency_key)], body).await
    };
    let first = start("k", r#"{"input":{"cents":1}}"#).await.with(201);
    let again = start("k", r#"{"input":{"cents":1}}"#).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.with(201), first);
    // As another program writes it.
    let written = start("k", "{ \"record\": null, \"input\": { \"cents\": 1 } }\n").await;
    assert_eq!(written.with(201), first);
    assert_eq!(start("k", r#"{"input":{"cents":2}}"#).await.with(422)["code"], "idempotency_key_reused");
    // The host died after the run was admitted, before its answer was kept; a minute has passed.
    world.work.execute("UPDATE idempotent_requests SET status = NULL, body = NULL").await.expect("executes");
    let busy = start("k", r#"{"input":{"cents":1}}"#).await;
    assert_eq!(busy.header("retry-after"), "2");
    assert_eq!(busy.with(409)["code"], "idempotency_key_busy");
    world
        .work
        .execute("UPDATE idempotent_requests SET begun_at = now() - interval '61 seconds'")
        .await
        .expect("executes");
    assert_eq!(start("k", r#"{"input":{"cents":1}}"#).await.with(200), first, "the same run");
    assert_ne!(start("other", r#"{"input":{"cents":1}}"#).await.with(201)["id"], first["id"]);
    // A failure frees its key.
    start("f", r#"{"input":7,"record":""}"#).await.with(400);
    start("f", r#"{"input":7}"#).await.with(201);
}

#[tokio::test]
async fn a_caller_that_is_gone_leaves_its_answer_to_a_repeat() {
    /// Of a request that takes a few milliseconds.
    const GIVEN_UP_AFTER_MS_MAX: u64 = 16;
    let world = World::new().await;
    world.set_up().await;
    let start = async |key: &str| {
        let headers = [("idempotency-key", key)];
        world.ask(world.key(Scope::Operator), "POST", "/v1/workflows/pay/runs", &headers, "{}").await
    };
    for ms in 1..=GIVEN_UP_AFTER_MS_MAX {
        let key = format!("given-up-after-{ms}");
        // Whether it is answered in that time does not matter.
        let _ = timeout(Duration::from_millis(ms), start(&key)).await;
        let repeat = timeout(Duration::from_secs(10), async {
            loop {
                let answer = start(&key).await;
                if answer.status != 409 {
                    return answer;
                }
            }
        });
        repeat.await.unwrap_or_else(|_| panic!("{key} is busy though nobody works at it")).with(201);
    }
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_with_its_place() {
    let world = World::new().await;
    world.set_up().await;
    let large = "x".repeat(262_144);
    for (body, status, code) in [
        (json!({ "input": "a\u{0}" }), 400, "bad_request"),
        (json!({ "record": "a\u{0}" }), 400, "bad_request"),
        (json!({ "inputs": {} }), 400, "bad_request"),
        (json!([{ "cents": 1 }, "order-1"]), 400, "bad_request"),
        (json!({ "input": large }), 413, "input_too_large"),
    ] {
        let refused = world.call("POST", "/v1/workflows/pay/runs", body).await.with(status);
        assert_eq!(refused["code"], code);
    }
    let refused = world.call("POST", "/v1/workflows/nope/runs", json!({})).await.with(404);
    assert_eq!(refused["code"], "not_found");
}

#[tokio::test]
async fn runs_are_found_by_what_people_know_of_them() {
    let world = World::new().await;
    world.set_up().await;
    let (blocked, _) = world.blocked().await;
    let run = world
        .call("POST", "/v1/workflows/pay/runs", json!({ "input": { "cents": 0 }, "record": "order-2" }))
        .await;
    let waiting = run.with(201)["id"].clone();
    for (query, expected) in [
        ("", vec![&waiting, &json!(blocked)]),
        ("state=blocked", vec![&json!(blocked)]),
        ("state=waiting", vec![&waiting]),
        ("state=failed", vec![]),
        ("record=order-1", vec![&json!(blocked)]),
        ("record=order-9", vec![]),
        ("record=%00", vec![]),
        ("workflow=pay&record=order-2", vec![&waiting]),
        ("workflow=other", vec![]),
        ("workflow=%00", vec![]),
    ] {
        let found = world.get(&format!("/v1/runs?{query}")).await.with(200);
        let ids: Vec<&Value> =
            found["items"].as_array().expect("a list").iter().map(|run| &run["id"]).collect();
        assert_eq!(ids, expected, "{query}");
    }
    world.get("/v1/runs?state=sleeping").await.with(400);
}

#[tokio::test]
async fn the_timeline_tells_of_every_step_in_the_order_of_the_plan() {
    let world = World::new().await;
    world.set_up().await;
    let (run, _) = world.blocked().await;
    let timeline = world.get(&format!("/v1/runs/{run}/timeline")).await.with(200);
    insta::assert_snapshot!(told::json(&timeline));
    let effects = world.get(&format!("/v1/runs/{run}/effects")).await.with(200);
    assert_eq!(effects["items"][0], timeline["entries"][2]["effects"][0]);
    let shown = world.get(&format!("/v1/runs/{run}")).await.with(200);
    assert_eq!(shown, timeline["run"]);
}

#[tokio::test]
async fn a_cancelled_run_ends_and_what_it_sent_can_still_be_resolved() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let path = format!("/v1/runs/{run}");
    let resumed = world.call("POST", &format!("{path}/resume"), Value::Null).await.with(200);
    assert_eq!(resumed, json!({ "resumed": 0, "blocked": 1 }));
    let cancelled = world.call("POST", &format!("{path}/cancel"), Value::Null).await.with(200);
    assert_eq!(cancelled["state"], "cancelled");
    let again = world.call("POST", &format!("{path}/cancel"), Value::Null).await.with(409);
    assert_eq!(again["code"], "conflict");
    let body = json!({ "outcome": "verified", "evidence": "seen in their books", "answer": { "status": 200, "body": "" } });
    let resolved = world.call("POST", &format!("/v1/effects/{}/resolve", receipt.id), body).await.with(200);
    assert_eq!((&resolved["to"], &resolved["resumed"]), (&json!("verified"), &json!(false)));
    let audit = &world.get(&format!("{path}/timeline")).await.with(200)["audit"];
    let actions: Vec<&str> =
        audit.as_array().expect("a list").iter().filter_map(|row| row["action"].as_str()).collect();
    assert_eq!(actions, ["run.cancel", "effect.resolve"], "{audit}");
}
