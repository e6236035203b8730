use counterfoil_domain::id::EffectId;
use counterfoil_domain::key::Scope;
use serde_json::{Value, json};

use crate::sessions::Browser;
use crate::told;
use crate::world::World;

fn path(id: EffectId) -> String {
    format!("/v1/effects/{id}/resolve")
}

#[tokio::test]
async fn an_unknown_effect_shows_its_evidence_and_no_secret() {
    let world = World::new().await;
    world.set_up().await;
    let (_, receipt) = world.blocked().await;
    let shown = world.get(&format!("/v1/effects/{}", receipt.id)).await;
    assert!(!shown.text.contains("canary"));
    insta::assert_snapshot!(told::json(&shown.with(200)));
    for (query, count) in
        [("state=unknown", 1), ("", 1), ("state=committed", 0), (&format!("run={}", receipt.run), 1)]
    {
        let found = world.get(&format!("/v1/effects?{query}")).await.with(200);
        assert_eq!(found["items"].as_array().map(Vec::len), Some(count), "{query}");
    }
    world.get("/v1/effects?state=lost").await.with(400);
}

#[tokio::test]
async fn a_dry_run_says_what_a_resolution_then_does() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let mut body = json!({
        "outcome": "verified",
        "evidence": "charge ch_1 in their dashboard",
        "answer": { "status": 201, "json": { "id": "ch_1" } },
        "provider_receipt_id": "ch_1",
        "dry_run": true,
    });
    let dry = world.call("POST", &path(receipt.id), body.clone()).await.with(200);
    insta::assert_snapshot!(told::json(&dry), @r#"
    {
      "effect": "eff_1",
      "run": "run_1",
      "dry_run": true,
      "from": "unknown",
      "to": "verified",
      "resumed": true,
      "consequence": "The step resumes and the block is handed this answer. Nothing is sent again."
    }
    "#);
    assert_eq!(world.get(&format!("/v1/effects/{}", receipt.id)).await.with(200)["state"], "unknown");

    body["dry_run"] = json!(false);
    let mut done = world.call("POST", &path(receipt.id), body.clone()).await.with(200);
    done["dry_run"] = json!(true);
    assert_eq!(done, dry);
    insta::assert_snapshot!(told::json(&world.get(&format!("/v1/effects/{}", receipt.id)).await.with(200)));
    assert_eq!(world.get(&format!("/v1/runs/{run}")).await.with(200)["state"], "running");
    assert_eq!(world.call("POST", &path(receipt.id), body).await.with(409)["code"], "not_unknown");
}

#[tokio::test]
async fn a_resolution_is_refused_for_its_first_fault_and_changes_nothing() {
    let world = World::new().await;
    world.set_up().await;
    let (_, receipt) = world.blocked().await;
    let answer = json!({ "status": 200, "body": "" });
    let large = "x".repeat((1 << 20) + 1);
    for (body, status, told) in [
        (json!({ "outcome": "abandoned", "evidence": "nothing there" }), 409, "too_early"),
        (json!({ "outcome": "compensated", "evidence": "refunded" }), 409, "too_early"),
        (json!({ "outcome": "verified", "evidence": " ", "answer": answer }), 400, "/evidence"),
        (json!({ "outcome": "verified", "evidence": "a\u{0}", "answer": answer }), 400, "/evidence"),
        (json!({ "outcome": "verified", "answer": answer }), 400, ""),
        (json!({ "outcome": "verified", "evidence": "seen" }), 400, "/answer"),
        (json!({ "outcome": "abandoned", "evidence": "seen", "answer": answer }), 400, "/answer"),
        (json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200 } }), 400, "/answer"),
        (
            json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 99 } }),
            400,
            "/answer/status",
        ),
        (
            json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200, "body": "", "json": 1 } }),
            400,
            "/answer",
        ),
        (
            json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200, "headers": [["a", "b\nc"]] } }),
            400,
            "/answer/headers",
        ),
        (
            json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200, "body": large } }),
            413,
            "too_large",
        ),
        (json!({ "outcome": "lost", "evidence": "seen" }), 400, "/outcome"),
    ] {
        for dry_run in [true, false] {
            let mut body = body.clone();
            body["dry_run"] = json!(dry_run);
            let refused = world.call("POST", &path(receipt.id), body.clone()).await.with(status);
            let found = refused["errors"][0]["pointer"].as_str().or(refused["code"].as_str());
            assert_eq!(found, Some(told), "{body:.120}: {refused}");
        }
    }
    let shown = world.get(&format!("/v1/effects/{}", receipt.id)).await.with(200);
    assert_eq!(shown["state"], "unknown");
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(1), "{}", shown["history"]);
}

