use counterfoil_domain::key::Scope;
use counterfoil_store::admission::Refusal;
use serde_json::{Value, json};

use crate::told;
use crate::world::World;

/// Ids of the events that an answer names.
fn ids(answer: &Value) -> Vec<String> {
    let events = answer["events"].as_array().expect("a list");
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn a_repeat_is_the_same_event_where_it_says_so() {
    let world = World::new().await;
    let key = world.key(Scope::Operator);
    let cloud =
        json!({ "specversion": "1.0", "id": "7", "source": "/crm", "type": "lead.created", "data": {} })
            .to_string();
    let cloud_type = [("content-type", "application/cloudevents+json")];
    let own = json!([{ "type": "a", "data": 1 }, { "type": "b" }]).to_string();
    let given = json!({ "type": "a", "id": "evt_01h455vb4pex5vsknk084sn02q" }).to_string();
    for (name, headers, body, same) in [
        ("a cloud event by source and id", &cloud_type[..], cloud, true),
        ("an id that the caller gave", &[], given, true),
        ("an idempotency key", &[("idempotency-key", "k")], own.clone(), true),
        ("nothing", &[], own, false),
    ] {
        let first = ids(&world.ask(key, "POST", "/v1/events", headers, body.clone()).await.with(202));
        let again = ids(&world.ask(key, "POST", "/v1/events", headers, body).await.with(202));
        assert_eq!(first == again, same, "{name}: {first:?} {again:?}");
    }
}

#[tokio::test]
async fn an_event_tells_what_became_of_it() {
    let world = World::new().await;
    world.set_up().await;
    let recorded = world
        .call("POST", "/v1/events", json!({ "type": "order.placed", "data": { "cents": 5 } }))
        .await
        .with(202);
    let id = &ids(&recorded)[0];
    let path = format!("/v1/events/{id}/outcomes");
    assert_eq!(world.get(&path).await.with(200)["outcomes"], json!([]));

    let event = id.parse().expect("an id");
    let binding = world.store.bindings(world.tenant, "order.placed").await.expect("reads").remove(0);
    let code = counterfoil_domain::code::Code::AlreadyRunning;
    let (workflow, version, detail) = (binding.workflow, binding.version, "one is unfinished".into());
    let refusal = Refusal { tenant: world.tenant, event, workflow, version, code, detail };
    world.store.refuse(vec![refusal]).await.expect("refuses");
    insta::assert_snapshot!(told::json(&world.get(&path).await.with(200)), @r#"
    {
      "id": "evt_1",
      "outcomes": [
        {
          "workflow": "pay",
          "run": null,
          "refusal": {
            "code": "already_running",
            "detail": "one is unfinished"
          },
          "at": "(time)"
        }
      ]
    }
    "#);
}
