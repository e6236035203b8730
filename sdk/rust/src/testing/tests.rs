use std::cell::Cell;

use super::*;
use crate::prelude::*;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Order {
    #[serde(default)]
    safety: String,
    #[serde(default)]
    swallows: bool,
}

/// Looks, and then acts under the safety that it is given.
#[block(effects(
    http(connection = "crm", safety = "read-only"),
    http(connection = "payments", safety = "idempotent"),
    http(connection = "payments", safety = "at-most-once"),
))]
fn act(input: Order) -> Result<Value, Failure> {
    let company: Value = http::get("/company").connection("crm").key("look").send()?.json()?;
    let act = http::post("/acts").connection("payments").key("act").json(&company)?;
    let act = match input.safety.as_str() {
        "idempotent" => act.idempotent(),
        "read-only" => act.read_only(),
        _ => act,
    };
    match act.send() {
        Err(error) if input.swallows => Ok(json!(error.to_string())),
        answer => Ok(answer?.json()?),
    }
}

fn step(safety: &str) -> Step<act> {
    let mut step = Step::<act>::new(json!({ "safety": safety }));
    step.answer("look", (200, json!({ "tier": "gold" })));
    step.answer("act", (201, json!({ "id": 7 })));
    step
}

/// State and dispatch number of each receipt of the act, and how often the provider saw it.
fn acts(step: &Step<act>) -> (Vec<(State, u64)>, usize) {
    let receipts = step.receipts().into_iter().filter(|receipt| receipt.effect == "act");
    let sent = step.sent().iter().filter(|sent| sent.effect == "act").count();
    (receipts.map(|receipt| (receipt.state, receipt.dispatch_number)).collect(), sent)
}

/// Safety, what goes wrong, the output if there is one, and each receipt and how many calls there are then.
type Case<'a> = (&'a str, fn(&mut Step<act>) -> &mut Step<act>, Option<&'a Value>, &'a [(State, u64)], usize);

#[test]
fn a_fault_costs_what_the_safety_of_its_effect_allows() {
    use State::{Committed, Rejected, Unknown, Verified};
    let done = json!({ "id": 7 });
    let cases: [Case<'_>; 9] = [
        ("at-most-once", |step| step.crash_before_answer(2), None, &[(Unknown, 0)], 1),
        ("at-most-once", |step| step.crash_after_answer(2), Some(&done), &[(Committed, 0)], 1),
        ("at-most-once", |step| step.drop_answer(2), None, &[(Unknown, 0)], 1),
        ("idempotent", |step| step.crash_before_answer(2), Some(&done), &[(Verified, 0), (Committed, 1)], 2),
        ("idempotent", |step| step.crash_after_answer(2), Some(&done), &[(Committed, 0)], 1),
        ("idempotent", |step| step.drop_answer(2), Some(&done), &[(Verified, 0), (Committed, 1)], 2),
        ("read-only", |step| step.crash_before_answer(2), Some(&done), &[(Committed, 0)], 2),
        ("read-only", |step| step.crash_after_answer(2), Some(&done), &[(Committed, 0)], 1),
        // The block is told, fails for now, and asks again.
        ("read-only", |step| step.drop_answer(2), Some(&done), &[(Rejected, 0), (Committed, 1)], 2),
    ];
    for (safety, arm, output, receipts, sent) in cases {
        let mut step = step(safety);
        arm(&mut step);
        let end = step.run();
        match output {
            Some(output) => assert_eq!(&end.output(), output, "{safety}"),
            None => assert!(end.is_blocked(), "{safety}: {end:?}"),
        }
        assert_eq!(acts(&step), (receipts.to_vec(), sent), "{safety}");
        let keys: Vec<_> = step.sent().into_iter().filter_map(|sent| sent.idempotency_key).collect();
        assert!(
            keys.windows(2).all(|keys| keys[0] == keys[1]),
            "what is sent again goes under its key: {keys:?}"
        );
    }
}

