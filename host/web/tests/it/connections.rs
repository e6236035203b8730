use serde_json::{Value, json};

use crate::told;
use crate::world::World;

#[tokio::test]
async fn a_connection_is_judged_as_calls_are_and_reads_back() {
    let world = World::new().await;
    let path = "/v1/connections/payments";
    let body = json!({ "base_url": "http://127.0.0.1:4000/v1", "abilities": { "statuses": { "500": "not-applied" } } });
    let set = world.call("PUT", path, body).await.with(200);
    insta::assert_snapshot!(told::json(&set), @r#"
    {
      "name": "payments",
      "base_url": "http://127.0.0.1:4000/v1",
      "allowed_hosts": [
        "127.0.0.1:4000"
      ],
      "abilities": {
        "statuses": {
          "500": "not-applied"
        }
      },
      "rate": null,
      "in_flight_max": null,
      "secrets": [],
      "updated_at": "(time)"
    }
    "#);
    let body = json!({ "base_url": "https://api.example.com", "allowed_hosts": ["api.example.com", "*.example.com"] });
    let set = world.call("PUT", path, body).await.with(200);
    assert_eq!(world.get(path).await.with(200), set);
    assert_eq!(world.get("/v1/connections").await.with(200), json!({ "items": [set], "next": null }));

    for (body, pointer) in [
        (json!({ "base_url": "ftp://example.com" }), "/base_url"),
        (json!({ "base_url": "http://169.254.169.254/latest" }), "/base_url"),
        (json!({ "base_url": "https://user@example.com" }), "/base_url"),
        (json!({ "base_url": "https://example.com", "allowed_hosts": ["other.example.com"] }), "/base_url"),
        (
            json!({ "base_url": "https://example.com", "allowed_hosts": vec!["example.com"; 33] }),
            "/allowed_hosts",
        ),
        (
            json!({ "base_url": "https://example.com", "abilities": { "statuses": { "500": "maybe" } } }),
            "/abilities/statuses/500",
        ),
        (
            json!({ "base_url": "https://example.com", "abilities": { "statuses": { "102": "applied" } } }),
            "/abilities/statuses/102",
        ),
        (
            json!({ "base_url": "https://example.com", "abilities": { "idempotency_header": "Host" } }),
            "/abilities/idempotency_header",
        ),
        (
            json!({ "base_url": "https://example.com", "abilities": { "receipt_id_header": "cookie" } }),
            "/abilities/receipt_id_header",
        ),
        (json!({ "base_url": "https://example.com", "rate": { "limit": 0, "per_ms": 1000 } }), "/rate/limit"),
        (json!({ "base_url": "https://example.com", "rate": { "limit": 1, "per_ms": 0 } }), "/rate/per_ms"),
        (json!({ "base_url": "https://example.com", "in_flight_max": 0 }), "/in_flight_max"),
        (
            json!({ "base_url": "https://example.com", "rate": { "limit": 1, "per_ms": 9, "burst": 2 } }),
            "/rate/burst",
        ),
        (json!({ "base_url": "https://example.com", "secret": "x" }), "/secret"),
    ] {
        let refused = world.call("PUT", path, body.clone()).await.with(400);
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{body}: {refused}");
    }
    assert_eq!(world.get(path).await.with(200), set, "a refusal changes nothing");
}

/// An admin's call, and what the connection then says of its secrets.
async fn secrets_after(world: &World, secrets: Value) -> Value {
    let mut body = json!({ "base_url": "https://example.com", "secrets": secrets });
    if secrets == json!("absent") {
        body.as_object_mut().expect("an object").remove("secrets");
    }
    let set = world.call("PUT", "/v1/connections/payments", body).await;
    assert!(!set.text.contains("canary"), "{}", set.text);
    set.with(200)["secrets"].clone()
}

#[tokio::test]
async fn secrets_are_merged_and_shown_by_name_only() {
    let world = World::new().await;
    let both = json!(["header:authorization", "password"]);
    for (secrets, expected) in [
        (json!("absent"), json!([])),
        (json!({ "header:Authorization": "Bearer canary", "password": "canary" }), both.clone()),
        (json!("absent"), both.clone()),
        (json!({}), both.clone()),
        (json!({ "header:authorization": "Bearer canary-2" }), both.clone()),
        (json!({ "password": null, "username": "canary" }), json!(["header:authorization", "username"])),
        (json!({ "header:nothing": null }), json!(["header:authorization", "username"])),
        (json!(null), json!([])),
    ] {
        assert_eq!(secrets_after(&world, secrets.clone()).await, expected, "{secrets}");
    }
    let list = world.get("/v1/connections").await;
    assert!(!list.text.contains("canary"), "{}", list.text);
    let dump = world.work.database.dump().await;
    assert!(dump.iter().all(|line| !line.contains("canary")), "{dump:#?}");
    let said = dump.iter().filter_map(|line| line.strip_prefix("audit.detail: "));
    insta::assert_snapshot!(said.collect::<Vec<_>>().join("\n"), @r#"
    {"connection":"payments","base_url":"https://example.com"}
    {"connection":"payments","base_url":"https://example.com","secrets_set":["header:authorization","password"]}
    {"connection":"payments","base_url":"https://example.com"}
    {"connection":"payments","base_url":"https://example.com"}
    {"connection":"payments","base_url":"https://example.com","secrets_set":["header:authorization"]}
    {"connection":"payments","base_url":"https://example.com","secrets_set":["username"],"secrets_removed":["password"]}
    {"connection":"payments","base_url":"https://example.com","secrets_removed":["header:nothing"]}
    {"connection":"payments","base_url":"https://example.com","secrets_removed":"all others"}
    "#);
}

#[tokio::test]
async fn a_secret_that_is_refused_is_not_repeated() {
    let world = World::new().await;
    let many: serde_json::Map<String, Value> =
        (0..17).map(|n| (format!("header:x-{n}"), json!("canary"))).collect();
    for (secrets, pointer) in [
        (json!("canary"), "/secrets"),
        (json!(["canary"]), "/secrets"),
        (json!({ "password": ["canary"] }), "/secrets/password"),
        (json!({ "authorization": "canary" }), "/secrets/authorization"),
        (json!({ "header:host": "canary" }), "/secrets/header:host"),
        (json!({ "header:a/b": "canary" }), "/secrets/header:a~1b"),
        (json!({ "header:x": "canary\r\nhost: evil" }), "/secrets/header:x"),
        (json!({ "header:x": "" }), "/secrets/header:x"),
        (json!({ "header:x": "canary", "header:X": "canary" }), "/secrets/header:X"),
        (json!({ "header:Idempotency-Key": "canary" }), "/secrets/header:idempotency-key"),
        (Value::Object(many), "/secrets"),
    ] {
        let body = json!({ "base_url": "https://example.com", "secrets": secrets });
        let refused = world.call("PUT", "/v1/connections/payments", body).await;
        assert_eq!(refused.with(400)["errors"][0]["pointer"], pointer, "{}", refused.text);
        assert!(!refused.text.contains("canary"), "{}", refused.text);
    }
    let body = json!({ "base_url": "https://example.com", "secrets": { "password": "canary" } });
    let keyless = world.call("PUT", "/v1/connections/keyless", body).await;
    assert_eq!(keyless.with(503)["code"], "secret_key_missing");
    assert_eq!(world.get("/v1/connections").await.with(200)["items"], json!([]), "nothing was set");
}

#[tokio::test]
async fn a_mail_server_is_a_connection_with_a_sender() {
    let world = World::new().await;
    let path = "/v1/connections/post";
    let mail = json!({ "from": "Acme <billing@acme.com>", "plain": true });
    let body = json!({ "base_url": "smtp://127.0.0.1:2525", "abilities": { "mail": mail } });
    let set = world.call("PUT", path, body).await.with(200);
    assert_eq!(
        (&set["base_url"], &set["allowed_hosts"], &set["abilities"]["mail"]),
        (&json!("smtp://127.0.0.1:2525"), &json!(["127.0.0.1:2525"]), &mail)
    );
    let from = json!({ "mail": { "from": "billing@acme.com" } });
    let tls = json!({ "base_url": "smtps://mail.acme.com", "abilities": from });
    let set = world.call("PUT", path, tls).await.with(200);
    assert_eq!(set["allowed_hosts"], json!(["mail.acme.com:465"]));
    for (body, pointer) in [
        (json!({ "base_url": "smtps://mail.acme.com" }), "/abilities/mail"),
        (
            json!({ "base_url": "smtps://mail.acme.com", "abilities": { "mail": { "from": "Acme" } } }),
            "/abilities/mail/from",
        ),
        (json!({ "base_url": "smtps://10.0.0.1", "abilities": from }), "/base_url"),
        (json!({ "base_url": "smtps://mail.acme.com:443", "abilities": from }), "/base_url"),
        (json!({ "base_url": "smtps://mail.acme.com", "abilities": { "mail": mail } }), "/base_url"),
        (json!({ "base_url": "smtp://mail.acme.com/path", "abilities": from }), "/base_url"),
    ] {
        let refused = world.call("PUT", path, body.clone()).await.with(400);
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{body}: {refused}");
    }
    assert_eq!(world.get(path).await.with(200), set, "a refusal changes nothing");
}

#[tokio::test]
async fn a_connection_is_removed_once_nothing_goes_through_it() {
    let world = World::new().await;
    let set = json!({ "base_url": "https://example.com", "secrets": { "password": "canary-canary" } });
    for name in ["payments", "direct", "idle"] {
        world.call("PUT", &format!("/v1/connections/{name}"), set.clone()).await.with(200);
    }
    // A block says that it goes through `payments`, a step goes through `direct` by itself.
    world.set_up().await;
    let flow = async |step: Value| {
        let definition = json!({ "name": "flow", "steps": [{ "only": step }] });
        world.call("PUT", "/v1/workflows/flow", definition).await;
        world.call("POST", "/v1/workflows/flow/activate", json!({ "accept": true })).await.with(200);
    };
    flow(json!({ "http": { "method": "POST", "url": "/a", "connection": "direct" } })).await;
    let run = world.call("POST", "/v1/workflows/flow/runs", json!({})).await.with(201);
    let remove = async |name: &str| {
        let answer = world.call("DELETE", &format!("/v1/connections/{name}"), Value::Null).await;
        let told = if answer.text.is_empty() { Value::Null } else { answer.json() };
        (answer.status.as_u16(), told["code"].clone(), told["detail"].as_str().map(str::to_owned))
    };
    let in_use = |detail: &str| (409, json!("connection_in_use"), Some(detail.to_owned()));
    let by_flow = "`direct` is gone through by `flow` (version 1)";
    assert_eq!(remove("payments").await, in_use("`payments` is gone through by `pay` (version 1)"));
    assert_eq!(remove("direct").await, in_use(by_flow));
    flow(json!({ "set": { "value": 1 } })).await;
    assert_eq!(remove("direct").await, in_use(by_flow), "its run is not finished");
    let cancel = format!("/v1/runs/{}/cancel", run["id"].as_str().expect("an id"));
    world.call("POST", &cancel, json!({})).await.with(200);
    for name in ["direct", "idle"] {
        assert_eq!(remove(name).await, (204, Value::Null, None), "{name}");
        assert_eq!(remove(name).await.0, 404, "{name}");
        world.get(&format!("/v1/connections/{name}")).await.with(404);
    }
    for (rows, count) in [
        (1, "SELECT count(*) FROM connection_secrets"),
        (2, "SELECT count(*) FROM audit WHERE action = 'connection.remove'"),
    ] {
        assert_eq!(world.work.count(count).await.expect("counts"), rows, "{count}");
    }
}
