use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::Failure;
use crate::context::{self, Level, Place};
use crate::host::native::{Host, with};

type Asked = Rc<RefCell<Vec<HttpEffect>>>;

/// Notes what it is asked and gives one answer for everything.
struct OneAnswer {
    asked: Asked,
    reply: Result<Answer, EffectError>,
}

impl Host for OneAnswer {
    fn perform(&mut self, effect: HttpEffect) -> Result<Answer, EffectError> {
        self.asked.borrow_mut().push(effect);
        self.reply.clone()
    }
    fn place(&mut self) -> Place {
        Place { lineage: "lineage".into(), node: "charge".into(), iteration: vec![2, 0] }
    }
    fn started_at_ms(&mut self) -> u64 {
        1_500
    }
    fn random(&mut self, len: u32) -> Vec<u8> {
        vec![7; len as usize]
    }
    fn log(&mut self, _: Level, _: &str) {}
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    Answer {
        status,
        headers: headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        body: body.into(),
        truncated: false,
    }
}

fn send(request: Request, reply: Result<Answer, EffectError>) -> (HttpEffect, Result<Answer, EffectError>) {
    let asked = Asked::default();
    let host = OneAnswer { asked: Rc::clone(&asked), reply };
    let result = with(host, || request.send());
    let mut asked = asked.take();
    assert_eq!(asked.len(), 1, "one send is one effect");
    (asked.remove(0), result)
}

fn plain(method: &str, url: &str) -> HttpEffect {
    HttpEffect {
        method: method.into(),
        url: url.into(),
        headers: Vec::new(),
        body: Vec::new(),
        key: None,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
    }
}

#[test]
fn a_request_crosses_as_it_was_built() {
    let cases = [
        (get("/a"), plain("GET", "/a")),
        (post("/a"), plain("POST", "/a")),
        (put("/a"), plain("PUT", "/a")),
        (patch("/a"), plain("PATCH", "/a")),
        (delete("/a"), plain("DELETE", "/a")),
        (request("PURGE", "https://x.example/a"), plain("PURGE", "https://x.example/a")),
        (get("/a").read_only(), HttpEffect { safety: Some(Safety::ReadOnly), ..plain("GET", "/a") }),
        (
            get("/a").safety(Safety::AtMostOnce),
            HttpEffect { safety: Some(Safety::AtMostOnce), ..plain("GET", "/a") },
        ),
        (
            post("/a")
                .connection("payments")
                .key("charge")
                .header("x-a", "1")
                .header("x-a", "2")
                .body("text")
                .idempotent()
                .idempotency_key("order-1")
                .timeout(Duration::from_millis(2_500)),
            HttpEffect {
                headers: vec![("x-a".into(), "1".into()), ("x-a".into(), "2".into())],
                body: b"text".to_vec(),
                key: Some("charge".into()),
                connection: Some("payments".into()),
                safety: Some(Safety::Idempotent),
                idempotency_key: Some("order-1".into()),
                timeout_ms: Some(2_500),
                ..plain("POST", "/a")
            },
        ),
        (post("/a").timeout(Duration::MAX), HttpEffect { timeout_ms: Some(u32::MAX), ..plain("POST", "/a") }),
    ];
    for (request, expected) in cases {
        assert_eq!(send(request, Ok(answer(200, &[], ""))).0, expected);
    }
}

#[test]
fn a_json_body_sets_the_content_type_once() -> Result<(), JsonError> {
    for (request, content_type) in [
        (post("/a"), "application/json"),
        (post("/a").header("Content-Type", "application/vnd.a+json"), "application/vnd.a+json"),
    ] {
        let (effect, _) = send(request.json(&[1, 2])?, Ok(answer(200, &[], "")));
        assert_eq!(effect.body, b"[1,2]");
        let types: Vec<_> =
            effect.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case("content-type")).collect();
        assert_eq!(types.len(), 1);
        assert_eq!(types[0].1, content_type);
    }
    Ok(())
}

#[test]
fn an_answer_is_read() -> Result<(), EffectError> {
    let reply = answer(201, &[("X-Id", "a"), ("x-id", "b")], r#"{"id":"ch_1"}"#);
    let answer = send(post("/a"), Ok(reply)).1?;
    assert_eq!(answer.status(), 201);
    assert_eq!(answer.header("x-ID"), Some("a"));
    assert_eq!(answer.header("x-other"), None);
    assert_eq!(answer.headers().collect::<Vec<_>>(), [("X-Id", "a"), ("x-id", "b")]);
    assert_eq!(answer.body(), br#"{"id":"ch_1"}"#);
    let body: Value = answer.json().expect("it is JSON");
    assert_eq!(body["id"], "ch_1");

    let failure = Failure::from(answer.json::<Vec<u8>>().expect_err("it is no list"));
    assert_eq!(failure.code(), "invalid_json");
    assert!(!failure.is_transient());
    assert!(
        failure.message().starts_with("the answer's body is not the expected JSON: invalid type"),
        "{failure}"
    );
    Ok(())
}

#[test]
fn an_effect_that_fails_becomes_the_failure_that_its_cause_calls_for() {
    let seconds = |n| Some(Duration::from_secs(n));
    let why = || "why".to_owned();
    let rejected = |status, headers: &[_]| EffectError::Rejected(answer(status, headers, ""));
    for (error, code, transient, retry_after) in [
        (EffectError::Denied(why()), "denied", false, None),
        (EffectError::NotSent(why()), "not_sent", true, None),
        (EffectError::NoAnswer(why()), "no_answer", true, None),
        (EffectError::ResponseTooLarge(answer(200, &[], "")), "response_too_large", false, None),
        (EffectError::Limit(why()), "limit", false, None),
        (rejected(400, &[]), "rejected", false, None),
        (rejected(402, &[("retry-after", "7")]), "rejected", false, None),
        (rejected(408, &[]), "rejected", true, None),
        (rejected(409, &[]), "rejected", false, None),
        (rejected(425, &[]), "rejected", true, None),
        (rejected(429, &[("Retry-After", " 7 ")]), "rejected", true, seconds(7)),
        (rejected(429, &[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")]), "rejected", true, None),
        (rejected(429, &[("retry-after", "-1")]), "rejected", true, None),
        (rejected(503, &[("retry-after", "0")]), "rejected", true, seconds(0)),
        (rejected(500, &[]), "rejected", true, None),
        (rejected(599, &[]), "rejected", true, None),
        (rejected(600, &[]), "rejected", false, None),
    ] {
        let failure = Failure::from(send(post("/a"), Err(error.clone())).1.expect_err("it failed"));
        assert_eq!(
            (failure.code(), failure.is_transient(), failure.retry_after()),
            (code, transient, retry_after),
            "{error:?}"
        );
        assert_eq!(failure.message(), error.to_string());
    }
}

#[test]
fn the_context_is_what_the_host_says() {
    let host = OneAnswer { asked: Asked::default(), reply: Ok(answer(200, &[], "")) };
    with(host, || {
        let place = context::place();
        assert_eq!((place.lineage.as_str(), place.node.as_str()), ("lineage", "charge"));
        assert_eq!(place.iteration, [2, 0]);
        let since_epoch = context::started_at().duration_since(std::time::UNIX_EPOCH);
        assert_eq!(since_epoch.expect("after the epoch"), Duration::from_millis(1_500));
        assert_eq!(context::random(3), [7, 7, 7]);
    });
}

#[test]
#[should_panic(expected = "no host on this thread to make an HTTP call")]
fn without_a_host_a_call_is_no_failure_that_could_be_swallowed() {
    let _ = post("/a").send();
}