#[test]
fn a_person_says_what_happened_and_the_step_goes_on() {
    let seen = || Resolution::committed((201, json!({ "id": 8 })), "seen");
    let absent = || Resolution::abandoned("it is not there");
    for (resolution, output, receipts, sent) in [
        (seen(), 8, vec![(State::Committed, 0)], 1),
        (absent(), 7, vec![(State::Abandoned, 0), (State::Committed, 1)], 2),
        (Resolution::compensated("paid back"), 7, vec![(State::Compensated, 0), (State::Committed, 1)], 2),
    ] {
        let mut step = step("at-most-once");
        step.drop_answer(2);
        assert!(step.run().is_blocked());
        assert!(step.run().is_blocked(), "still");
        step.advance(Duration::from_secs(50));
        step.resolve("act", resolution);
        assert_eq!(step.run().output(), json!({ "id": output }));
        assert_eq!(acts(&step), (receipts, sent));
    }

    let mut step = step("at-most-once");
    step.drop_answer(2);
    assert_eq!(step.try_resolve("act", seen()), Err(Unresolvable::NotUnknown));
    step.run();
    let refused = [
        (absent(), Unresolvable::TooEarly(Duration::from_secs(50))),
        (Resolution::committed((201, json!(1)), " "), Unresolvable::NoEvidence),
        (Resolution::committed((402, json!(1)), "seen"), Unresolvable::NotSuccess(402)),
    ];
    for (resolution, why) in refused {
        assert_eq!(step.try_resolve("act", resolution), Err(why));
    }
}

#[test]
fn an_unknown_outcome_is_no_error_that_a_block_can_swallow() {
    for (reply, swallowed) in
        [((500, json!(1)), None), ((402, json!(1)), Some("the receiver refused the call with status 402"))]
    {
        let mut step = Step::<act>::new(json!({ "swallows": true }));
        step.answer("look", (200, json!(1))).answer("act", reply);
        match (step.run(), swallowed) {
            (End::Succeeded(output), Some(text)) => assert_eq!(output, json!(text)),
            (end, None) => assert!(end.is_blocked(), "{end:?}"),
            (end, _) => panic!("{end:?}"),
        }
    }
}

#[test]
fn attempts_run_out_and_what_was_refused_is_tried_again() {
    let mut step = step("at-most-once");
    step.answer(2, Answer::new(429, "")).answer(4, (201, json!(4)));
    let waiting = step.run_once();
    assert!(matches!(waiting, End::Waiting { delay, .. } if delay == Duration::from_secs(60)), "{waiting:?}");
    assert_eq!(step.run_once().output(), json!(4), "the look is repeated, since nothing has happened yet");
    assert_eq!(step.sent().len(), 4);

    let mut step = Step::<act>::new(json!({}));
    step.otherwise(Answer::new(429, ""));
    assert_eq!(step.run().failure_code(), "rejected");
    assert_eq!(step.sent().len(), 4, "one attempt and three more");

    let mut step = self::step("idempotent");
    step.answer(("POST", "/acts"), (201, json!(1)));
    for nth in 2..=5 {
        step.drop_answer(nth);
    }
    assert!(step.run().is_blocked(), "an open outcome is blocked, never failed");
    assert_eq!(step.sent().len(), 5, "the look lies in the history from then on");
}

#[test]
fn a_replay_does_nothing_again_that_may_have_happened() {
    let mut failing = failing::step(Value::Null);
    failing.answer("act", (201, json!(1)));
    assert_eq!(failing.run().failure_code(), "after");
    assert_eq!(failing.replay().run().failure_code(), "after");
    assert_eq!(failing.sent().len(), 1);
}

mod failing {
    use super::{Block, Step};
    use crate::prelude::*;

    /// The type of a block is its module's own.
    pub(super) fn step(input: impl Serialize) -> Step<impl Block> {
        Step::<fails_after>::new(input)
    }

    /// Acts, and fails.
    #[block(effects(http(hosts = ["a.example"])))]
    fn fails_after(_input: Value) -> Result<Value, Failure> {
        http::post("https://a.example/").key("act").send()?;
        Err(Failure::permanent("after", "too late"))
    }
}

