//! The example blocks, built by `scripts/guests`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use counterfoil_domain::effect::{
    Answer, EffectCall, EffectReply, EffectRequest, HttpResponse, StorageRequest,
};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::ports::{EffectPort, StepEnd, StepJob, StepReport, StepRunner as _};
use serde_json::{Value, json};

use crate::{House, house, job};

/// The component of an example block.
pub(crate) fn example(name: &str) -> Vec<u8> {
    let file = example_path(name);
    std::fs::read(&file).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run scripts/guests (for languages other than Rust, scripts/languages) first",
            file.display()
        )
    })
}

/// Where it is, if it was built.
pub(crate) fn example_path(name: &str) -> PathBuf {
    let directory = std::env::var_os("COUNTERFOIL_GUESTS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guests")),
        PathBuf::from,
    );
    directory.join(format!("{name}.wasm"))
}

impl House {
    pub(crate) async fn prepared_example(&self, name: &str) -> Digest {
        let bytes = example(name);
        let digest = Digest::of(&bytes);
        self.sandbox.prepare(digest, bytes).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        digest
    }
}

/// Answers as a receiver would that does everything, up to the call at which it loses patience.
#[derive(Default)]
pub(crate) struct Journal {
    calls: Mutex<Vec<EffectCall>>,
    stops_at: Mutex<Option<usize>>,
}

impl Journal {
    pub(crate) fn begin(&self, stops_at: Option<usize>) {
        *self.stops_at.lock().expect("not poisoned") = stops_at;
        self.calls.lock().expect("not poisoned").clear();
    }

    pub(crate) fn calls(&self) -> Vec<EffectCall> {
        self.calls.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl EffectPort for Journal {
    async fn perform(&self, _execution: LeaseId, call: EffectCall) -> EffectReply {
        let mut calls = self.calls.lock().expect("not poisoned");
        calls.push(call.clone());
        if *self.stops_at.lock().expect("not poisoned") == Some(calls.len() - 1) {
            return EffectReply::Stop;
        }
        let body = json!({ "id": format!("ch_{}", calls.len()), "tier": "gold", "domain": "a.example", "employees": 7 });
        EffectReply::Answered(match call.request {
            EffectRequest::Http(_) => Answer::Http(HttpResponse {
                status: 201,
                headers: vec![("content-type".into(), "application/json".into())],
                body: body.to_string().into_bytes(),
                truncated: false,
            }),
            EffectRequest::Emit { .. } => Answer::Emitted,
            EffectRequest::Storage(StorageRequest::Get(_)) => Answer::Stored(Some(b"41".to_vec())),
            EffectRequest::Storage(_) => Answer::Stored(None),
            request => panic!("no example makes such a call: {request:?}"),
        })
    }
}

/// Every example, an input, and how many calls that leads to.
fn cases() -> Vec<(&'static str, Value, usize)> {
    let order = json!({ "order": "o-1", "cents": 500, "domain": "a.example" });
    vec![
        ("charge-card", order.clone(), 1),
        ("charge-card-verified", order.clone(), 1),
        ("count-order", order.clone(), 3),
        ("enrich-lead", order.clone(), 1),
        ("place-order", order.clone(), 3),
        ("plain-charge", order.clone(), 1),
        ("plain-copy", order.clone(), 0),
        ("two-effects", order, 2),
        ("virtual-wasi", json!("look"), 1),
    ]
}

async fn ran(house: &House, component: Digest, input: &Value) -> StepReport {
    house.sandbox.run(StepJob { input: input.to_string(), ..job(component) }).await
}

/// What a guest can see follows from its place, its first start, and the answers: so a re-run makes the same calls, however
/// far the run before it came.
#[tokio::test]
async fn every_example_makes_the_same_calls_again_from_each_prefix_of_its_journal() {
    let journal = Arc::new(Journal::default());
    let house = house(Arc::clone(&journal) as Arc<dyn EffectPort>);
    for (name, input, count) in cases() {
        let component = house.prepared_example(name).await;
        journal.begin(None);
        let whole = ran(&house, component, &input).await;
        let expected = journal.calls();
        assert!(matches!(whole.end, StepEnd::Output(_)), "{name}: {whole:?}");
        assert_eq!(expected.len(), count, "{name}");
        for answered in 0..count {
            journal.begin(Some(answered));
            assert_eq!(ran(&house, component, &input).await.end, StepEnd::Stopped, "{name}");
            assert_eq!(journal.calls(), expected[..=answered], "{name}, stopped after {answered}");
            journal.begin(None);
            let again = ran(&house, component, &input).await;
            assert_eq!((again.end, again.logs), (whole.end.clone(), whole.logs.clone()), "{name}");
            assert_eq!(journal.calls(), expected, "{name}, again after {answered}");
        }
    }
}
