//! From a request's parts to the message that is written.

use bytes::Bytes;
use counterfoil_domain::outbound::{judge_headers, judge_method};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use secrecy::ExposeSecret as _;

use super::{NotSent, WireRequest};

/// What a request is said to come from, unless it says so itself: some providers refuse one that does not.
const AGENT: HeaderValue = HeaderValue::from_static("counterfoil");

/// Judges the parts again, whoever made them, and adds what the message needs.
pub(super) fn message(request: &WireRequest) -> Result<Request<Full<Bytes>>, NotSent> {
    judge_method(&request.method).map_err(NotSent::refused)?;
    let method = Method::try_from(request.method.as_str()).map_err(NotSent::refused)?;
    let uri = Uri::try_from(request.destination.path_and_query()).map_err(NotSent::refused)?;

    let mut message = Request::new(Full::new(request.body.clone()));
    *message.headers_mut() = headers(request)?;
    if !request.body.is_empty() || matches!(method, Method::POST | Method::PUT | Method::PATCH) {
        message.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(request.body.len()));
    }
    *message.method_mut() = method;
    *message.uri_mut() = uri;
    Ok(message)
}

fn headers(request: &WireRequest) -> Result<HeaderMap, NotSent> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::try_from(request.destination.authority()).map_err(NotSent::refused)?);
    for (name, value) in &request.headers {
        let (name, value) = field(name, value)?;
        headers.append(name, value);
    }
    for (name, value) in &request.secret_headers {
        let (name, mut value) = field(name, value.expose_secret())?;
        // Whoever prints the message prints that it is one.
        value.set_sensitive(true);
        headers.append(name, value);
    }
    headers.entry(USER_AGENT).or_insert(AGENT);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// One by one: how many a block may set is decided where it sets them, and the host has added its own since.
fn field(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), NotSent> {
    judge_headers(&[(name.to_owned(), value.to_owned())]).map_err(NotSent::refused)?;
    let name = HeaderName::try_from(name).map_err(NotSent::refused)?;
    Ok((name, HeaderValue::try_from(value).map_err(NotSent::refused)?))
}
