use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::Failure;
use crate::host::native::{Host, with};

/// Notes what is queued, and says the same of everything.
struct Queue {
    queued: Rc<RefCell<Vec<WorkerEffect>>>,
    said: Result<String, EffectError>,
}

impl Host for Queue {
    fn worker(&mut self, effect: WorkerEffect) -> Result<String, EffectError> {
        self.queued.borrow_mut().push(effect);
        self.said.clone()
    }
}

fn send(task: Task, said: Result<String, EffectError>) -> (Vec<WorkerEffect>, Result<Output, EffectError>) {
    let queued = Rc::default();
    let result = with(Queue { queued: Rc::clone(&queued), said }, || task.send());
    (queued.take(), result)
}

#[test]
fn work_crosses_as_it_was_built() {
    let plain = WorkerEffect { queue: "papers".into(), input: "null".into(), ..WorkerEffect::default() };
    let whole = task("papers")
        .json(&json!({ "order": "o-1" }))
        .expect("JSON")
        .key("label")
        .claim_within(Duration::from_secs(86_400))
        .timeout(Duration::from_millis(2_500))
        .idempotent()
        .idempotency_key("o-1");
    let expected = WorkerEffect {
        queue: "papers".into(),
        input: r#"{"order":"o-1"}"#.into(),
        key: Some("label".into()),
        is_idempotent: true,
        idempotency_key: Some("o-1".into()),
        claim_within_ms: Some(86_400_000),
        timeout_ms: Some(2_500),
    };
    for (task, expected) in [(task("papers"), plain), (whole, expected)] {
        let (queued, output) = send(task, Ok(r#"{"pages":3}"#.into()));
        assert_eq!(queued, [expected]);
        let output = output.expect("it is done");
        assert_eq!(output.text(), r#"{"pages":3}"#);
        assert_eq!(output.json::<Value>().expect("JSON"), json!({ "pages": 3 }));
        let failure = Failure::from(output.json::<u32>().expect_err("another shape"));
        assert_eq!((failure.code(), failure.is_transient()), ("invalid_json", false));
    }
}

/// A worker that thinks another try worth it is told as work that was not sent.
#[test]
fn a_worker_that_refuses_fails_the_step_for_good() {
    let refused = EffectError::WorkerFailed { code: "no-paper".into(), message: "it is empty".into() };
    let not_taken = EffectError::NotSent("no worker took it".into());
    for (error, expected) in [
        (refused, ("worker_failed", false, "the worker failed with `no-paper`: it is empty")),
        (not_taken, ("not_sent", true, "the call was not sent: no worker took it")),
    ] {
        let failure = Failure::from(send(task("papers"), Err(error)).1.expect_err("it failed"));
        assert_eq!((failure.code(), failure.is_transient(), failure.message()), expected);
    }
}