mod handing {
    use super::{Block, Step};
    use crate::prelude::*;

    /// The type of a block is its module's own.
    pub(super) fn step(input: impl Serialize) -> Step<impl Block> {
        Step::<prints>::new(input)
    }

    /// Looks, hands over work, and keeps what came of it.
    #[block(effects(
        http(hosts = ["a.example"], safety = "read-only"),
        worker,
        worker(safety = "idempotent"),
        storage,
    ))]
    fn prints(input: Value) -> Result<Value, Failure> {
        let paper: Value = http::get("https://a.example/paper").key("look").send()?.json()?;
        let mut label = worker::task("papers").json(&json!({ "paper": paper }))?.key("label");
        if input == json!("idempotent") {
            label = label.idempotent();
        }
        let pages: Value = label.send()?.json()?;
        storage::put("pages").json(&pages)?.send()?;
        Ok(pages)
    }
}

/// Safety, what its workers say, the number of a call at which the process dies; the output, or how it ends, and the receipts.
type WorkCase<'a> = (&'a str, &'a [&'a Reply], usize, &'a str, &'a [State]);

#[test]
fn work_for_a_worker_outlives_the_process_and_is_not_given_twice() {
    use State::{Committed, Rejected, Unknown, Verified};
    let (done, lost) = (Reply::worker(&json!(3)), Reply::lost());
    let refused = Reply::worker_failed("no-paper", "it is empty");
    let broken: Reply = (500, json!({ "code": "fire", "message": "it burns" })).into();
    let cases: [WorkCase<'_>; 9] = [
        ("at-most-once", &[&done], 0, "3", &[Committed]),
        ("at-most-once", &[&done], 2, "3", &[Committed]),
        ("at-most-once", &[&lost], 0, "blocked", &[Unknown]),
        ("at-most-once", &[&broken], 0, "blocked", &[Unknown]),
        ("at-most-once", &[&refused], 0, "worker_failed", &[Rejected]),
        ("at-most-once", &[&Reply::not_sent(), &done], 0, "3", &[Rejected, Committed]),
        ("idempotent", &[&lost, &done], 0, "3", &[Verified, Committed]),
        ("idempotent", &[&lost, &Reply::not_sent(), &done], 2, "3", &[Verified, Rejected, Committed]),
        ("idempotent", &[&lost, &refused], 0, "blocked", &[Unknown, Rejected]),
    ];
    for (safety, replies, crash, expected, receipts) in cases {
        let mut step = handing::step(safety);
        step.answer("look", (200, json!("a4")));
        for reply in replies {
            step.answer("label", (*reply).clone());
        }
        if crash > 0 {
            step.crash_before_answer(crash);
        }
        let ended = match step.run() {
            End::Succeeded(output) => output.to_string(),
            End::Failed { code, .. } => code,
            End::Blocked { .. } => "blocked".into(),
            other => panic!("{other:?}"),
        };
        let of_work = || step.receipts().into_iter().filter(|receipt| receipt.kind == "worker");
        let states: Vec<State> = of_work().map(|receipt| receipt.state).collect();
        assert_eq!((&*ended, &*states), (expected, receipts), "{safety} {replies:?}");
        assert!(of_work().all(|receipt| receipt.idempotency_key == step.receipt("label").idempotency_key));
        assert_eq!(step.stored("pages").is_some(), expected == "3", "with the step");
        let given = step.sent().into_iter().filter(|sent| sent.request == "worker papers");
        let inputs: Vec<Value> = given.map(|sent| sent.json()).collect();
        assert!(inputs.iter().all(|input| *input == json!({ "paper": "a4" })), "{inputs:?}");
    }
}

