use counterfoil_domain::key::Scope;
use serde_json::{Value, json};

use crate::world::World;

const ASK: &str =
    "name: ask\nsteps:\n  - ok: { approval: { title: Pay?, form: { type: object, required: [limit] } } }\n";

impl World {
    /// A run whose step waits for a person. Returns the question.
    pub(crate) async fn asked(&self) -> Value {
        self.ask(self.key(Scope::Author), "PUT", "/v1/workflows/ask", &[], ASK).await.json();
        self.call("POST", "/v1/workflows/ask/activate", json!({})).await.json();
        let run = self.call("POST", "/v1/workflows/ask/runs", json!({ "input": {} })).await.with(201);
        let step = self.claim().await;
        let what = counterfoil_store::waiting::Awaited::Approval {
            node: "ok".into(),
            title: "Pay?".into(),
            detail: json!({ "order": "o-1" }),
            form: Some(json!({ "type": "object", "required": ["limit"] })),
        };
        let wish = counterfoil_store::waiting::Await {
            fence: step.fence,
            run: step.run,
            what,
            timeout: None,
            seen: 0,
        };
        self.work.store.wait_for(&wish).await.expect("waits");
        let listed = self.get("/v1/approvals?state=open").await.with(200);
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
        assert_eq!(listed["items"][0]["run"], run["id"]);
        listed["items"][0].clone()
    }
}

#[tokio::test]
async fn an_approval_is_decided_once_with_what_its_form_asks_for() {
    let world = World::new().await;
    let asked = world.asked().await;
    let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap_or_default());
    let refused = world.call("POST", &path, json!({ "approved": true, "answer": {} })).await.with(400);
    assert_eq!(refused["errors"][0]["pointer"], "/answer");
    world.ask(world.key(Scope::Viewer), "POST", &path, &[], r#"{"approved":true}"#).await.with(403);
    let decision = json!({ "approved": true, "answer": { "limit": 3 } });
    let decided = world.call("POST", &path, decision.clone()).await.with(200);
    assert_eq!((&decided["outcome"], &decided["answer"]), (&json!("approved"), &json!({ "limit": 3 })));
    assert!(decided["decided_by"].is_string() && decided["decided_at"].is_string(), "{decided}");
    let again = world.call("POST", &path, decision).await.with(409);
    assert_eq!(again["code"], "already_decided");
    assert_eq!(world.get(&path).await.with(200), decided);
    assert_eq!(world.get("/v1/approvals?state=open").await.with(200)["items"], json!([]));
    assert_eq!(world.get("/v1/approvals").await.with(200)["items"][0], decided);
}

#[tokio::test]
async fn a_signal_is_kept_for_its_run() {
    let world = World::new().await;
    let asked = world.asked().await;
    let path = |name: &str| format!("/v1/runs/{}/signals/{name}", asked["run"].as_str().unwrap_or_default());
    let sent = world.call("POST", &path("reply"), json!({ "data": { "n": 1 } })).await.with(202);
    assert_eq!((&sent["run"], &sent["name"]), (&asked["run"], &json!("reply")));
    world.call("POST", &path("Reply"), json!({})).await.with(400);
    world.call("POST", &path("reply"), json!({ "date": 1 })).await.with(400);
    let key = world.key(Scope::Operator);
    for _ in 0..2 {
        world.ask(key, "POST", &path("reply"), &[("idempotency-key", "k")], "{}").await.with(202);
    }
    assert_eq!(world.work.count("SELECT count(*) FROM signals").await.expect("counts"), 2);
    let cancel = format!("/v1/runs/{}/cancel", asked["run"].as_str().unwrap_or_default());
    world.call("POST", &cancel, json!({})).await.with(200);
    assert_eq!(world.call("POST", &path("reply"), json!({})).await.with(409)["code"], "run_ended");
    world.call("POST", "/v1/runs/run_00000000000000000000000001/signals/x", json!({})).await.with(404);
}
