use serde_json::json;

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
        (json!({ "base_url": "https://example.com", "secret": "x" }), "/secret"),
    ] {
        let refused = world.call("PUT", path, body.clone()).await.with(400);
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{body}: {refused}");
    }
    assert_eq!(world.get(path).await.with(200), set, "a refusal changes nothing");
}
