//! Makes one decision again and again, for `scripts/instructions` to count what it costs.

use std::process::ExitCode;

use counterfoil_domain::effect::{HttpRequest, Safety};
use counterfoil_domain::expression::{Expression, Scope};
use counterfoil_domain::fair_share::{Contender, Due, Share, Turns};
use counterfoil_domain::id::{LeaseId, LineageId, Place, RunId, TenantId, WorkflowId};
use counterfoil_domain::receipt::SlotKey;
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::journal::{Asker, Call, Journal};
use counterfoil_domain::receipt::request::{Scope as ContentScope, http_facts};
use serde_json::{Value, json};
use uuid::Uuid;

/// Tenants with work due, and places to share among them.
const TENANTS: u128 = 1_000;
const PLACES: u32 = 256;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, times) = (arguments.next().unwrap_or_default(), arguments.next());
    let Some(times) = times.and_then(|times| times.parse().ok()) else {
        eprintln!("usage: counterfoil-decisions request|receipt-id|journal|expression|share TIMES");
        return ExitCode::FAILURE;
    };
    let mut decide: Box<dyn FnMut()> = match name.as_str() {
        "request" => request(),
        "receipt-id" => receipt_id(),
        "journal" => journal(),
        "expression" => expression(),
        "share" => share(),
        _ => {
            eprintln!("there is no decision {name:?}");
            return ExitCode::FAILURE;
        }
    };
    for _ in 0..times {
        decide();
    }
    ExitCode::SUCCESS
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// What is kept of a request.
fn request() -> Box<dyn FnMut()> {
    let request = HttpRequest {
        method: "POST".into(),
        url: "/charges".into(),
        headers: vec![("content-type".into(), "application/json".into())],
        body: br#"{"order":"o-1","cents":500}"#.to_vec(),
    };
    Box::new(move || {
        let scope = ContentScope::Lineage(LineageId(id(1)));
        let url = "https://payments.example/charges";
        let kept = http_facts(&request, url, Some("payments"), Safety::AtMostOnce, "key".into(), scope);
        std::hint::black_box(kept);
    })
}

/// The name of a receipt.
fn receipt_id() -> Box<dyn FnMut()> {
    let (place, key) =
        (Place { lineage: LineageId(id(1)), node: "call".into(), iteration: vec![3] }, SlotKey::Ordinal(0));
    Box::new(move || {
        let slot = Slot { tenant: TenantId(id(2)), epoch: EPOCH, place: &place, key: &key };
        std::hint::black_box(slot.receipt_id(0));
    })
}

/// What to do about a step's first call.
fn journal() -> Box<dyn FnMut()> {
    let (journal, slot) = (Journal::new(vec![]), SlotKey::Label("charge".into()));
    let asker = Asker { lease: LeaseId(id(1)), attempt: 1, run: RunId(id(2)) };
    Box::new(move || {
        let call = Call { slot: &slot, safety: Safety::AtMostOnce, request_hash: &[7; 32] };
        std::hint::black_box(journal.decide(call, asker, |_| false));
    })
}

/// A condition over an event.
fn expression() -> Box<dyn FnMut()> {
    let expression = Expression::compile("event.data.cents > 100 && event.data.order.startsWith('o-')");
    let event = json!({ "data": { "order": "o-1", "cents": 500 } });
    Box::new(move || {
        let scope = Scope::new(&event, &Value::Null, &Value::Null);
        std::hint::black_box(expression.as_ref().map(|expression| expression.evaluate(&scope)).ok());
    })
}

/// Who gets the places of a host.
fn share() -> Box<dyn FnMut()> {
    let due: Vec<Due> = (0..TENANTS)
        .map(|n| Due {
            tenant: Contender { key: TenantId(id(n)), in_flight: 0, share: Share::default() },
            workflows: vec![Contender { key: WorkflowId(id(n)), in_flight: 0, share: Share::default() }],
        })
        .collect();
    let mut turns = Turns::default();
    Box::new(move || drop(std::hint::black_box(turns.grant(due.clone(), PLACES))))
}
