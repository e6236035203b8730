use axum::body::Body;
use axum::http::Request;

use crate::told;
use crate::world::{Answer, World, send};

async fn get(world: &World, path: &str) -> Answer {
    world.send(Request::get(path).body(Body::empty()).expect("a request")).await
}

#[tokio::test]
async fn operators_are_answered_without_a_key() {
    let world = World::new().await;
    world.set_up().await;
    world.blocked().await;
    assert_eq!(get(&world, "/livez").await.text, "ok\n");
    assert_eq!(get(&world, "/readyz").await.with(200)["status"], "ready");
    let described = get(&world, "/openapi.json").await.with(200);
    assert!(
        described["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")),
        "{}",
        described["openapi"]
    );
    let metrics = get(&world, "/metrics").await.text;
    for line in [
        "counterfoil_effects_unknown 1",
        r#"counterfoil_steps_open{wait="blocked"} 1"#,
        "counterfoil_events_pending 0",
        r#"counterfoil_http_requests_total{method="POST",route="/v1/workflows/{name}/runs",status="201"} 1"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    for line in metrics.lines() {
        assert!(!line.contains("run_") && !line.contains("eff_"), "an id in a label: {line}");
    }
}

/// An alert on a metric that nobody exposes never fires.
#[tokio::test]
async fn every_metric_of_the_shipped_alerts_is_exposed() {
    let rules = include_str!("../../../../docs/alerts.yml");
    let expressions: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr:")).collect();
    assert_eq!(expressions.len(), rules.matches("- alert:").count());
    let metrics = get(&World::new().await, "/metrics").await.text;
    for expression in expressions {
        let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        let mut names =
            expression.split(|sign| !is_name(sign)).filter(|word| word.starts_with("counterfoil_"));
        let name = names.next().expect("it asks for one of ours");
        let series = format!("{name} ");
        assert!(metrics.lines().any(|line| line.starts_with(&series)), "{name} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn a_host_without_its_database_says_so() {
    let world = World::new().await;
    let router = world.router.clone();
    drop(world);
    let get = async |path| send(&router, Request::get(path).body(Body::empty()).expect("a request")).await;
    assert_eq!(get("/livez").await.status, 200);
    let refused = get("/readyz").await;
    assert_eq!(refused.header("retry-after"), "2");
    assert_eq!(refused.with(503)["code"], "unavailable");
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_keeps_a_browser_strict() {
    let world = World::new().await;
    for (given, kept) in
        [("my-id.1", true), ("", false), ("a b", false), (&"x".repeat(129), false), ("a<b", false)]
    {
        let request =
            Request::get("/livez").header("x-request-id", given).body(Body::empty()).expect("a request");
        let answer = world.send(request).await;
        assert_eq!(answer.header("x-request-id") == given, kept, "{given:?}");
        assert!(!answer.header("x-request-id").is_empty());
    }
    for path in ["/livez", "/login", "/v1/runs", "/nowhere", "/assets/style.css"] {
        let answer = get(&world, path).await;
        let policy = answer.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_to_its_reader() {
    let world = World::new().await;
    let api = get(&world, "/v1/nowhere").await;
    assert_eq!(api.header("content-type"), "application/problem+json");
    insta::assert_snapshot!(told::json(&api.with(404)), @r#"
    {
      "type": "/advice/not_found",
      "title": "There is nothing by this name or id",
      "status": 404,
      "code": "not_found",
      "detail": "there is nothing by this name or id",
      "request_id": "(request)",
      "errors": []
    }
    "#);
    let page = get(&world, "/nowhere").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (404, "text/html; charset=utf-8"));
    let request = Request::put("/v1/runs").body(Body::empty()).expect("a request");
    let answer = world.send(request).await;
    assert!(answer.header("allow").contains("GET"), "{:?}", answer.headers);
    assert_eq!(answer.with(405)["status"], 405);
    let advice = get(&world, "/advice/unknown").await;
    assert_eq!(advice.status, 200);
    assert!(advice.text.contains("<strong>Operator:</strong>"), "{}", advice.text);
    assert_eq!(get(&world, "/advice/nothing").await.status, 404);
}
