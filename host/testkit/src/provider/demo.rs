//! The endpoints that the demo's blocks call.

use serde_json::{Value, json};

use super::log::Call;
use super::request::Request;

/// Status and body of an ordinary answer. Ids carry the call's number, so that a second call shows. `charged` is the number
/// of the call that made the charge under a key.
pub(super) fn answer(seq: u64, request: &Request, charged: impl FnOnce(&str) -> Option<u64>) -> (u16, Value) {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/charges") => (201, charge(seq)),
        ("POST", "/reservations") => (201, json!({ "id": format!("res_{seq}") })),
        ("GET", "/charges") => match request.query.strip_prefix("key=") {
            Some(key) => match charged(key) {
                Some(seq) => (200, charge(seq)),
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
pub(super) fn is_charge(call: &Call, key: &str) -> bool {
    call.method == "POST"
        && call.path == "/charges"
        && call.idempotency_key() == Some(key)
        && call.took_place()
}
