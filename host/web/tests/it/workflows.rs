use std::cell::Cell;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use counterfoil_domain::key::Scope;
use serde_json::{Value, json};

use crate::told;
use crate::world::{DEFINITION, World};

#[tokio::test]
async fn a_definition_becomes_a_version_is_activated_and_reads_back() {
    let world = World::new().await;
    let key = world.key(Scope::Author);
    let save = |text: String| {
        world.ask(key, "PUT", "/v1/workflows/pay", &[("content-type", "application/yaml")], text)
    };
    let refused = save(DEFINITION.into()).await.with(422);
    assert_eq!(
        refused["errors"][0]["pointer"], "/steps/1/decide/switch/0/do/0/charge/block",
        "no such block yet"
    );

    world.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges").await.with(201);
    let checked = world.ask(key, "PUT", "/v1/workflows/pay?check=true", &[], DEFINITION).await.with(200);
    let warning = json!({
        "pointer": "/steps/1/decide/switch/0/do/0/charge/block",
        "code": "connection_unknown",
        "detail": "there is no connection `payments`: block `charge-card` cannot call through it until it is set",
        "line": 11,
        "column": 32,
    });
    assert_eq!(checked, json!({ "name": "pay", "valid": true, "warnings": [warning] }));
    world.get("/v1/workflows/pay").await.with(404);
    let connection = json!({ "base_url": "https://payments.example.com" });
    world.call("PUT", "/v1/connections/payments", connection).await.with(200);
    let checked = world.ask(key, "PUT", "/v1/workflows/pay?check=true", &[], DEFINITION).await.with(200);
    assert_eq!(checked, json!({ "name": "pay", "valid": true }));

    let first = save(DEFINITION.into()).await.with(201);
    assert_eq!(save(DEFINITION.into()).await.with(200)["unchanged"], true);
    world.ask(key, "POST", "/v1/blocks/charge-card", &[], "charges better").await.with(201);
    let second = save(DEFINITION.into()).await.with(201);
    assert_eq!(second["version"], 2, "a newer block is pinned by a newer version");

    let inactive = world.call("POST", "/v1/workflows/pay/runs", json!({})).await.with(409);
    assert_eq!(inactive["code"], "workflow_not_active");
    world.call("POST", "/v1/workflows/pay/activate", json!({ "version": 3 })).await.with(404);
    let active = world.call("POST", "/v1/workflows/pay/activate", json!({ "version": 1 })).await.with(200);
    world.call("POST", "/v1/workflows/pay/pause", Value::Null).await.with(200);
    let paused = world.call("POST", "/v1/workflows/pay/runs", json!({})).await.with(409);
    assert_eq!(paused["code"], "workflow_paused");

    let mut shown = vec![first, second, active];
    for path in ["", "/pay", "/pay/versions", "/pay/versions/1"] {
        shown.push(world.get(&format!("/v1/workflows{path}")).await.with(200));
    }
    world.call("POST", "/v1/workflows/pay/resume", Value::Null).await.with(200);
    insta::assert_snapshot!(told::json(&Value::Array(shown)));
}

/// What is saved and activated as `flow`, and with which answers.
struct Flow<'a>(&'a World);

impl Flow<'_> {
    async fn save(&self, steps: &str) -> Value {
        let text = format!("name: flow\nsteps:\n{steps}");
        let saved = self.0.ask(self.0.key(Scope::Author), "PUT", "/v1/workflows/flow", &[], text).await;
        assert!(saved.status.is_success(), "{}", saved.text);
        saved.json()
    }

    async fn activate(&self, body: Value) -> crate::world::Answer {
        self.0.call("POST", "/v1/workflows/flow/activate", body).await
    }
}

#[tokio::test]
async fn a_version_that_changes_side_effects_is_activated_only_if_that_is_accepted() {
    let world = World::new().await;
    let flow = Flow(&world);
    let charge =
        |url: &str| format!("  - charge: {{ http: {{ method: POST, url: \"{url}\", body: {{}} }} }}\n");
    let first = charge("https://a.example/charges");
    assert_eq!(flow.save(&first).await["diff"], Value::Null, "nothing is active");
    let none = world.get("/v1/workflows/flow/diff").await.with(409);
    assert_eq!(none["code"], "workflow_not_active");
    flow.activate(json!({})).await.with(200);

    // No effect comes behind what is added.
    let pure = flow.save(&format!("{first}  - note: {{ set: 1 }}\n")).await;
    assert_eq!(pure["diff"]["touches_side_effects"], false, "{pure}");
    flow.activate(json!({})).await.with(200);

    let elsewhere = charge("https://b.example/charges");
    let risky = flow.save(&format!("  - wait: {{ delay: 1h }}\n{elsewhere}  - note: {{ set: 1 }}\n")).await;
    let refused = flow.activate(json!({})).await.with(409);
    let still = world.get("/v1/workflows/flow").await.with(200);
    assert_eq!((&still["active"], &still["newest"]), (&json!(2), &json!(3)));
    flow.activate(json!({ "accept": true })).await.with(200);
    let back = flow.activate(json!({ "version": 2 })).await.with(409);
    assert_eq!(back["code"], "side_effects_changed", "an older version is judged too");
    let shown = world.get("/v1/workflows/flow/diff?from=1&to=2").await.with(200);
    world.get("/v1/workflows/flow/diff?from=1&to=7").await.with(404);
    insta::assert_snapshot!(told::json(&json!([risky, refused, shown])));
}

