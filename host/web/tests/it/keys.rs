use counterfoil_domain::key::Scope;
use serde_json::json;

use crate::told;
use crate::world::World;

const FORGOTTEN: &str =
    "UPDATE idempotent_requests SET status = NULL, body = NULL, begun_at = now() - interval '61 seconds'";

#[tokio::test]
async fn a_key_is_shown_once_holds_and_ends_when_it_is_revoked() {
    let world = World::new().await;
    let body = json!({ "scope": "operator", "label": "ci" }).to_string();
    let headers = [("idempotency-key", "k1")];
    let create = || world.ask(world.key(Scope::Admin), "POST", "/v1/keys", &headers, body.clone());
    let created = create().await.with(201);
    let key = created["key"].as_str().expect("a key").to_owned();
    let id = created["id"].as_str().expect("an id");
    let repeated = create().await;
    assert_eq!(repeated.header("idempotent-replayed"), "true");
    let repeated = repeated.with(201);
    assert_eq!((&repeated["id"], &repeated["key"]), (&created["id"], &json!(null)));
    // The host died after the key was made, before its answer was kept; a minute has passed.
    world.work.execute(FORGOTTEN).await.expect("executes");
    assert_eq!(create().await.with(201), repeated, "one key");

    world.ask(&key, "GET", "/v1/runs", &[], "").await.with(200);
    let listed = world.get("/v1/keys").await;
    let secret = key.split('_').nth(2).expect("a secret");
    assert!(!listed.text.contains(secret));
    assert_eq!(listed.with(200)["items"].as_array().map(Vec::len), Some(5));

    for _ in 0..2 {
        let revoked = world.call("DELETE", &format!("/v1/keys/{id}"), json!(null)).await;
        assert_eq!(revoked.status, 204, "revoking twice is revoking once");
    }
    let refused = world.ask(&key, "GET", "/v1/runs", &[], "").await;
    assert_eq!(refused.header("www-authenticate"), "Bearer");
    insta::assert_snapshot!(told::json(&refused.with(401)), @r#"
    {
      "type": "/advice/unauthenticated",
      "title": "No valid key came with the request",
      "status": 401,
      "code": "unauthenticated",
      "detail": "send `Authorization: Bearer cf_…` with a key that has not been revoked",
      "request_id": "(request)",
      "errors": []
    }
    "#);
}

#[tokio::test]
async fn a_key_that_does_not_hold_is_refused_whatever_is_wrong_with_it() {
    let world = World::new().await;
    let good = world.key(Scope::Admin);
    let (body, _) = good.rsplit_once('_').expect("a checksum");
    let other = counterfoil_domain::key::ApiKey::from_random([9; 40]).to_string();
    for (name, key) in [
        ("nothing", ""),
        ("no key", "hello"),
        ("cut", &good[..good.len() - 1]),
        ("another checksum", &format!("{body}_00000000")),
        ("never made", &other),
    ] {
        let refused = world.ask(key, "GET", "/v1/runs", &[], "").await.with(401);
        assert_eq!(refused["code"], "unauthenticated", "{name}");
    }
    let basic = world.ask("x", "GET", "/v1/runs", &[], "").await;
    basic.with(401);
}

#[tokio::test]
async fn a_label_is_text_that_can_be_shown() {
    let world = World::new().await;
    for label in ["", "  ", "a\u{0}", "a\nb", &"x".repeat(65)] {
        let refused =
            world.call("POST", "/v1/keys", json!({ "scope": "viewer", "label": label })).await.with(400);
        assert_eq!(refused["errors"][0]["pointer"], "/label", "{label:?}");
    }
    let refused = world.call("POST", "/v1/keys", json!({ "scope": "root", "label": "x" })).await.with(400);
    assert_eq!(refused["errors"][0]["pointer"], "/scope");
}
