//! The endpoints that the demo's blocks call.

use serde_json::{Value, json};

use super::request::Request;

/// Status and body of an ordinary answer. Ids carry the call's number, so that a second call shows.
pub(super) fn answer(seq: u64, request: &Request) -> (u16, Value) {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/charges") => {
            (201, json!({ "id": format!("ch_{seq}"), "receipt_id": format!("rcpt_{seq}") }))
        }
        ("POST", "/reservations") => (201, json!({ "id": format!("res_{seq}") })),
        ("GET", path) => match path.strip_prefix("/companies/") {
            Some(domain) => (200, json!({ "domain": domain, "tier": "gold", "employees": 1200 })),
            None => (200, json!({ "call": seq })),
        },
        _ => (200, json!({ "call": seq })),
    }
}
