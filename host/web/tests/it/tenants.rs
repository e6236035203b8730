//! Another tenant's id answers exactly like one that does not exist.

use counterfoil_domain::id::TenantId;
use counterfoil_domain::key::Scope;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::scopes::operations;
use crate::world::{Answer, World};

/// What a stranger may learn of an answer.
fn seen(answer: &Answer) -> (u16, String, Value) {
    let mut body = serde_json::from_str(&answer.text).unwrap_or(Value::Null);
    if let Some(fields) = body.as_object_mut() {
        fields.remove("request_id");
    }
    (answer.status.as_u16(), answer.header("content-type").to_owned(), body)
}

/// A good body for each call that takes one, so that the id is what decides.
fn body(method: &str, path: &str) -> String {
    match (method, path) {
        ("POST", "/v1/effects/{id}/resolve") => {
            json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200, "body": "" } })
                .to_string()
        }
        ("POST", "/v1/workers/tasks/{id}/fail") => {
            json!({ "claim": Uuid::nil(), "message": "no" }).to_string()
        }
        ("POST", path) if path.starts_with("/v1/workers/tasks/") => {
            json!({ "claim": Uuid::nil() }).to_string()
        }
        ("POST", "/v1/approvals/{id}") => json!({ "approved": true, "answer": { "limit": 1 } }).to_string(),
        _ => String::new(),
    }
}

/// As if the effect were work for a worker.
const QUEUED: &str = "INSERT INTO worker_tasks (tenant_id, id, step_id, queue, input, claim_until, timeout)
    SELECT tenant_id, id, step_id, 'papers', '1', now() + interval '1 hour', '1 hour' FROM receipts";

#[tokio::test]
async fn a_stranger_learns_nothing_from_any_route() {
    let world = World::new().await;
    world.set_up().await;
    let base = json!({ "base_url": "https://api.example.com" });
    world.call("PUT", "/v1/connections/payments", base).await.with(200);
    let (run, receipt) = world.blocked().await;
    world.work.execute(QUEUED).await.expect("queues it");
    let event = world.call("POST", "/v1/events", json!({ "type": "order.placed" })).await.with(202)["events"]
        [0]["id"]
        .clone();
    let key = world.get("/v1/keys").await.with(200)["items"][0]["id"].clone();
    let asked = world.asked().await["id"].clone();
    let stranger = world.new_tenant(TenantId(Uuid::now_v7()), "other").await;
    let stranger = &stranger[&Scope::Admin];
    let before = world.get(&format!("/v1/runs/{run}/timeline")).await.with(200);

    let mut tried = 0;
    for (method, path, _) in operations() {
        let ours = match path.split('/').nth(2).expect("a noun") {
            "blocks" => "charge-card".to_owned(),
            "workflows" => "pay".to_owned(),
            "connections" => "payments".to_owned(),
            "runs" => run.to_string(),
            // A task has the id of its effect.
            "effects" | "workers" => receipt.id.to_string(),
            "approvals" => asked.as_str().expect("an id").to_owned(),
            "events" => event.as_str().expect("an id").to_owned(),
            "keys" => key.as_str().expect("an id").to_owned(),
            // There is one for each tenant, which has no name.
            "limits" => String::new(),
            noun => panic!("say what a {noun} is called"),
        };
        let unknown = match ours.split_once('_') {
            Some((prefix, _)) => format!("{prefix}_01h455vb4pex5vsknk084sn02q"),
            None => "nope".to_owned(),
        };
        // What is created under a name of one's own is one's own.
        let creates = method == "PUT" || (method == "POST" && path == "/v1/blocks/{name}");
        if !path.contains('{') || creates {
            continue;
        }
        let mut answers = Vec::new();
        for name in [&ours, &unknown] {
            let uri = path
                .replace("/signals/{name}", "/signals/reply")
                .replace("{name}", name)
                .replace("{id}", name)
                .replace("{number}", "1");
            answers.push(seen(&world.ask(stranger, &method, &uri, &[], body(&method, &path)).await));
        }
        assert_eq!(answers[0], answers[1], "{method} {path}");
        assert_eq!(answers[0].0, 404, "{method} {path}");
        tried += 1;
    }
    assert!(tried >= 20, "{tried}");

    for path in ["blocks", "workflows", "runs", "effects", "connections"] {
        let listed = world.ask(stranger, "GET", &format!("/v1/{path}"), &[], "").await.with(200);
        assert_eq!(listed["items"], json!([]), "{path}");
    }
    let filtered = world.ask(stranger, "GET", &format!("/v1/effects?run={run}"), &[], "").await.with(200);
    assert_eq!(filtered["items"], json!([]));
    let mut after = world.get(&format!("/v1/runs/{run}/timeline")).await.with(200);
    for field in ["now", "duration_ms", "entries", "gaps"] {
        after[field] = before[field].clone();
    }
    assert_eq!(after, before, "nothing was changed");
}
