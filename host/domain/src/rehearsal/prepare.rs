//! What needs no network to be judged: what the block declared, and the form of a call.

use serde_json::json;

use super::provider::Line;
use crate::block::EffectGrant;
use crate::effect::{EffectCall, EffectRequest, HttpRequest, Safety, StorageRequest};
use crate::id::LineageId;
use crate::limits::{
    EMIT_DATA_BYTES_MAX, REQUEST_BODY_BYTES_MAX, STORAGE_KEY_BYTES_MAX, STORAGE_VALUE_BYTES_MAX, is_key_text,
};
use crate::outbound::{
    AddressPolicy, Destination, Reach, Refusal, judge_headers, judge_message, judge_method, judge_work,
};
use crate::receipt::RequestFacts;
use crate::receipt::request::{Canonical, Scope, http_facts, work_facts};

/// Stands for the base URL of every connection: which one it is, only a tenant knows.
const BASE_URL: &str = "https://connection.example.com";

/// What is kept of a call; `default_key` is the key of one that names none.
pub(super) fn facts(call: &EffectCall, lineage: LineageId, default_key: String) -> RequestFacts {
    let (safety, scope) = (call.effective_safety(), Scope::Lineage(lineage));
    let connection = call.connection.as_deref();
    if let EffectRequest::Http(request) = &call.request {
        let (request, header_key) = without_key_header(request);
        let key = call.idempotency_key.clone().or(header_key).unwrap_or(default_key);
        return http_facts(&request, &request.url, connection, safety, key, scope);
    }
    if let EffectRequest::Worker { queue, input } = &call.request {
        return work_facts(call, (queue, input), default_key, scope);
    }
    let canonical = Canonical {
        kind: call.request.kind(),
        connection,
        destination: json!({ "request": call.request }),
        content: json!({}),
        preview: json!({ "summary": Line(&call.request).to_string() }),
    };
    canonical.facts(safety, default_key, scope)
}

/// An idempotency key that an unaware client put into a header is no part of the request.
fn without_key_header(request: &HttpRequest) -> (HttpRequest, Option<String>) {
    let mut request = request.clone();
    let is_key = |name: &str| name.eq_ignore_ascii_case("idempotency-key");
    let key = request.headers.iter().rfind(|(name, _)| is_key(name)).map(|(_, value)| value.clone());
    request.headers.retain(|(name, _)| !is_key(name));
    (request, key)
}

/// Judges a call by the block's grants and its form.
///
/// # Errors
/// What the guest is told.
pub(super) fn judge(call: &EffectCall, grants: &[EffectGrant]) -> Result<(), String> {
    let (kind, safety) = (call.request.kind(), call.effective_safety());
    let of_kind = || grants.iter().filter(|grant| grant.kind == kind);
    let granted = || of_kind().filter(|grant| grant.safety == safety || safety == Safety::ReadOnly);
    let names = |name: &String| granted().any(|grant| grant.connections.contains(name));
    match &call.request {
        EffectRequest::Http(request) => {
            match &call.connection {
                Some(name) if !names(name) => {
                    let safety = safety.name();
                    return Err(format!("the block's descriptor declares no {safety} effect on `{name}`"));
                }
                Some(_) => under_connection(&request.url),
                None => {
                    let hosts: Vec<&String> = granted().flat_map(|grant| &grant.hosts).collect();
                    let policy = AddressPolicy::default();
                    Reach::of_grant(&hosts)
                        .and_then(|reach| reach.destination(&request.url, &policy))
                        .map(drop)
                }
            }
            .map_err(|_| Refusal::GUEST_TEXT.to_owned())?;
            form(request)
        }
        EffectRequest::Mail(message) => {
            let name = call.connection.as_ref().ok_or("a message is sent through a connection")?;
            if !names(name) {
                return Err(format!("the block's descriptor declares no `mail` effect on `{name}`"));
            }
            judge_message(message)
        }
        EffectRequest::Emit { .. } | EffectRequest::Storage(_) => {
            let allows = |grant: &EffectGrant| safety == Safety::ReadOnly || grant.safety != Safety::ReadOnly;
            if !of_kind().any(allows) {
                return Err(format!("the block's descriptor declares no `{kind}` effect that allows it"));
            }
            if call.connection.is_some() || call.idempotency_key.is_some() {
                return Err(format!(
                    "an effect of the kind `{kind}` takes no connection and no idempotency key"
                ));
            }
            own(&call.request)
        }
        EffectRequest::Worker { queue, input } => {
            if granted().next().is_none() {
                return Err("the block's descriptor declares no `worker` effect that allows it".into());
            }
            judge_work(call, queue, input).map(drop)
        }
        EffectRequest::Model(_) => Err(format!("this host offers no effects of the kind `{kind}`")),
    }
}

fn under_connection(url: &str) -> Result<(), Refusal> {
    let policy = AddressPolicy::default();
    if url.starts_with('/') {
        let hosts = [BASE_URL.trim_start_matches("https://")];
        return Reach::of_connection(BASE_URL, &hosts, &policy)?.destination(url, &policy).map(drop);
    }
    Destination::parse(url, &policy).map(drop)
}

fn form(request: &HttpRequest) -> Result<(), String> {
    let (request, _) = without_key_header(request);
    judge_method(&request.method).map_err(|refusal| refusal.to_string())?;
    judge_headers(&request.headers).map_err(|refusal| refusal.to_string())?;
    let len = request.body.len();
    if len as u64 > REQUEST_BODY_BYTES_MAX {
        return Err(format!("the body has {len} bytes; at most {REQUEST_BODY_BYTES_MAX} are sent"));
    }
    Ok(())
}

fn own(request: &EffectRequest) -> Result<(), String> {
    match request {
        EffectRequest::Emit { event_type, record_id, data } => {
            if !is_key_text(event_type) || record_id.as_ref().is_some_and(|record| !is_key_text(record)) {
                return Err("the type and the record of an event have 1 to 255 bytes".into());
            }
            if data.len() > EMIT_DATA_BYTES_MAX {
                let len = data.len();
                return Err(format!(
                    "the data of an event has {len} bytes; at most {EMIT_DATA_BYTES_MAX} are kept"
                ));
            }
            serde_json::from_str::<serde_json::Value>(data)
                .map(drop)
                .map_err(|error| format!("the data of an event is not JSON: {error}"))
        }
        EffectRequest::Storage(
            StorageRequest::Get(key) | StorageRequest::Put(key, _) | StorageRequest::Delete(key),
        ) => {
            if !(1..=STORAGE_KEY_BYTES_MAX).contains(&key.len()) || key.contains('\0') {
                return Err(format!("a key has 1 to {STORAGE_KEY_BYTES_MAX} bytes and no NUL"));
            }
            match request {
                EffectRequest::Storage(StorageRequest::Put(_, value))
                    if value.len() > STORAGE_VALUE_BYTES_MAX =>
                {
                    let len = value.len();
                    Err(format!("the value has {len} bytes; at most {STORAGE_VALUE_BYTES_MAX} are stored"))
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
