//! The canonical form of a request: what is hashed to tell whether a re-run asks for the same thing, and what a person may
//! read of it.

use serde_json::{Value, json};

use super::RequestFacts;
use crate::effect::{EffectCall, HttpRequest, Safety};
use crate::id::Parts;
use crate::limits::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, bounded_text, is_key_text};

/// Bytes of a body, and of a URL, that the preview shows: a call that is refused may name megabytes of either.
pub const PREVIEW_BODY_BYTES_MAX: usize = 2 << 10;
/// Bytes of a method, and of a header field's name or value, that the preview shows.
const PREVIEW_FIELD_BYTES_MAX: usize = 256;
/// Header fields that the preview shows: as many as a call may have.
const PREVIEW_HEADERS_MAX: usize = 64;

/// Header fields whose values are never shown or hashed: they are credentials, or the host's to give.
pub(crate) const SECRET_HEADERS: [&str; 5] =
    ["authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"];

/// The scope that an invariant, or the lack of one, gives to a content key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The run and all its replays.
    Lineage(crate::id::LineageId),
    /// Every run of the workflow.
    Workflow(crate::id::WorkflowId),
    /// Everything of the tenant.
    Tenant(crate::id::TenantId),
}

/// What is kept of an HTTP request that goes to `url`.
///
/// The hash covers what the guest asked for: its own URL and the connection's name, so that a connection which moves to
/// another base URL does not make a re-run differ from what it sent. `idempotency_key` is what will be sent; it is no part
/// of the hash, and neither are credentials.
pub fn http_facts(
    request: &HttpRequest,
    url: &str,
    connection: Option<&str>,
    safety: Safety,
    idempotency_key: String,
    scope: Scope,
) -> RequestFacts {
    let body = canonical_body(request);
    let mut headers: Vec<(String, &str)> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
        .filter(|(name, _)| !SECRET_HEADERS.contains(&name.as_str()) && name != "idempotency-key")
        .collect();
    headers.sort();
    let canonical = Canonical {
        kind: "http",
        connection,
        destination: json!({ "method": request.method, "url": request.url }),
        content: json!({ "body": fingerprint(&body), "headers": headers }),
        preview: preview(request, url),
    };
    canonical.facts(safety, idempotency_key, scope)
}

/// What is kept of work, by its queue and its input, that `call` hands to a worker. `default_key` is the idempotency key of
/// a call that names none.
pub fn work_facts(
    call: &EffectCall,
    (queue, input): (&str, &str),
    default_key: String,
    scope: Scope,
) -> RequestFacts {
    // What is too large, or no JSON, is never passed on: as it stands, it tells itself from others as well.
    let is_passed = input.len() as u64 <= PAYLOAD_BYTES_MAX;
    let value = is_passed.then(|| serde_json::from_str::<Value>(input).ok()).flatten();
    let content = value.map_or_else(|| input.to_owned(), |value| canonical_json(&value));
    let shown = bounded_text(queue, NAME_BYTES_MAX);
    let canonical = Canonical {
        kind: "worker",
        connection: call.connection.as_deref(),
        destination: json!({ "queue": queue }),
        content: json!({ "input": fingerprint(content.as_bytes()) }),
        preview: json!({
            "summary": format!("work for the queue {shown}"),
            "queue": shown,
            "body": preview_body(input.as_bytes()),
            "body_bytes_len": input.len(),
        }),
    };
    let key = call.idempotency_key.clone().filter(|key| is_key_text(key)).unwrap_or(default_key);
    canonical.facts(call.effective_safety(), key, scope)
}

/// A request in its canonical form, as its kind writes it down.
#[derive(Debug)]
pub struct Canonical<'a> {
    /// Its kind.
    pub kind: &'static str,
    /// The connection that it goes through.
    pub connection: Option<&'a str>,
    /// Where it goes: an object.
    pub destination: Value,
    /// What else tells it from other requests: an object, whose names are none of the destination's.
    pub content: Value,
    /// What a person may read of it.
    pub preview: Value,
}

impl Canonical<'_> {
    /// What is kept of the request. `idempotency_key` is what will be sent.
    pub fn facts(self, safety: Safety, idempotency_key: String, scope: Scope) -> RequestFacts {
        let Self { kind, connection, mut destination, content, preview } = self;
        destination["kind"] = kind.into();
        destination["connection"] = connection.into();
        let destination_hash = hash(canonical_json(&destination).as_bytes());
        let mut request = destination;
        if let (Value::Object(request), Value::Object(content)) = (&mut request, content) {
            request.extend(content);
        }
        let request_hash = hash(canonical_json(&request).as_bytes());
        RequestFacts {
            kind: kind.into(),
            safety,
            connection: connection.map(Into::into),
            destination: destination_hash,
            request_hash,
            content_key: content_key(scope, kind, &destination_hash, &request_hash),
            idempotency_key,
            preview,
        }
    }
}

/// The key that an invariant guards: 16 bytes over scope, kind, destination and request.
pub fn content_key(scope: Scope, kind: &str, destination: &[u8; 32], request_hash: &[u8; 32]) -> [u8; 16] {
    let mut key = Parts::new(b"counterfoil-content-v1\0");
    let (name, id) = match scope {
        Scope::Lineage(id) => ("lineage", id.0),
        Scope::Workflow(id) => ("workflow", id.0),
        Scope::Tenant(id) => ("tenant", id.0),
    };
    for part in [name.as_bytes(), id.as_bytes(), kind.as_bytes(), destination, request_hash] {
        key.part(part);
    }
    let digest = key.finish();
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// RFC 8785, so that key order and number spelling do not matter.
///
/// # Panics
/// Never for a JSON value: the canonical form only refuses non-finite numbers, which JSON does not have.
pub fn canonical_json(value: &Value) -> String {
    serde_json_canonicalizer::to_string(value).expect("a JSON value has a canonical form")
}

fn canonical_body(request: &HttpRequest) -> Vec<u8> {
    let is_json = request.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("content-type") && {
            let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            essence == "application/json" || essence.ends_with("+json")
        }
    });
    match serde_json::from_slice::<Value>(&request.body) {
        Ok(value) if is_json => canonical_json(&value).into_bytes(),
        _ => request.body.clone(),
    }
}

