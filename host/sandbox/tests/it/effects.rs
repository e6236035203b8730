use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpRequest, HttpResponse, MailMessage,
    Safety, StorageRequest,
};
use counterfoil_domain::ports::StepEnd;
use counterfoil_testkit::guest::{EFFECT_AT, EFFECT_RESULT_AT, Guest};

use crate::port::{Act, Script};
use crate::run::model_call;
use crate::{LEASE, house, output};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

#[tokio::test]
async fn every_kind_of_effect_reaches_the_port_as_the_guest_gave_it() {
    let requests = [
        EffectRequest::Http(HttpRequest {
            method: "POST".into(),
            url: "/charges?a=ä".into(),
            headers: pairs(&[("content-type", "application/json"), ("x-empty", "")]),
            body: vec![0, 0xff, b'{'],
        }),
        EffectRequest::Emit {
            event_type: "lead.created".into(),
            record_id: Some("7".into()),
            data: "{}".into(),
        },
        EffectRequest::Emit { event_type: "tick".into(), record_id: None, data: "1".into() },
        EffectRequest::Storage(StorageRequest::Get("k".into())),
        EffectRequest::Storage(StorageRequest::Put("k".into(), vec![1, 2, 3])),
        EffectRequest::Storage(StorageRequest::Delete("k".into())),
        EffectRequest::Mail(MailMessage {
            to: vec!["a@example.com".into(), "b@example.com".into()],
            subject: "Hello".into(),
            text: "Hi".into(),
            html: Some("<p>Hi</p>".into()),
            headers: pairs(&[("x-a", "b")]),
        }),
        EffectRequest::Model("{\"prompt\":1}".into()),
        EffectRequest::Worker { queue: "print".into(), input: "[]".into() },
    ];
    let script = Script::emitted();
    let house = house(script.clone());
    let mut expected = Vec::new();
    for (index, request) in requests.into_iter().enumerate() {
        // Every second one with all its options.
        let call = if index % 2 == 0 {
            EffectCall {
                request,
                key: Some("charge".into()),
                connection: Some("payments".into()),
                safety: Some([Safety::AtMostOnce, Safety::Idempotent, Safety::ReadOnly][index / 2 % 3]),
                idempotency_key: Some("order-1".into()),
                timeout_ms: Some(1_500),
                extra: pairs(&[("later", "1")]),
            }
        } else {
            EffectCall { request, ..model_call() }
        };
        let report = house.run(&Guest::performing(&call, "(call $ok (i32.const 0) (i32.const 0))")).await;
        assert_eq!(report.end, output(""));
        expected.push((LEASE, call));
    }
    assert_eq!(script.calls(), expected);
}

