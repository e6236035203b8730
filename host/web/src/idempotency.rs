//! `Idempotency-Key`: a repeat of a creating request gets the first one's answer, and creates nothing.
//!
//! Only success is kept. After a failure the key is free again, since nothing was created under it.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::TenantId;
use counterfoil_domain::limits::NAME_BYTES_MAX;
use counterfoil_store::idempotency::Begun;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::problem::Problem;
use crate::state::App;

/// Nothing larger is JSON that any request takes.
const CANONICAL_BYTES_MAX: usize = 4 << 20;
/// What is larger is hashed aside: a start or an event is usually a page.
const IN_PLACE_BYTES_MAX: usize = 64 << 10;

const REPLAYED: header::HeaderName = header::HeaderName::from_static("idempotent-replayed");

/// A creating request, and the key that it came with, if any.
#[derive(Debug, Clone)]
pub(crate) struct Creating {
    key: Option<String>,
    method: Method,
    path: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Creating {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let key = match parts.headers.get("idempotency-key") {
            None => None,
            Some(value) => Some(read_key(value)?),
        };
        Ok(Self { key, method: parts.method.clone(), path: parts.uri.to_string() })
    }
}

fn read_key(value: &HeaderValue) -> Result<String, Problem> {
    let key = value.to_str().unwrap_or_default();
    if key.is_empty() || key.len() > NAME_BYTES_MAX {
        return Err(Problem::bad_request(format!(
            "an `Idempotency-Key` has 1 to {NAME_BYTES_MAX} visible ASCII characters"
        )));
    }
    Ok(key.into())
}

/// What was created.
#[derive(Debug)]
pub(crate) struct Created {
    status: StatusCode,
    shown: Vec<u8>,
    kept: Vec<u8>,
}

impl Created {
    pub(crate) fn new<T: Serialize>(status: StatusCode, body: &T) -> Result<Self, Problem> {
        let shown = json(body)?;
        Ok(Self { status, kept: shown.clone(), shown })
    }

    /// An answer with a secret, which a repeat does not get.
    pub(crate) fn with_secret<T: Serialize>(
        status: StatusCode,
        shown: &T,
        kept: &T,
    ) -> Result<Self, Problem> {
        Ok(Self { status, shown: json(shown)?, kept: json(kept)? })
    }
}

fn json<T: Serialize>(body: &T) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(body).map_err(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "an answer cannot be written as JSON");
        Problem::new(Code::Internal, "the answer cannot be written")
    })
}

impl Creating {
    /// The key that the caller named.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Does `work` once for this key and this `body`, whose repeats get its answer.
    ///
    /// The caller may vanish, or this host may die, between the work and the keeping of its answer: then the key is
    /// given to a repeat after a minute, and `work` is done again. It must meet what it created before.
    pub(crate) async fn once<F>(
        &self,
        app: &App,
        tenant: TenantId,
        body: &Bytes,
        work: F,
    ) -> Result<Response, Problem>
    where
        F: Future<Output = Result<Created, Problem>>,
    {
        let Some(key) = &self.key else {
            let Created { status, shown, .. } = work.await?;
            return Ok(answer(status, shown));
        };
        let hash = if body.len() <= IN_PLACE_BYTES_MAX {
            self.hash(body)
        } else {
            let (creating, body) = (self.clone(), body.clone());
            app.aside.compute(tenant, move || creating.hash(&body)).await?
        };
        match app.store.begin_request(tenant, key, hash).await? {
            Begun::New => {}
            Begun::Running => {
                return Err(Problem::new(
                    Code::IdempotencyKeyBusy,
                    "the first request with this key is still running",
                ));
            }
            Begun::OtherRequest => {
                return Err(Problem::new(
                    Code::IdempotencyKeyReused,
                    "this key came with another request before (another path or body)",
                ));
            }
            Begun::Done { status, body } => return Ok(replay(status, body)),
        }
        match work.await {
            Ok(Created { status, shown, kept }) => {
                app.store.finish_request(tenant, key, status.as_u16(), &kept).await?;
                Ok(answer(status, shown))
            }
            Err(problem) => {
                app.store.drop_request(tenant, key).await?;
                Err(problem)
            }
        }
    }

    fn hash(&self, body: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        let body = canonical(body);
        for part in [self.method.as_str().as_bytes(), self.path.as_bytes(), &body] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// The content of a body, however it is written: in JSON, neither the order of fields nor space between them tells anything
/// apart, and a field of the request that is null is as good as absent. Numbers are kept as they are.
fn canonical(body: &[u8]) -> Cow<'_, [u8]> {
    if body.len() > CANONICAL_BYTES_MAX {
        return body.into();
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return body.into() };
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value.sort_all_objects();
    value.to_string().into_bytes().into()
}

fn answer(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

fn replay(status: u16, body: Vec<u8>) -> Response {
    let mut response = answer(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), body);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// An id that follows from what is named, so that doing a request's work again meets what it created.
pub(crate) fn derived_id(purpose: &str, tenant: TenantId, names: &[&str]) -> Uuid {
    let mut hash = Sha256::new_with_prefix(b"counterfoil-request-v1\0");
    for part in
        [purpose.as_bytes(), tenant.0.as_bytes()].into_iter().chain(names.iter().map(|name| name.as_bytes()))
    {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_is_the_same_request_however_it_is_written() {
        for (one, other, same) in [
            (
                r#"{"input":{"a":1,"b":[2]}}"#,
                "{ \"record\": null, \"input\": { \"b\": [ 2 ], \"a\": 1 } }\n",
                true,
            ),
            (r#"{"input":null}"#, "{}", true),
            (r#"{"input":{"a":null}}"#, r#"{"input":{}}"#, false),
            (r#"{"input":1}"#, r#"{"input":1.5}"#, false),
            (r#"{"input":9007199254740993}"#, r#"{"input":9007199254740992}"#, false),
            ("[1,2]", "[2,1]", false),
            ("name: a", "name:  a", false),
            ("\0asm", "\0asm", true),
        ] {
            assert_eq!(canonical(one.as_bytes()) == canonical(other.as_bytes()), same, "{one} {other}");
        }
        let large = format!("[{}]", " ".repeat(CANONICAL_BYTES_MAX));
        assert_eq!(canonical(large.as_bytes()), large.as_bytes(), "a component is not read as JSON");
    }
}