#[test]
fn a_person_says_what_came_of_work_when_it_can_no_longer_be_done() {
    let mut step = handing::step("at-most-once");
    step.answer("look", (200, json!("a4"))).answer("label", Reply::worker(&json!(3))).drop_answer(2);
    assert!(step.run().is_blocked());
    // An hour in the queue, an hour at the worker's, and what a host adds.
    let left = Duration::from_secs(2 * 3_600 + 20);
    let absent = || Resolution::abandoned("the printer shows none");
    assert_eq!(step.try_resolve("label", absent()), Err(Unresolvable::TooEarly(left)));
    step.advance(left).resolve("label", absent());
    assert_eq!(step.run().output(), json!(3));

    let mut step = handing::step("at-most-once");
    step.answer("look", (200, json!("a4"))).answer("label", Reply::lost());
    assert!(step.run().is_blocked());
    step.resolve("label", Resolution::committed((200, json!(7)), "seven pages lie there"));
    assert_eq!(step.run().output(), json!(7));
}

mod own {
    use super::{Block, Step};
    use crate::prelude::*;

    /// The type of a block is its module's own.
    pub(super) fn step(input: impl Serialize) -> Step<impl Block> {
        Step::<counts>::new(input)
    }

    /// Counts, and tells.
    #[block(effects(emit, storage))]
    fn counts(input: Value) -> Result<u64, Failure> {
        let before = storage::get("n").send()?.map_or(Ok(0), |value| value.json())?;
        storage::put("n").json(&(before + 1))?.send()?;
        let after: u64 = storage::get("n").send()?.map_or(Ok(0), |value| value.json())?;
        emit::event("counted").record("r").json(&after)?.send()?;
        if input == json!("fail") {
            return Err(Failure::permanent("asked", ""));
        }
        Ok(after)
    }
}

#[test]
fn what_is_our_own_changes_with_the_step_or_not_at_all() {
    let mut step = own::step(Value::Null);
    step.store("n", 4);
    assert_eq!(step.run().output(), json!(5));
    assert_eq!(step.stored("n"), Some(json!(5)));
    let emitted = step.emitted();
    assert_eq!((emitted.len(), &*emitted[0].event_type, &emitted[0].data), (1, "counted", &json!(5)));
    let receipts: Vec<String> = step.receipts().into_iter().map(|receipt| receipt.request).collect();
    assert_eq!(
        receipts,
        ["get n", "put n", "emit counted"],
        "what it wrote itself it reads without a receipt"
    );

    let mut step = own::step("fail");
    assert_eq!(step.run().failure_code(), "asked");
    assert_eq!((step.stored("n"), step.emitted().len(), step.receipts().len()), (None, 0, 1));
}

thread_local! {
    static CALLED: Cell<u32> = const { Cell::new(0) };
}

mod wrong {
    use super::{Block, CALLED, Step};
    use crate::prelude::*;

    /// The type of a block is its module's own.
    pub(super) fn step(input: impl Serialize) -> Step<impl Block> {
        Step::<remembers>::new(input)
    }

    /// Remembers what it must not.
    #[block(effects(http(hosts = ["a.example"])))]
    fn remembers(input: String) -> Result<u32, Failure> {
        let called = CALLED.get();
        CALLED.set(called + 1);
        match input.as_str() {
            "url" => drop(http::post(format!("https://a.example/{called}")).send()?),
            "body" => drop(http::post("https://a.example/").json(&called)?.send()?),
            "more" => {
                for _ in 0..=called {
                    http::get("https://a.example/").send()?;
                }
            }
            "less" => {
                for _ in called..1 {
                    http::get("https://a.example/").send()?;
                }
            }
            "panic" => panic!("the block's own words"),
            "denied" => drop(http::get("https://b.example/").send()?),
            "twice" => {
                http::get("https://a.example/").key("k").send()?;
                http::get("https://a.example/").key("k").send()?;
            }
            "many" => {
                for _ in 0..65 {
                    http::get("https://a.example/").send()?;
                }
            }
            _ => return Ok(called),
        }
        Ok(0)
    }
}

fn remembering(what: &str) -> Step<impl Block> {
    CALLED.set(0);
    let mut step = wrong::step(what);
    step.otherwise(Answer::new(200, ""));
    step
}