/// The SHA-256 of a part that is too large to stand in a canonical form itself, in hexadecimal.
pub fn fingerprint(bytes: &[u8]) -> String {
    hex::encode(hash(bytes))
}

/// As much of a body as a preview shows, as text.
pub fn preview_body(body: &[u8]) -> String {
    let shown = &body[..body.len().min(PREVIEW_BODY_BYTES_MAX)];
    // A NUL would show as nothing; the replacement character says that something was there.
    String::from_utf8_lossy(shown).replace('\0', "\u{fffd}")
}

fn preview(request: &HttpRequest, url: &str) -> Value {
    let field = |text: &str| bounded_text(text, PREVIEW_FIELD_BYTES_MAX);
    let headers: Vec<Value> = request
        .headers
        .iter()
        .take(PREVIEW_HEADERS_MAX)
        .map(|(name, value)| {
            let secret = SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str());
            json!([field(name), if secret { "(not shown)".into() } else { field(value) }])
        })
        .collect();
    json!({
        "method": field(&request.method),
        "url": bounded_text(url, PREVIEW_BODY_BYTES_MAX),
        "headers": headers,
        "body": preview_body(&request.body),
        "body_bytes_len": request.body.len(),
    })
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LineageId;

    fn facts(method: &str, headers: &[(&str, &str)], body: &str) -> RequestFacts {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let request = HttpRequest { method: method.into(), url: "/x".into(), headers, body: body.into() };
        let scope = Scope::Lineage(LineageId(uuid::Uuid::from_u128(1)));
        http_facts(&request, "http://provider/x", Some("p"), Safety::AtMostOnce, "k".into(), scope)
    }

    /// One request, and its fingerprints as `cases/request_vectors.py` computes them.
    #[derive(serde::Deserialize)]
    struct Vector {
        method: String,
        url: String,
        connection: Option<String>,
        headers: Vec<(String, String)>,
        body: String,
        canonical_body: String,
        destination: String,
        request_hash: String,
        content_key: String,
    }

    #[test]
    fn fingerprints_are_those_of_the_vectors() {
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../../cases/requests.json")).expect("the vectors are JSON");
        assert!(vectors.len() > 5);
        for vector in vectors {
            let Vector { method, url, connection, headers, body, .. } = vector;
            let request = HttpRequest { method, url, headers, body: body.clone().into_bytes() };
            let scope = Scope::Lineage(LineageId(uuid::Uuid::from_u128(1)));
            let shown = "http://provider.example.com/";
            let facts =
                http_facts(&request, shown, connection.as_deref(), Safety::AtMostOnce, "k".into(), scope);
            let found = (
                String::from_utf8(canonical_body(&request)).expect("text"),
                hex::encode(facts.destination),
                hex::encode(facts.request_hash),
                hex::encode(facts.content_key),
            );
            let Vector { canonical_body, destination, request_hash, content_key, .. } = vector;
            assert_eq!(found, (canonical_body, destination, request_hash, content_key), "{body}");
        }
    }

    #[test]
    fn spelling_does_not_change_the_hash_and_content_does() {
        let json = [("Content-Type", "application/json; charset=utf-8")];
        let base = facts("POST", &json, r#"{"a":1,"b":[2.0]}"#);
        for same in [
            facts("POST", &json, "{ \"b\": [2], \"a\": 1e0 }"),
            facts("POST", &[("content-type", json[0].1), ("Idempotency-Key", "other")], r#"{"a":1,"b":[2]}"#),
            facts("POST", &[json[0], ("Authorization", "Bearer x")], r#"{"a":1,"b":[2]}"#),
        ] {
            assert_eq!(same.request_hash, base.request_hash);
            assert_eq!(same.content_key, base.content_key);
        }
        for other in [
            facts("PUT", &json, r#"{"a":1,"b":[2]}"#),
            facts("POST", &json, r#"{"a":2,"b":[2]}"#),
            facts("POST", &[], r#"{"a":1,"b":[2]}"#),
            facts("POST", &[json[0], ("X-Mode", "test")], r#"{"a":1,"b":[2]}"#),
        ] {
            assert_ne!(other.request_hash, base.request_hash);
        }
    }

    #[test]
    fn a_preview_shows_no_credential() {
        let facts = facts("POST", &[("Authorization", "Bearer canary"), ("cookie", "canary")], "hi\0");
        let text = facts.preview.to_string();
        assert!(!text.contains("canary"), "{text}");
        assert_eq!(facts.preview["body"], "hi\u{fffd}");
    }

    /// What a hostile block may name is refused when it is sent, and must not fill the receipts either.
    #[test]
    fn a_preview_is_small_whatever_was_asked_for() {
        let large = "x".repeat(4 << 20);
        let headers = vec![("n".repeat(10_000), "v".repeat(10_000)); 1_000];
        let body = large.clone().into_bytes();
        let request = HttpRequest { method: large.clone(), url: large.clone(), headers, body };
        let scope = Scope::Lineage(LineageId(uuid::Uuid::from_u128(1)));
        let facts = http_facts(&request, &large, None, Safety::AtMostOnce, "k".into(), scope);
        let bytes = facts.preview.to_string().len();
        assert!(bytes < 40 << 10, "{bytes} bytes");
    }
}
