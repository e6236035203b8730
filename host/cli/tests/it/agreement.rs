//! The SDK's native tests have a journal of their own, so that a block's tests need none of the host. Random steps through
//! crashes, lost answers, retries and resolutions come to the same in both: the same ends, receipts and calls.

use std::cell::Cell;

use chrono::DateTime;
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::effect::{
    Answer as HostAnswer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpRequest, HttpResponse,
    Safety as HostSafety,
};
use counterfoil_domain::ports::StepEnd;
use counterfoil_domain::receipt::resolution::{Outcome as Said, Resolution as HostResolution};
use counterfoil_domain::receipt::{Actor, Recorded};
use counterfoil_domain::rehearsal::{Calls, Fault, Outcome, Provider, Rehearsal, Reply as HostReply};
use counterfoil_sdk::prelude::*;
use counterfoil_sdk::testing::{Answer, End, Reply, Resolution, Safety, State, Step};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// What a random block does.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
struct Program {
    calls: Vec<Ask>,
}

/// One call of it.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
struct Ask {
    label: Option<String>,
    method: String,
    path: String,
    /// Of a call of HTTP; without one, it hands work to a worker, in the queue that the path names.
    connection: Option<String>,
    safety: Option<u8>,
    own_key: bool,
    /// Goes on when the call is refused.
    swallows: bool,
    /// Goes elsewhere when the block is run again.
    changes: bool,
}

thread_local! {
    /// Which execution of the step this is, from 1.
    static EXECUTION: Cell<u32> = const { Cell::new(0) };
}

impl Ask {
    fn path(&self) -> &str {
        if self.changes && EXECUTION.get() > 1 { "/elsewhere" } else { &self.path }
    }

    fn queue(&self) -> &str {
        self.path().trim_start_matches('/')
    }

    fn is_idempotent(&self) -> bool {
        self.safety == Some(1)
    }

    /// Natively: what it was told.
    fn ask(&self) -> Result<String, EffectError> {
        let body = json!({ "b": 1, "a": 2.0 });
        let Some(connection) = &self.connection else {
            let mut task = worker::task(self.queue()).json(&body).expect("JSON");
            if let Some(label) = &self.label {
                task = task.key(label);
            }
            if self.is_idempotent() {
                task = task.idempotent();
            }
            if self.own_key {
                task = task.idempotency_key("own");
            }
            return task.send().map(|output| output.text().to_owned());
        };
        let mut request = http::request(&self.method, self.path()).connection(connection);
        request = request.json(&body).expect("JSON");
        if let Some(label) = &self.label {
            request = request.key(label);
        }
        if let Some(safety) = self.safety {
            request = request.safety(SAFETIES[usize::from(safety)].0);
        }
        if self.own_key {
            request = request.idempotency_key("own");
        }
        request.send().map(|answer| answer.status().to_string())
    }

    /// The same at the host's door.
    fn call(&self) -> EffectCall {
        let body = r#"{"a":2,"b":1}"#;
        let is_work = self.connection.is_none();
        let request = if is_work {
            EffectRequest::Worker { queue: self.queue().into(), input: body.into() }
        } else {
            EffectRequest::Http(HttpRequest {
                method: self.method.clone(),
                url: self.path().to_owned(),
                headers: vec![("content-type".into(), "application/json".into())],
                body: body.into(),
            })
        };
        let safety = if is_work {
            self.is_idempotent().then_some(HostSafety::Idempotent)
        } else {
            self.safety.map(|safety| SAFETIES[usize::from(safety)].1)
        };
        EffectCall {
            request,
            key: self.label.clone(),
            connection: self.connection.clone(),
            safety,
            idempotency_key: self.own_key.then(|| "own".into()),
            timeout_ms: None,
            extra: vec![],
        }
    }
}

/// What the provider does with its nth call, and what goes wrong there.
#[derive(Debug, Clone)]
struct Act {
    does: Does,
    fault: Option<Fault>,
}

#[derive(Debug, Clone)]
enum Does {
    Answer { status: u16, retry_after: Option<u64> },
    NotSent,
    Lost,
}

/// What a person says of the first effect that is unknown, after a while.
#[derive(Debug, Clone)]
struct Says {
    state: u8,
    after_ms: u64,
    status: u16,
}

