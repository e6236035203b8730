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
    assert_eq!(checked, json!({ "name": "pay", "valid": true }));
    world.get("/v1/workflows/pay").await.with(404);

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
