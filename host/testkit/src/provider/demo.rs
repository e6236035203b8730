//! The endpoints that the demo's blocks call.

use serde_json::{Value, json};

use super::log::Call;
use super::request::Request;

/// Status and body of an ordinary answer. Ids carry the call's number, so that a second call shows. `calls` are all so
/// far, this one included.
pub(super) fn answer(seq: u64, request: &Request, calls: &[Call]) -> (u16, Value) {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/charges") => (201, charge(seq)),
        ("POST", "/reservations") => (201, json!({ "id": format!("res_{seq}") })),
        ("GET", "/charges") => match request.query.strip_prefix("key=") {
            Some(key) => match calls.iter().find(|call| is_charge(call, key)) {
                Some(call) => (200, charge(call.seq)),
                None => (404, json!({ "error": "no charge was made under this key" })),
            },
            None => (200, json!({ "call": seq })),
        },
        ("GET", path) => match path.strip_prefix("/companies/") {
            Some(domain) => (200, json!({ "domain": domain, "tier": "gold", "employees": 1200 })),
            None => (200, json!({ "call": seq })),
        },
        _ => (200, json!({ "call": seq })),
    }
}

fn charge(seq: u64) -> Value {
    json!({ "id": format!("ch_{seq}"), "receipt_id": format!("rcpt_{seq}") })
}

/// Whether a call made a charge under this key, whatever became of its answer.
fn is_charge(call: &Call, key: &str) -> bool {
    let is_refusal = call.act.status.is_some_and(|status| status >= 400);
    call.method == "POST" && call.path == "/charges" && call.idempotency_key() == Some(key) && !is_refusal
}