const SAFETIES: [(Safety, HostSafety); 3] = [
    (Safety::AtMostOnce, HostSafety::AtMostOnce),
    (Safety::Idempotent, HostSafety::Idempotent),
    (Safety::ReadOnly, HostSafety::ReadOnly),
];

/// Does what it is given; its output is what it was told.
#[block(effects(
    http(connection = "pay", safety = "at-most-once"),
    http(connection = "pay", safety = "idempotent"),
    http(connection = "crm", safety = "read-only"),
    worker,
    worker(safety = "idempotent"),
))]
fn interprets(program: Program) -> Result<Vec<String>, Failure> {
    EXECUTION.set(EXECUTION.get() + 1);
    let mut told = vec![];
    for ask in program.calls {
        match ask.ask() {
            Ok(answer) => told.push(answer),
            Err(error) if ask.swallows => told.push(Failure::from(error).code().to_owned()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(told)
}

/// The same block at the host's door.
fn interpret(program: &Program, rehearsal: &mut Rehearsal) -> StepEnd {
    EXECUTION.set(EXECUTION.get() + 1);
    let mut told = vec![];
    for ask in &program.calls {
        let failure = match rehearsal.perform(&ask.call()) {
            EffectReply::Stop => return StepEnd::Stopped,
            EffectReply::Answered(HostAnswer::Http(response)) => {
                told.push(response.status.to_string());
                continue;
            }
            EffectReply::Answered(HostAnswer::Worker(output)) => {
                told.push(output);
                continue;
            }
            EffectReply::Answered(other) => panic!("{other:?}"),
            EffectReply::Failed(failure) => failure,
        };
        let (code, retry_after_ms) = match failure {
            EffectFailure::Denied(_) => ("denied", None),
            EffectFailure::NotSent(_) => ("not_sent", Some(0)),
            EffectFailure::Rejected(_) if ask.connection.is_none() => ("worker_failed", None),
            EffectFailure::Rejected(response) => {
                ("rejected", matches!(response.status, 408 | 425 | 429 | 500..=599).then_some(0))
            }
            EffectFailure::NoAnswer(_) => ("no_answer", Some(0)),
            EffectFailure::ResponseTooLarge(_) => ("response_too_large", None),
            EffectFailure::Limit(_) => ("limit", None),
        };
        if !ask.swallows {
            return StepEnd::Failed { retry_after_ms, code: code.into(), message: String::new() };
        }
        told.push(code.to_owned());
    }
    StepEnd::Output(json!(told).to_string())
}

/// All that is compared: the end, the receipts, the calls that were seen. Keys are told apart by where each is first met.
#[derive(Debug, PartialEq)]
struct Seen {
    end: String,
    receipts: Vec<(String, String, String, u64, u32, usize)>,
    calls: Vec<(String, String, Option<usize>)>,
}

#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    fn nth(&mut self, key: &str) -> usize {
        let known = self.0.iter().position(|known| known == key);
        known.unwrap_or_else(|| {
            self.0.push(key.to_owned());
            self.0.len() - 1
        })
    }
}

fn natively(program: &Program, acts: &[Act], says: &[Says]) -> Vec<Seen> {
    EXECUTION.set(0);
    let mut step = Step::<interprets>::new(program);
    for (index, act) in acts.iter().enumerate() {
        let reply: Reply = match &act.does {
            Does::Answer { status, retry_after } => {
                let answer = Answer::new(*status, "");
                retry_after
                    .map_or(answer.clone(), |s| answer.with_header("Retry-After", s.to_string()))
                    .into()
            }
            Does::NotSent => Reply::not_sent(),
            Does::Lost => Reply::lost(),
        };
        step.answer(index + 1, reply);
        match act.fault {
            Some(Fault::CrashBefore) => step.crash_before_answer(index + 1),
            Some(Fault::CrashAfter) => step.crash_after_answer(index + 1),
            Some(Fault::Lose) => step.drop_answer(index + 1),
            None => &mut step,
        };
    }
    step.otherwise(Answer::new(200, ""));
    let mut seen = vec![];
    for says in std::iter::once(None).chain(says.iter().map(Some)) {
        if let Some(says) = says {
            step.advance(std::time::Duration::from_millis(says.after_ms));
            let unknown = step.receipts().into_iter().find(|receipt| receipt.state == State::Unknown);
            let Some(unknown) = unknown else { break };
            let answer = Answer::new(says.status, "");
            let _ = step.try_resolve(
                &unknown.effect,
                match says.state {
                    0 => Resolution::committed(answer, "seen"),
                    1 => Resolution::verified(answer, "seen"),
                    2 => Resolution::abandoned("seen"),
                    _ => Resolution::compensated("seen"),
                },
            );
        }
        // Not `run`, which would find that a block which changes is not deterministic.
        let end = loop {
            match step.run_once() {
                End::Crashed => {}
                End::Waiting { delay, .. } => drop(step.advance(delay)),
                end => break end,
            }
        };
        let is_blocked = end.is_blocked();
        let mut keys = Keys::default();
        seen.push(Seen {
            end: match end {
                End::Succeeded(output) => output.to_string(),
                End::Failed { code, .. } => code,
                End::Blocked { .. } => "blocked".into(),
                other => format!("{other:?}"),
            },
            receipts: step
                .receipts()
                .into_iter()
                .map(|receipt| {
                    let (state, safety) = (format!("{:?}", receipt.state), format!("{:?}", receipt.safety));
                    let key = keys.nth(&receipt.idempotency_key);
                    (receipt.effect, state, safety, receipt.dispatch_number, receipt.attempt, key)
                })
                .collect(),
            calls: step
                .sent()
                .into_iter()
                .map(|sent| (sent.effect, sent.request, sent.idempotency_key.map(|key| keys.nth(&key))))
                .collect(),
        });
        if !is_blocked {
            break;
        }
    }
    seen
}

fn response(status: u16, retry_after: Option<u64>) -> HttpResponse {
    let header = retry_after.map(|seconds| ("Retry-After".to_owned(), seconds.to_string()));
    HttpResponse { status, headers: header.into_iter().collect(), body: vec![], truncated: false }
}

fn rehearsal(acts: &[Act]) -> Rehearsal {
    let mut provider = Provider::default();
    for (nth, act) in (1..).zip(acts) {
        let reply = match &act.does {
            Does::Answer { status, retry_after } => HostReply::Answer(response(*status, *retry_after)),
            Does::NotSent => HostReply::NotSent,
            Does::Lost => HostReply::Lost,
        };
        provider.answer(Calls::Nth(nth), reply);
        if let Some(fault) = act.fault {
            provider.fault(nth, fault);
        }
    }
    provider.otherwise(HostReply::Answer(response(200, None)));
    let grants =
        [("pay", HostSafety::AtMostOnce), ("pay", HostSafety::Idempotent), ("crm", HostSafety::ReadOnly)];
    let calls = grants.map(|(connection, safety)| EffectGrant {
        kind: "http".into(),
        safety,
        connections: vec![connection.into()],
        hosts: vec![],
    });
    let work = [HostSafety::AtMostOnce, HostSafety::Idempotent].map(|safety| EffectGrant {
        kind: "worker".into(),
        safety,
        connections: vec![],
        hosts: vec![],
    });
    Rehearsal::new(calls.into_iter().chain(work).collect(), provider, DateTime::UNIX_EPOCH)
}

fn at_the_host(program: &Program, acts: &[Act], says: &[Says]) -> Vec<Seen> {
    EXECUTION.set(0);
    let mut rehearsal = rehearsal(acts);
    let mut seen = vec![];
    for says in std::iter::once(None).chain(says.iter().map(Some)) {
        if let Some(says) = says {
            rehearsal.advance(says.after_ms);
            let unknown = rehearsal.receipts().into_iter().find(|it| it.state.name() == "unknown");
            let Some(unknown) = unknown else { break };
            let outcome = [Said::Committed, Said::Verified, Said::Abandoned, Said::Compensated]
                [usize::from(says.state)];
            let answer = || Recorded::Answer(HostAnswer::Http(response(says.status, None)));
            let resolution = HostResolution {
                outcome,
                evidence: "seen".into(),
                recorded: outcome.needs_answer().then(answer),
                provider_receipt_id: None,
            };
            let _ = rehearsal.resolve(&unknown.effect, resolution, Actor::Person("ada".into()));
        }
        let outcome = loop {
            if rehearsal.is_blocked() {
                break Outcome::Blocked { reason: String::new() };
            }
            rehearsal.begin();
            let end = interpret(program, &mut rehearsal);
            match rehearsal.finish(end) {
                Outcome::Crashed | Outcome::Queued => {}
                Outcome::Waiting { delay_ms } => rehearsal.advance(delay_ms),
                outcome => break outcome,
            }
        };
        let is_blocked = matches!(outcome, Outcome::Blocked { .. });
        let mut keys = Keys::default();
        seen.push(Seen {
            end: match outcome {
                Outcome::Succeeded(output) => output.to_string(),
                Outcome::Failed { code, .. } => code,
                Outcome::Blocked { .. } => "blocked".into(),
                other => format!("{other:?}"),
            },
            receipts: rehearsal
                .receipts()
                .into_iter()
                .map(|receipt| {
                    let (state, safety) = (format!("{:?}", receipt.state), format!("{:?}", receipt.safety));
                    let key = keys.nth(&receipt.idempotency_key);
                    (receipt.effect, state, safety, receipt.dispatch, receipt.attempt, key)
                })
                .collect(),
            calls: rehearsal
                .sent()
                .iter()
                .map(|sent| {
                    let key = sent.idempotency_key.as_ref().map(|key| keys.nth(key));
                    (sent.effect.clone(), sent.request.clone(), key)
                })
                .collect(),
        });
        let executions = EXECUTION.get();
        let reruns = if program.calls.iter().any(|ask| ask.changes) { vec![] } else { rehearsal.reruns() };
        for mut again in reruns {
            again.begin();
            let end = interpret(program, &mut again);
            again.finish(end);
            assert_eq!(again.difference(), None);
        }
        EXECUTION.set(executions);
        if !is_blocked {
            break;
        }
    }
    seen
}

fn asks() -> impl Strategy<Value = Ask> {
    let label = prop_oneof![2 => Just(None), 3 => "[abc]".prop_map(Some)];
    let method = prop_oneof![1 => Just("GET"), 3 => Just("POST")];
    let connection = prop_oneof![8 => Just(Some("pay")), 2 => Just(Some("crm")), 1 => Just(Some("other")), 5 => Just(None)];
    let safety = prop_oneof![2 => Just(None), 3 => (0_u8..3).prop_map(Some)];
    let changes = prop_oneof![6 => Just(false), 1 => Just(true)];
    // A queue cannot be named `Z`.
    (label, method, "/[xyZ]", connection, safety, any::<bool>(), any::<bool>(), changes).prop_map(
        |(label, method, path, connection, safety, own_key, swallows, changes)| Ask {
            label,
            method: method.into(),
            path,
            connection: connection.map(Into::into),
            safety,
            own_key,
            swallows,
            changes,
        },
    )
}

fn acts() -> impl Strategy<Value = Act> {
    let statuses = vec![200, 201, 204, 302, 400, 404, 408, 409, 425, 429, 500, 502, 503, 504, 199, 600];
    let answer = (proptest::sample::select(statuses), proptest::option::of(0_u64..2_000))
        .prop_map(|(status, retry_after)| Does::Answer { status, retry_after });
    let does = prop_oneof![8 => answer, 1 => Just(Does::NotSent), 1 => Just(Does::Lost)];
    let fault = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Fault::CrashBefore)),
        1 => Just(Some(Fault::CrashAfter)),
        1 => Just(Some(Fault::Lose)),
    ];
    (does, fault).prop_map(|(does, fault)| Act { does, fault })
}

fn says() -> impl Strategy<Value = Says> {
    let status = prop_oneof![4 => Just(201_u16), 1 => Just(404)];
    // When a call, and when work, can no longer take place, and the moment before.
    let after_ms = proptest::sample::select(vec![0_u64, 49_999, 50_000, 7_219_999, 7_220_000]);
    (0_u8..4, after_ms, status).prop_map(|(state, after_ms, status)| Says { state, after_ms, status })
}

#[test]
fn the_sdks_rules_are_the_hosts() {
    const CASES: u32 = 3_000;
    let cases = (
        proptest::collection::vec(asks(), 1..5),
        proptest::collection::vec(acts(), 0..10),
        proptest::collection::vec(says(), 0..5),
    );
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&cases, |(calls, acts, says)| {
        let program = Program { calls };
        prop_assert_eq!(natively(&program, &acts, &says), at_the_host(&program, &acts, &says));
        Ok(())
    });
    if let Err(difference) = outcome {
        panic!("{difference}");
    }
}