#[test]
fn a_block_that_does_not_do_the_same_again_is_told_so() {
    for (what, expected) in [
        (
            "url",
            "answers from its journal, call 1 was `POST https://a.example/1` of `#0`, and had been `POST https://a.example/0` of `#0`",
        ),
        ("body", "call 1 was `POST https://a.example/` of `#0`, and had been the same with another content"),
        ("more", "call 2 was `GET https://a.example/` of `#1`, and had been no call"),
        ("less", "call 1 was not made, and had been `GET https://a.example/`"),
        ("output", "it ended with Ok(Succeeded(Number(1))), and had ended with Ok(Succeeded(Number(0)))"),
    ] {
        let panic = catch_unwind(AssertUnwindSafe(|| remembering(what).run())).expect_err(what);
        let said = panic.downcast_ref::<String>().expect("a text");
        assert!(said.contains("the block is not deterministic") && said.contains(expected), "{what}: {said}");
    }
}

#[test]
fn what_no_host_allows_is_refused_here_too() {
    for (what, code, sent) in
        [("denied", "denied", 0), ("twice", "limit", 1), ("many", "limit", 64), ("panic", "guest_trap", 0)]
    {
        let mut step = remembering(what);
        assert_eq!(step.run().failure_code(), code, "{what}");
        assert_eq!(step.sent().len(), sent, "{what}");
    }
}

#[test]
#[should_panic(expected = "no answer is scripted for call 1, `GET https://a.example/` of the effect `k`")]
fn a_call_that_no_answer_is_scripted_for_fails_the_test() {
    wrong::step("twice").run();
}

mod knowing {
    use super::{Step, Verify};
    use crate::prelude::*;

    /// The type of a block is its module's own.
    pub(super) fn step(input: impl Serialize) -> Step<impl Verify> {
        Step::<sends>::new(input)
    }

    /// Sends, and finds out what became of it.
    #[block(effects(mail(connection = "post"), http(hosts = ["a.example"])), verify = look)]
    fn sends(_input: Value) -> Result<Value, Failure> {
        context::log(context::Level::Info, "hello");
        let random = context::random(4);
        let started_at = context::started_at().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let sent = mail::to("a@b.example").subject("s").text("t").connection("post").key("m").send()?;
        Ok(json!([sent, random, started_at.as_secs(), context::place().node]))
    }

    fn look(effect: &UnknownEffect) -> Result<Verdict, Failure> {
        let key = effect.idempotency_key.clone().unwrap_or_default();
        match http::get(format!("https://a.example/{key}")).send() {
            Ok(found) => Ok(Verdict::applied(found)),
            Err(EffectError::Rejected(answer)) if answer.status() == 404 => Ok(Verdict::NotApplied),
            Err(error) => Err(error.into()),
        }
    }
}

#[test]
fn a_block_finds_out_by_itself() {
    let place = json!([[0x76, 0xb8, 0xe0, 0xad], 1_767_225_600, "letters"]);
    let output = |reply: &str| json!([reply, place[0], place[1], place[2]]);
    for (status, after, expected) in [
        // An answer of HTTP is none of a mail server.
        (200, 60, None),
        (404, 60, Some(output("250 ok"))),
        (404, 0, None),
        (500, 60, None),
    ] {
        let mut step = knowing::step(Value::Null);
        step.place("letters", &[]).answer("m", Reply::lost()).answer("m", Reply::mail(250, "ok"));
        step.answer(("GET", "https://a.example/*"), Answer::new(status, "taken"));
        assert!(step.run().is_blocked());
        step.advance(Duration::from_secs(after));
        step.verify("m");
        match expected {
            Some(output) => assert_eq!(step.run().output(), output, "{status}"),
            None => assert!(step.run().is_blocked(), "{status} after {after} s"),
        }
        assert_eq!(step.logs(), [(Level::Info, "hello".to_owned())], "lines are not repeated");
    }
}