#[tokio::test]
async fn an_older_version_that_would_start_itself_again_is_not_activated() {
    let world = World::new().await;
    let flow = Flow(&world);
    let save = async |name: &str, text: &str| {
        let path = format!("/v1/workflows/{name}");
        world.ask(world.key(Scope::Author), "PUT", &path, &[], text.to_owned()).await
    };
    flow.save("  - other: { workflow: other }\n").await;
    flow.activate(json!({})).await.with(200);
    flow.save("  - nothing: { set: 1 }\n").await;
    flow.activate(json!({ "accept": true })).await.with(200);
    // While the second version is active, this one is no cycle.
    save("other", "name: other\nsteps:\n  - flow: { workflow: flow }\n").await.with(201);
    world.call("POST", "/v1/workflows/other/activate", json!({})).await.with(200);
    let refused = flow.activate(json!({ "version": 1, "accept": true })).await.with(422);
    assert_eq!(refused["code"], "definition_invalid");
    assert_eq!(refused["errors"][0]["code"], "cycle");
    assert_eq!(
        refused["errors"][0]["detail"],
        "this starts the workflow again, without end: flow → other → flow"
    );
    assert_eq!(world.get("/v1/workflows/flow").await.with(200)["active"], 2);
}

#[tokio::test]
async fn every_problem_of_a_definition_is_told_with_its_place() {
    let world = World::new().await;
    let text = "name: pay\nsteps:\n  - a: { block: nope }\n  - b: { set: \"=steps.c.output\" }\n  - b: { delay: soon }\n";
    let refused = world.ask(world.key(Scope::Author), "PUT", "/v1/workflows/pay", &[], text).await;
    assert_eq!(refused.header("content-type"), "application/problem+json");
    insta::assert_snapshot!(told::json(&refused.with(422)));
    let other_name = "name: other\nsteps:\n  - a: { delay: 1s }\n";
    let refused =
        world.ask(world.key(Scope::Author), "PUT", "/v1/workflows/pay", &[], other_name).await.with(400);
    assert_eq!(refused["errors"][0]["pointer"], "/name");
    let large = "#".repeat((256 << 10) + 1);
    world.ask(world.key(Scope::Author), "PUT", "/v1/workflows/pay", &[], large).await.with(413);
    world.ask(world.key(Scope::Author), "PUT", "/v1/workflows/pay", &[], vec![0xff]).await.with(400);
}

/// As large as definitions may be, with as many expressions as they may have.
fn large_definition() -> String {
    let mut text = String::from("name: large\nsteps:\n");
    for step in 0..500 {
        let reads = if step == 0 { "input".to_owned() } else { format!("steps.s{}.output", step - 1) };
        let value =
            |n| format!("=has({reads}.a) && {reads}.a > {n} ? [{reads}.a, {n} * 2 + 1] : [[1, 2], [3]][0]");
        let values: Vec<String> = (0..4).map(|n| format!("v{n}: \"{}\"", value(n))).collect();
        writeln!(text, "  - s{step}: {{ set: {{ {} }} }}", values.join(", ")).expect("a string takes all");
    }
    text
}

// One thread serves: whatever is computed on it is in everybody's way.
#[tokio::test]
async fn others_are_answered_while_a_large_definition_is_saved() {
    let world = World::new().await;
    let definition = large_definition();
    assert!(definition.len() > 220 << 10, "{}", definition.len());
    let is_saved = Cell::new(false);
    let saving = async {
        let began = Instant::now();
        let path = "/v1/workflows/large";
        world.ask(world.key(Scope::Author), "PUT", path, &[], definition).await.with(201);
        is_saved.set(true);
        began.elapsed()
    };
    let asking = async {
        let mut slowest = Duration::ZERO;
        while !is_saved.get() {
            let due = Instant::now();
            tokio::task::yield_now().await;
            assert_eq!(world.get("/livez").await.status, 200);
            slowest = slowest.max(due.elapsed());
        }
        slowest
    };
    let (took, slowest) = tokio::join!(saving, asking);
    assert!(slowest < took / 2, "{slowest:?} of {took:?}");
}