#[tokio::test]
async fn a_person_may_resolve_now_and_resume_later() {
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let body = json!({ "outcome": "committed", "evidence": "seen", "answer": { "status": 200, "body": "" }, "resume": false });
    assert_eq!(world.call("POST", &path(receipt.id), body).await.with(200)["resumed"], false);
    assert_eq!(world.get(&format!("/v1/runs/{run}")).await.with(200)["state"], "blocked");
    let resumed = world.call("POST", &format!("/v1/runs/{run}/resume"), Value::Null).await.with(200);
    assert_eq!(resumed, json!({ "resumed": 1, "blocked": 0 }));
}

/// The step of a run that has ended goes on nowhere, whatever is said of its effect: in the list of what may be said, in a
/// dry run, on the page before it is confirmed, and when it is done.
#[tokio::test]
async fn a_resolution_after_the_run_has_ended_changes_the_record_alone() {
    const CONSEQUENCE: &str = "The record changes, and nothing else: the run has ended. Nothing is sent.";
    const GOES_ON: &str = "The step goes on at once";
    let world = World::new().await;
    world.set_up().await;
    let (run, receipt) = world.blocked().await;
    let browser = Browser::signed_in(&world, Scope::Operator).await;
    let page = format!("/effects/{}", receipt.id);
    let fields = [
        ("outcome", "verified"),
        ("evidence", "seen"),
        ("status", "200"),
        ("resume", "yes"),
        ("step", "preview"),
    ];
    let before = browser.submit(&page, &format!("{page}/resolve"), &fields).await.text;
    assert!(before.contains(GOES_ON) && !before.contains(CONSEQUENCE), "{before}");

    world.call("POST", &format!("/v1/runs/{run}/cancel"), Value::Null).await.with(200);
    let shown = world.get(&format!("/v1{page}")).await.with(200);
    let resolutions = shown["resolutions"].as_array().expect("it is unknown still");
    assert_eq!(resolutions.len(), 4);
    for resolution in resolutions {
        assert_eq!(resolution["consequence"], CONSEQUENCE, "{resolution}");
    }
    let after = browser.submit(&page, &format!("{page}/resolve"), &fields).await.text;
    assert!(!after.contains(GOES_ON) && after.contains(CONSEQUENCE), "{after}");
    for dry_run in [true, false] {
        let body = json!({ "outcome": "verified", "evidence": "seen", "answer": { "status": 200, "body": "" }, "dry_run": dry_run });
        let resolved = world.call("POST", &path(receipt.id), body).await.with(200);
        let told = (&resolved["consequence"], &resolved["resumed"], &resolved["dry_run"]);
        assert_eq!(told, (&json!(CONSEQUENCE), &json!(false), &json!(dry_run)));
    }
    assert_eq!(world.get(&format!("/v1{page}")).await.with(200)["state"], "verified");
    assert_eq!(world.get(&format!("/v1/runs/{run}")).await.with(200)["state"], "cancelled");
}

/// Before, between and after the questions to its block: what a person sees of them.
#[tokio::test]
async fn an_unknown_effect_shows_what_its_block_was_asked() {
    let world = World::new().await;
    world.set_up().await;
    let (_, receipt) = world.blocked().await;
    let path = format!("/v1/effects/{}", receipt.id);
    assert_eq!(world.get(&path).await.with(200)["verification"], Value::Null);
    let browser = Browser::signed_in(&world, Scope::Viewer).await;
    let page = async || browser.get(&format!("/effects/{}", receipt.id)).await.text;
    assert!(!page().await.contains("The block's own word"));
    world
        .work
        .execute(
            "INSERT INTO verifications (tenant_id, receipt_id, block, due_at)
             SELECT tenant_id, id, sha256(''), now() + interval '1 second' FROM receipts",
        )
        .await
        .expect("inserts");
    for (change, standing, asked, said, is_asked_next) in [
        ("SELECT", "not asked yet", 0, None, true),
        (
            "UPDATE verifications SET asked = 1, asked_at = now(), said = '<no> books'",
            "asked once",
            1,
            Some("<no> books"),
            true,
        ),
        (
            "UPDATE verifications SET asked = 2, hold_id = receipt_id",
            "asked 2 times, and being asked now",
            2,
            Some("<no> books"),
            false,
        ),
        (
            "UPDATE verifications SET asked = 6, hold_id = NULL, due_at = 'infinity'",
            "asked 6 times, and not again: a person must say",
            6,
            Some("<no> books"),
            false,
        ),
    ] {
        world.work.execute(change).await.expect("changes");
        let shown = world.get(&path).await.with(200)["verification"].clone();
        let told = (shown["asked"].as_u64(), shown["said"].as_str(), shown["next_at"].is_string());
        assert_eq!(told, (Some(asked), said, is_asked_next), "{shown}");
        assert_eq!(shown["asked_at"].is_string(), asked > 0, "{shown}");
        let html = page().await;
        assert!(html.contains(standing), "{standing}: {html}");
        assert_eq!(html.contains("&#60;no&#62; books"), said.is_some(), "{html}");
    }
}
