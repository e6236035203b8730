//! Requests by `wasi:http`, of programs that know nothing of receipts.

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpRequest, HttpResponse, Safety,
};
use counterfoil_domain::ports::{LogLevel, LogLine, StepEnd, StepJob, StepReport, StepRunner as _};
use serde_json::{Value, json};

use crate::port::{Act, Script};
use crate::{House, house, job, output, trapped};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn created(body: &str) -> HttpResponse {
    let headers = pairs(&[("content-type", "application/json"), ("x-a", "b")]);
    HttpResponse { status: 201, headers, body: body.into(), truncated: false }
}

async fn did(house: &House, deed: Value) -> StepReport {
    let component = house.prepared_example("virtual-wasi").await;
    house.sandbox.run(StepJob { input: deed.to_string(), ..job(component) }).await
}

async fn requested(house: &House, wanted: Value) -> Value {
    match did(house, json!({ "request": wanted })).await.end {
        StepEnd::Output(text) => serde_json::from_str(&text).expect("JSON"),
        end => panic!("{end:?}"),
    }
}

fn call(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> EffectCall {
    let request =
        HttpRequest { method: method.into(), url: url.into(), headers: pairs(headers), body: body.into() };
    EffectCall {
        request: EffectRequest::Http(request),
        key: None,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: Vec::new(),
    }
}

/// What a program wants, and the effect that it is.
fn requests() -> Vec<(Value, EffectCall)> {
    let payments = || Some("payments".into());
    vec![
        (
            json!({ "authority": "a.example", "path": "/x?y=1" }),
            call("GET", "https://a.example/x?y=1", &[], ""),
        ),
        (json!({ "authority": "a.example:8443" }), call("GET", "https://a.example:8443/", &[], "")),
        (
            json!({ "method": "POST", "authority": "a.example", "path": "x", "body": "ab", "body_times": 3,
                    "headers": [["X-A", "1"], ["content-length", "6"], ["x-a", "2"]] }),
            call("POST", "https://a.example/x", &[("X-A", "1"), ("x-a", "2")], "ababab"),
        ),
        (
            json!({ "method": "POST", "authority": "a.example", "body": "early", "early": true,
                    "timeout_ms": 1_500 }),
            EffectCall { timeout_ms: Some(1_500), ..call("POST", "https://a.example/", &[], "early") },
        ),
        (
            json!({ "method": "DELETE", "authority": "payments", "path": "/charges",
                    "headers": [["Counterfoil-Connection", "payments"], ["counterfoil-key", "undo"],
                                ["counterfoil-safety", "idempotent"], ["accept", "*/*"]] }),
            EffectCall {
                connection: payments(),
                key: Some("undo".into()),
                safety: Some(Safety::Idempotent),
                ..call("DELETE", "/charges", &[("accept", "*/*")], "")
            },
        ),
        (
            json!({ "method": "PURGE", "authority": "cdn.example",
                    "headers": [["counterfoil-connection", "payments"]] }),
            EffectCall { connection: payments(), ..call("PURGE", "https://cdn.example/", &[], "") },
        ),
    ]
}

#[tokio::test]
async fn a_request_is_an_effect_like_any_other() {
    let script = Script::new(Act::Reply(EffectReply::Answered(Answer::Http(created("{}")))));
    let house = house(script.clone());
    for (index, (wanted, expected)) in requests().into_iter().enumerate() {
        let answer = requested(&house, wanted).await;
        let shown = json!({
            "status": 201,
            "headers": [["content-type", "application/json"], ["x-a", "b"]],
            "body": "{}",
        });
        assert_eq!(answer, shown);
        let calls = script.calls();
        assert_eq!((calls.len(), &calls[index].1), (index + 1, &expected));
    }
}

#[tokio::test]
async fn a_failure_is_a_code_of_the_client_and_its_reason_a_line_of_the_log() {
    let large = HttpResponse { status: 200, headers: vec![], body: vec![], truncated: true };
    let refused = HttpResponse { status: 404, ..created("none") };
    for (failure, expected, reason) in [
        (EffectFailure::Denied("no grant".into()), json!("ErrorCode::HttpRequestDenied"), Some("no grant")),
        (EffectFailure::NotSent("dns".into()), json!("ErrorCode::DestinationUnavailable"), Some("dns")),
        (EffectFailure::NoAnswer("reset".into()), json!("ErrorCode::ConnectionTerminated"), Some("reset")),
        (
            EffectFailure::ResponseTooLarge(large),
            json!("ErrorCode::HttpResponseBodySize(None)"),
            Some("status 200"),
        ),
        (EffectFailure::Limit("64".into()), json!("ErrorCode::InternalError(Some(\"64\"))"), Some("64")),
        (EffectFailure::Rejected(refused), json!(404), None),
    ] {
        let house = house(Script::new(Act::Reply(EffectReply::Failed(failure))));
        let report = did(&house, json!({ "request": { "authority": "a.example" } })).await;
        let StepEnd::Output(text) = &report.end else { panic!("{report:?}") };
        let answer: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(answer.get("status").or(answer.get("error")), Some(&expected), "{answer}");
        let said = |LogLine { level, message }: &LogLine| {
            assert_eq!(*level, LogLevel::Warn);
            assert!(message.starts_with("GET https://a.example/: "), "{message}");
            assert!(reason.is_some_and(|reason| message.contains(reason)), "{message}");
        };
        report.logs.iter().for_each(said);
        assert_eq!(report.logs.len(), usize::from(reason.is_some()));
    }
}

#[tokio::test]
async fn a_stop_ends_the_program_in_mid_call() {
    for wanted in [
        json!({ "authority": "a.example" }),
        json!({ "authority": "a.example", "method": "POST", "body": "x" }),
    ] {
        let script = Script::new(Act::Reply(EffectReply::Stop));
        let report = did(&house(script.clone()), json!({ "request": wanted })).await;
        assert_eq!((report.end, script.calls().len()), (StepEnd::Stopped, 1));
    }
}

#[tokio::test]
async fn what_is_no_request_is_not_sent() {
    let key = |name: &str, value: &str| json!({ "authority": "a.example", "headers": [[name, value]] });
    let twice = json!({ "authority": "a.example",
                        "headers": [["counterfoil-key", "a"], ["counterfoil-key", "b"]] });
    let script = Script::unused();
    let house = house(script.clone());
    for (wanted, expected) in [
        (json!({}), json!({ "handled": "ErrorCode::HttpRequestUriInvalid" })),
        (json!({ "authority": "a.example/b" }), json!("no authority")),
        (json!({ "authority": "user@a.example" }), json!("no authority")),
        (key("counterfoil-safety", "sometimes"), json!({ "handled": "ErrorCode::ConfigurationError" })),
        (twice, json!({ "handled": "ErrorCode::ConfigurationError" })),
        (key("Host", "b.example"), json!({ "header": "HeaderError::Forbidden" })),
        (key("transfer-encoding", "chunked"), json!({ "header": "HeaderError::Forbidden" })),
        (key("x y", "1"), json!({ "header": "HeaderError::InvalidSyntax" })),
        (key("x", "a\r\nb: c"), json!({ "header": "HeaderError::InvalidSyntax" })),
        (
            json!({ "authority": "a.example", "method": "POST", "body": "x".repeat(1 << 10), "body_times": 1_025 }),
            json!({ "error": "ErrorCode::InternalError(Some(\"the body of the request was not finished, and nothing was sent\"))",
                    "finished": false }),
        ),
        (
            json!({ "authority": "a.example", "method": "POST", "body": "x", "dropped": true }),
            json!({ "error": "ErrorCode::InternalError(Some(\"the body of the request was not finished, and nothing was sent\"))",
                    "finished": true }),
        ),
    ] {
        assert_eq!(requested(&house, wanted.clone()).await, expected, "{wanted}");
    }
    assert_eq!(script.calls().len(), 0);
}

#[tokio::test]
async fn what_a_program_holds_and_waits_for_is_bounded() {
    let house = house(Script::unused());
    assert_eq!(did(&house, json!({ "hold-bodies": { "count": 8 } })).await.end, output("8"));
    for (deed, expected, reason) in [
        (json!({ "hold-bodies": { "count": 9 } }), Code::MemoryLimit, "header fields and bodies"),
        (json!("wait-for-myself"), Code::GuestTrap, "waits for what can never be there"),
        (json!("answer"), Code::GuestTrap, "an outgoing response"),
        (
            json!({ "request": { "headers": [["x", "y".repeat(65 << 10)]] } }),
            Code::GuestTrap,
            "longer together",
        ),
    ] {
        let report = did(&house, deed).await;
        let (code, message) = trapped(&report);
        assert!(code == expected && message.contains(reason), "{code}: {message}");
    }
}