#[tokio::test]
async fn every_reply_reaches_the_guest_as_the_port_gave_it() {
    let response = |body: &str| HttpResponse {
        status: 201,
        headers: pairs(&[("x-a", "b")]),
        body: body.into(),
        truncated: true,
    };
    // The guest answers with both cases as digits, and the text or body that comes with them.
    let read = |text_at: u32| {
        format!(
            "(local $at i32) (local $text-len i32)
             (i32.store8 (i32.const 700) (i32.add (i32.const 48) (i32.load8_u (i32.const {EFFECT_RESULT_AT}))))
             (i32.store8 (i32.const 701) (i32.add (i32.const 48) (i32.load8_u offset=4 (i32.const {EFFECT_RESULT_AT}))))
             (local.set $at (i32.load offset={text_at} (i32.const {EFFECT_RESULT_AT})))
             (local.set $text-len (i32.load offset={} (i32.const {EFFECT_RESULT_AT})))
             (memory.copy (i32.const 702) (local.get $at) (local.get $text-len))
             (call $ok (i32.const 700) (i32.add (i32.const 2) (local.get $text-len)))",
            text_at + 4
        )
    };
    // After the outer and the inner case: a text, the body of a response behind status and headers, an option's value.
    let (text, body, value) = (8, 8 + 12, 12);
    let answered = EffectReply::Answered;
    let failed = EffectReply::Failed;
    for (reply, at, expected) in [
        (answered(Answer::Http(response("created"))), body, "00created"),
        (answered(Answer::Emitted), text, "01"),
        (answered(Answer::Stored(Some(b"kept".to_vec()))), value, "02kept"),
        (answered(Answer::Mailed("250 queued".into())), text, "03250 queued"),
        (answered(Answer::Model("{}".into())), text, "04{}"),
        (answered(Answer::Worker("[]".into())), text, "05[]"),
        (failed(EffectFailure::Denied("host".into())), text, "10host"),
        (failed(EffectFailure::NotSent("dns".into())), text, "11dns"),
        (failed(EffectFailure::Rejected(response("no"))), body, "12no"),
        (failed(EffectFailure::NoAnswer("reset".into())), text, "13reset"),
        (failed(EffectFailure::ResponseTooLarge(response("cut"))), body, "14cut"),
        (failed(EffectFailure::Limit("64".into())), text, "1564"),
    ] {
        let locals_first = read(at);
        let (locals, rest) = locals_first.split_at(locals_first.find("(i32.store8").expect("a store"));
        let call =
            format!("{locals} (call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT})) {rest}");
        let guest = Guest::running(call).holding(&model_call());
        let report = house(Script::new(Act::Reply(reply.clone()))).run(&guest).await;
        assert_eq!(report.end, output(expected), "{reply:?}");
    }
}

#[tokio::test]
async fn a_stop_ends_the_guest_where_it_stands() {
    let script = Script::new(Act::Reply(EffectReply::Stop));
    let mut guest = Guest::echo();
    let (before, after) = (guest.text("before"), guest.text("after"));
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    let body = format!(
        "(call $log (i32.const 2) {before}) {perform} (call $log (i32.const 2) {after}) {perform}
         (call $ok (i32.const 0) (i32.const 0))"
    );
    let report = house(script.clone()).run(&guest.running_instead(body).holding(&model_call())).await;
    assert_eq!(report.end, StepEnd::Stopped);
    let lines: Vec<_> = report.logs.iter().map(|line| line.message.as_str()).collect();
    assert_eq!((lines, script.calls().len()), (vec!["before"], 1));
}

#[tokio::test]
async fn a_stop_while_the_guest_starts_ends_it_too() {
    let perform = format!("(call $perform (i32.const {EFFECT_AT}) (i32.const {EFFECT_RESULT_AT}))");
    let guest = Guest::echo().holding(&model_call()).with(&format!("(func $early {perform}) (start $early)"));
    let report = house(Script::new(Act::Reply(EffectReply::Stop))).run(&guest).await;
    assert_eq!(report.end, StepEnd::Stopped);
}

/// However often a guest asks, the port hears so much of it; the rest is refused where the guest pays for it.
#[tokio::test]
async fn a_flood_of_calls_is_heard_up_to_a_limit() {
    let script = Script::emitted();
    let flood = "(local $left i32) (local.set $left (i32.const 1000))
        (loop $again
          (call $perform (i32.const 256) (i32.const 128))
          (if (i32.load8_u (i32.const 128)) (then (unreachable)))
          (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (call $perform (i32.const 256) (i32.const 128))
        (i32.store8 (i32.const 700) (i32.add (i32.const 48) (i32.load8_u (i32.const 128))))
        (i32.store8 (i32.const 701) (i32.add (i32.const 48) (i32.load8_u offset=4 (i32.const 128))))
        (call $ok (i32.const 700) (i32.const 2))";
    let report = house(script.clone()).run(&Guest::running(flood).holding(&model_call())).await;
    assert_eq!(report.end, output("15"), "the thousand and first is a failure, and a limit");
    assert_eq!(script.calls().len(), 1_000);
}
