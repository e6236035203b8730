use counterfoil_domain::key::Scope;
use serde_json::json;

use crate::sessions::Browser;
use crate::told;
use crate::world::{DEFINITION, World};

#[tokio::test]
async fn each_page_says_what_there_is() {
    let world = World::new().await;
    world.set_up().await;
    let (_, receipt) = world.blocked().await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let mut said = Vec::new();
    for path in ["/", "/runs", "/effects", "/workflows", "/workflows/pay", "/blocks", "/blocks/charge-card"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        said.push(format!("## {path}\n{}\n", told::page(&answer.text)));
    }
    insta::assert_snapshot!("lists", said.join("\n"));
    let effect = browser.get(&format!("/effects/{}", receipt.id)).await;
    assert!(!effect.text.contains("canary"));
    insta::assert_snapshot!("effect", told::page(&effect.text));
}

/// The same as `GET /v1/workflows/{name}/diff` says.
#[tokio::test]
async fn the_page_of_a_workflow_says_what_a_version_does_otherwise() {
    let world = World::new().await;
    world.set_up().await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let only = browser.get("/workflows/pay").await.text;
    assert!(!only.contains("does otherwise"), "{only}");
    let changed = DEFINITION.replacen("steps:", "steps:\n  - first: { set: 1 }", 1);
    world.ask(world.key(Scope::Author), "PUT", "/v1/workflows/pay", &[], changed).await.with(201);
    let page = browser.get("/workflows/pay?version=2").await.text;
    let told = world.get("/v1/workflows/pay/diff").await.with(200);
    assert_eq!(told["touches_side_effects"], true, "{told}");
    for said in ["What v2 does otherwise than v1", "step <code>first</code>", "added", "Some of it touches"] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let same = browser.get("/workflows/pay?version=2&from=2").await.text;
    assert!(same.contains("Nothing: both run alike"), "{same}");
}

#[tokio::test]
async fn a_person_is_shown_what_will_happen_before_it_does() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let page = format!("/effects/{}", receipt.id);
    let resolve = format!("{page}/resolve");
    let fields = |step: &'static str, evidence: &'static str| {
        [
            ("outcome", "verified"),
            ("evidence", evidence),
            ("status", "201"),
            ("body", r#"{"id":"<ch_1>"}"#),
            ("content_type", "application/json"),
            ("resume", "yes"),
            ("step", step),
        ]
    };
    let missing = browser.submit(&page, &resolve, &fields("preview", " ")).await;
    assert_eq!(missing.status, 400);
    assert!(
        missing.text.contains("say how it is known") && missing.text.contains("&#60;ch_1&#62;"),
        "{}",
        missing.text
    );

    let preview = browser.submit(&page, &resolve, &fields("preview", "seen in <their> books")).await;
    assert_eq!(preview.status, 200, "{}", preview.text);
    insta::assert_snapshot!("confirm", told::page(&preview.text));
    let state = || async { world.get(&format!("/v1{page}")).await.with(200)["state"].clone() };
    assert_eq!(state().await, "unknown", "a preview changes nothing");
    let edit = browser.submit(&page, &resolve, &fields("edit", "seen in <their> books")).await;
    assert!(edit.text.contains("seen in &#60;their&#62; books"), "what was typed is still there");

    let done = browser.submit(&page, &resolve, &fields("confirm", "seen in <their> books")).await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, format!("/runs/{run}").as_str()));
    assert_eq!(state().await, "verified");
    let shown = world.get(&format!("/v1{page}")).await.with(200);
    let last = &shown["history"].as_array().expect("a list")[1];
    assert_eq!(last["actor"], "person:acme's operator");
    assert_eq!(last["evidence"], "seen in <their> books");
    // What holds now comes first, and what was thought before is history.
    insta::assert_snapshot!("resolved", told::page(&browser.get(&page).await.text));
    let late = browser.submit("/runs", &resolve, &fields("confirm", "again")).await;
    assert_eq!(late.status, 409);
}

