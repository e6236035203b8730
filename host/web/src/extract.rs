//! What a request brings, read so that whatever cannot be read becomes a problem that says where.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use counterfoil_domain::code::Code;
use counterfoil_domain::wording;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_path_to_error::Segment;

use crate::problem::Problem;

/// A body of at most `MAX` bytes.
#[derive(Debug)]
pub(crate) struct Raw<const MAX: u64>(pub(crate) Bytes);

impl<S: Send + Sync, const MAX: u64> FromRequest<S> for Raw<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        read(request.into_body(), MAX).await.map(Self)
    }
}

/// A JSON body of at most [`JSON_BYTES_MAX`] bytes; an empty one reads as `{}`.
#[derive(Debug)]
pub(crate) struct JsonBody<T> {
    pub(crate) value: T,
    /// As it was sent.
    pub(crate) bytes: Bytes,
}

/// Room for an answer of 1 MiB, escaped.
pub(crate) const JSON_BYTES_MAX: u64 = 3 << 20;

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let bytes = read(request.into_body(), JSON_BYTES_MAX).await?;
        let text: &[u8] = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &bytes };
        Ok(Self { value: map_from_json(text)?, bytes })
    }
}

async fn read(body: Body, max: u64) -> Result<Bytes, Problem> {
    match axum::body::to_bytes(body, usize::try_from(max).unwrap_or(usize::MAX)).await {
        Ok(bytes) => Ok(bytes),
        Err(error) if is_too_large(&error) => {
            Err(Problem::new(Code::TooLarge, format!("the body is larger than {max} bytes")))
        }
        Err(_) => Err(Problem::bad_request("the body ended before it was complete")),
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let mut source = Some(error as &dyn std::error::Error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Reads a value that is at `place` in a body; an error says where.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value, place: &str) -> Result<T, Problem> {
    if value.is_array() {
        return Err(list_for_map(place));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let pointer = format!("{place}{}", pointer(error.path()));
        let why = wording::told(&error.inner().to_string());
        Problem::bad_field(&pointer, format!("the body cannot be read: {why}"))
    })
}

/// As [`from_json`], what has fields. A list is none, though it could be read as what is in them, one after the other.
pub(crate) fn map_from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(list_for_map(""));
    }
    from_json(text)
}

fn list_for_map(place: &str) -> Problem {
    Problem::bad_field(place, "the body cannot be read: a map is expected here, and this is a list")
}

/// Reads JSON; an error says where in the document it is.
pub(crate) fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    let mut document = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let pointer = pointer(error.path());
        let why = wording::told(&error.inner().to_string());
        Problem::bad_field(&pointer, format!("the body cannot be read: {why}"))
    })?;
    document
        .end()
        .map_err(|error| Problem::bad_field("", format!("the body has more than one JSON value: {error}")))?;
    Ok(value)
}

/// A path through a document as a JSON Pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.extend(["/", &index.to_string()]),
            Segment::Map { key } => pointer.extend(["/", &escaped(key)]),
            // The names of our own variants are no part of the document.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Parameters of the query.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => {
                let text = error.body_text();
                let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                let (parameter, why) = text.split_once(": ").unwrap_or(("", text));
                let parameter = if parameter.is_empty() { String::new() } else { format!("`{parameter}`: ") };
                Err(Problem::bad_request(format!(
                    "the query cannot be read: {parameter}{}",
                    wording::told(why)
                )))
            }
        }
    }
}

/// A parameter that a form sends empty where nothing was chosen.
pub(crate) fn blank_is_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    text: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(text)?;
    if text.is_empty() { Ok(None) } else { T::deserialize(text.into_deserializer()).map(Some) }
}

/// Names and ids of the path. What cannot be one names nothing.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(_) => Err(Problem::not_found()),
        }
    }
}

/// A JSON answer.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read for its shape")]
    struct Shape {
        list: Vec<std::collections::BTreeMap<String, u8>>,
    }

    #[test]
    fn an_unreadable_body_says_where() {
        for (text, expected) in [
            (r#"{"list":[{"a":1},{"a/b~":"x"}]}"#, "/list/1/a~1b~0"),
            (r#"{"list":[{"a":300}]}"#, "/list/0/a"),
            (r#"{"lists":[]}"#, "/lists"),
            (r"{", ""),
            (r"[]", ""),
            (r#" [[{"a":1}]]"#, ""),
            (r#"{"list":[]} {}"#, ""),
        ] {
            let problem = map_from_json::<Shape>(text.as_bytes()).expect_err("unreadable");
            let pointer = problem.body(problem.status(), "r").errors[0].pointer.clone();
            assert_eq!(pointer, expected, "{text}: {}", problem.detail());
        }
    }
}
