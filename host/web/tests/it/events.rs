use std::time::Duration;

use counterfoil_domain::code::Code;
use counterfoil_domain::key::Scope;
use counterfoil_store::admission::Refusal;
use serde_json::{Value, json};

use crate::sessions::Browser;
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
        let first = world.ask(key, "POST", "/v1/events", headers, body.clone()).await.with(202);
        let again = world.ask(key, "POST", "/v1/events", headers, body).await.with(202);
        assert_eq!(ids(&first) == ids(&again), same, "{name}: {first} {again}");
        assert_eq!((&first["events"][0]["new"], &first["warnings"]), (&json!(true), &Value::Null), "{first}");
        // A repeat of a request has the answer of the first; a repeat of an event is told that it is one.
        let is_new = !same || name == "an idempotency key";
        assert_eq!(
            (&again["events"][0]["new"], &again["warnings"]),
            (&json!(is_new), &Value::Null),
            "{again}"
        );
    }
}

/// Under the id of another, what was sent is not taken, and its sender is told, whichever form it has.
#[tokio::test]
async fn what_comes_under_the_id_of_another_event_is_not_taken_and_told() {
    let world = World::new().await;
    let key = world.key(Scope::Operator);
    let id = "evt_01h455vb4pex5vsknk084sn02q";
    let cloud = |data: u8, subject: &str| {
        let event = json!({ "specversion": "1.0", "id": "7", "source": "/crm", "type": "a", "subject": subject, "data": data });
        ("application/cloudevents+json", event)
    };
    let own = |event: Value| ("application/json", event);
    for ((content_type, body), told) in [
        (own(json!({ "type": "a", "id": id, "data": { "n": 1, "m": 2 } })), vec![]),
        (own(json!({ "type": "a", "id": id, "data": { "m": 2, "n": 1 } })), vec![]),
        (own(json!({ "type": "a", "id": id, "data": { "n": 2 } })), vec![("", "another data:")]),
        (
            own(json!([{ "type": "c" }, { "type": "b", "record": "r", "id": id }])),
            vec![("/1", "another type, another record, another data:")],
        ),
        (cloud(1, "r"), vec![]),
        (cloud(2, "r"), vec![("", "another data:")]),
        (cloud(1, "s"), vec![("", "another record:")]),
    ] {
        let headers = [("content-type", content_type)];
        let answer = world.ask(key, "POST", "/v1/events", &headers, body.to_string()).await.with(202);
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        assert_eq!(warnings.len(), told.len(), "{body}: {answer}");
        for (warning, (pointer, words)) in warnings.iter().zip(told) {
            let found = (warning["code"].as_str(), warning["pointer"].as_str());
            assert_eq!(found, (Some("event_id_reused"), Some(pointer)), "{body}");
            assert!(warning["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{warning}");
        }
    }
}

/// Why nothing ran, or what did: of one that waits, met no workflow, was refused, and started a run; by the box of runs too.
#[tokio::test]
async fn an_event_tells_what_became_of_it() {
    let world = World::new().await;
    world.set_up().await;
    let browser = Browser::signed_in(&world, Scope::Viewer).await;
    let kinds = ["order.placed", "order.placed", "nobody.listens"];
    let events: Vec<Value> =
        kinds.iter().map(|kind| json!({ "type": kind, "record": "<o-1>", "data": { "cents": 5 } })).collect();
    let recorded = ids(&world.call("POST", "/v1/events", json!(events)).await.with(202));
    let [refused, run, unheard] = &recorded[..] else { panic!("{recorded:?}") };
    let shown = async |id: &str| {
        let found = browser.get(&format!("/runs?q={id}")).await;
        assert_eq!(
            (found.status.as_u16(), found.header("location")),
            (303, format!("/events/{id}").as_str())
        );
        let page = browser.get(&format!("/events/{id}")).await;
        let twin = world.get(&format!("/v1/events/{id}/outcomes")).await.with(200);
        (told::page(&page.text), told::json(&twin))
    };
    let (page, _) = shown(refused).await;
    assert!(page.contains("No workflow has been asked yet"), "{page}");

    let held = world.store.hold_events(10, Duration::from_mins(1), None).await.expect("holds");
    let of_all: Vec<_> = held.iter().map(|event| (event.tenant, event.id)).collect();
    let binding = world.store.bindings(world.tenant, "order.placed").await.expect("reads").remove(0);
    let (workflow, version, detail) = (binding.workflow, binding.version, "<one> is unfinished".into());
    let (event, code) = (refused.parse().expect("an id"), Code::AlreadyRunning);
    let refusal = Refusal { tenant: world.tenant, event, workflow, version, code, detail };
    world.store.refuse(vec![refusal]).await.expect("refuses");
    let started = world.start().await;
    world
        .work
        .execute(
            "WITH event AS (
                 SELECT tenant_id, id FROM events
                 WHERE type = 'order.placed' AND id NOT IN (SELECT event_id FROM deliveries)
             ), run AS (
                 UPDATE runs SET trigger = 'event', event_id = event.id, ordinal = 0 FROM event
                 RETURNING runs.*
             )
             INSERT INTO deliveries (tenant_id, event_id, workflow_id, run_id)
             SELECT tenant_id, event_id, workflow_id, id FROM run",
        )
        .await
        .expect("starts");
    world.store.publish_events(held[0].hold, &of_all).await.expect("publishes");

    let mut said = Vec::new();
    for (what, id) in [("refused", refused), ("started a run", run), ("met no workflow", unheard)] {
        let (page, twin) = shown(id).await;
        said.push(format!("## {what}\n{page}\n{twin}\n"));
    }
    insta::assert_snapshot!("outcomes", said.join("\n"));
    let page = browser.get(&format!("/runs/{started}")).await.text;
    assert!(page.contains(&format!("<a href=\"/events/{run}\">an event</a>")), "{page}");
    assert_eq!(world.get(&format!("/v1/runs/{started}")).await.with(200)["event_id"], json!(run));
    assert_eq!(browser.get("/events/evt_01h455vb4pex5vsknk084sn02q").await.status, 404);
}