#[tokio::test]
async fn the_timeline_draws_every_step_and_effect() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let html = browser.get(&format!("/runs/{run}")).await.text;
    let main = html.split_once("<h2 id=\"timeline\">").expect("a timeline").1;
    let (chart, steps) = main.split_once("<h2>Steps</h2>").expect("steps");
    for (what, expected) in [
        ("names", vec!["amount", "decide", "decide/charge"]),
        ("bars", vec!["class=\"running\"", "class=\"blocked\"", "class=\"effect ask\""]),
        ("words", vec!["running ", "blocked ", "charge: unknown"]),
        ("links", vec![&format!("/effects/{}", receipt.id)]),
    ] {
        for text in expected {
            assert!(chart.contains(text), "{what}: {text} is not in\n{chart}");
        }
    }
    assert!(!chart.contains("style="), "the policy of the page forbids inline styles");
    assert!(steps.contains("the connection was reset"));
    assert!(!html.contains("http-equiv=\"refresh\""), "nothing moves while a person is waited for");
}

#[tokio::test]
async fn foreign_text_is_shown_and_never_read_as_markup() {
    const ATTACK: &str = "<script>alert(1)</script>\"'&\u{202e}";
    let world = World::new().await;
    let key = world.key(Scope::Admin);
    world.ask(key, "POST", "/v1/blocks/charge-card", &[], ATTACK).await.with(201);
    world
        .ask(key, "PUT", "/v1/workflows/pay", &[], DEFINITION.to_owned() + &format!("# {ATTACK}\n"))
        .await
        .with(201);
    world.call("POST", "/v1/workflows/pay/activate", json!({})).await.with(200);
    let body = json!({ "input": { "cents": 1, "note": ATTACK }, "record": ATTACK });
    let run = world.call("POST", "/v1/workflows/pay/runs", body).await.with(201);
    let step = world.claim().await;
    let receipt = world.dispatch(&step, &format!("http://127.0.0.1:9/{ATTACK}")).await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let run = run["id"].as_str().expect("an id");
    for path in [
        "/",
        "/runs",
        &format!("/runs?q={}", "%3Cscript%3Ealert(1)%3C/script%3E%22"),
        &format!("/runs/{run}"),
        "/effects",
        &format!("/effects/{}", receipt.id),
        "/workflows/pay",
        "/blocks",
        "/blocks/charge-card",
        "/login?next=%22%3E%3Cscript%3E",
        "/%3Cscript%3E",
    ] {
        let answer = browser.get(path).await;
        assert!(!answer.text.contains("<script"), "{path}:\n{}", answer.text);
        assert!(!answer.status.is_server_error(), "{path}");
    }
}

#[tokio::test]
async fn the_box_finds_any_id_and_any_record() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let recorded = world.call("POST", "/v1/events", json!({ "type": "order.seen" })).await.with(202);
    let event = recorded["events"][0]["id"].as_str().expect("an id");
    let browser = Browser::signed_in(&world, Scope::Viewer).await;
    for (q, place) in [
        (run.to_string(), format!("/runs/{run}")),
        (receipt.id.to_string(), format!("/effects/{}", receipt.id)),
        (run.to_string().to_uppercase(), format!("/runs/{run}")),
        (receipt.id.to_string().to_uppercase(), format!("/effects/{}", receipt.id)),
        (run.0.to_string(), format!("/runs/{run}")),
        (receipt.id.0.to_string().to_uppercase(), format!("/effects/{}", receipt.id)),
        (event.to_uppercase(), format!("/events/{event}")),
    ] {
        let answer = browser.get(&format!("/runs?q={q}")).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, place.as_str()));
    }
    assert!(browser.get("/runs?q=order-1").await.text.contains(&run.to_string()));
    assert!(!browser.get("/runs?q=order-2").await.text.contains(&run.to_string()));
    assert_eq!(browser.get("/runs?q=run_01h455vb4pex5vsknk084sn02q").await.status, 200);
}

/// As `GET /v1/runs` and `GET /v1/effects` do.
#[tokio::test]
async fn a_state_that_there_is_not_is_refused_and_named() {
    let world = World::new().await;
    let browser = Browser::signed_in(&world, Scope::Viewer).await;
    for list in ["runs", "effects"] {
        for (state, status) in [("", 200), ("nonsense", 400)] {
            let page = browser.get(&format!("/{list}?q=&state={state}")).await;
            assert_eq!(page.status, status, "{list} {state}: {}", page.text);
        }
        let page = told::page(&browser.get(&format!("/{list}?state=nonsense")).await.text);
        let told = world.get(&format!("/v1/{list}?state=nonsense")).await.with(400);
        let detail = told["detail"].as_str().expect("a detail");
        assert!(detail.contains("`nonsense`") && detail.contains("write one of `p"), "{detail}");
        assert!(page.contains(detail), "{page}");
    }
}
