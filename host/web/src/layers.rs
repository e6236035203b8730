//! What every request passes: its id, its time limit, its count, and the headers that keep a browser strict.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use counterfoil_domain::code::Code;
use tracing::Instrument;

use crate::pages::Page;
use crate::pages::problem::ProblemPage;
use crate::problem::Problem;
use crate::state::{App, Shared};

/// Longer than the slowest statement may take, shorter than the patience of most clients.
const TIME_MAX: Duration = Duration::from_secs(30);
/// An upload arrives over a slow line and is compiled, which may take a minute.
const UPLOAD_TIME_MAX: Duration = Duration::from_mins(5);
/// Of a request id that a caller chose.
const REQUEST_ID_LEN_MAX: usize = 128;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Scripts do not run, styles are ours, and nobody frames a page.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The outermost layer.
pub(crate) async fn observe(State(app): Shared, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let request_id = request_id(&app, request.headers());
    let method = request.method().clone();
    let is_api = is_api(request.uri().path());
    // A path that is no route of ours is anybody's text: it gets one label, whatever it was.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let time_max = if is_upload(&method, &route) { UPLOAD_TIME_MAX } else { TIME_MAX };

    let span = tracing::info_span!("request", %request_id, %method, route);
    // A repeat gets the first one's answer: whoever asked first may be gone before it is there.
    let is_kept = request.headers().contains_key(IDEMPOTENCY_KEY) && !is_upload(&method, &route);
    let answering = next.run(request).instrument(span.clone());
    let answer = if is_kept {
        tokio::time::timeout(time_max, to_its_end(answering)).await
    } else {
        tokio::time::timeout(time_max, answering).await
    };
    let response = answer.unwrap_or_else(|_| {
        let detail = format!("the host took longer than {} seconds over this", time_max.as_secs());
        Problem::new(Code::Unavailable, detail).into_response()
    });
    let mut response = span.in_scope(|| written(response, is_api, &request_id));
    dress(response.headers_mut(), &request_id);

    let (status, took) = (response.status().as_u16(), began.elapsed());
    app.metrics.count(&method, &route, status, took);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(%request_id, %method, route, status, took_ms, "a request was answered");
    response
}

/// Answers even if nobody waits for it any more.
async fn to_its_end(answering: impl Future<Output = Response> + Send + 'static) -> Response {
    tokio::spawn(answering).await.unwrap_or_else(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "a request was not answered");
        Problem::new(Code::Internal, "the request broke off").into_response()
    })
}

/// The caller's own id if it can be a header and a log field, else a new one.
fn request_id(app: &App, headers: &HeaderMap) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '_' | '-');
    headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=REQUEST_ID_LEN_MAX).contains(&id.len()) && id.chars().all(plain))
        .map_or_else(|| app.new_id().simple().to_string(), ToOwned::to_owned)
}

/// Whether whoever asks for this path reads JSON.
fn is_api(path: &str) -> bool {
    path.starts_with("/v1/") || matches!(path, "/v1" | "/livez" | "/readyz" | "/metrics" | "/openapi.json")
}

fn is_upload(method: &Method, route: &str) -> bool {
    method == Method::POST && route == "/v1/blocks/{name}"
}

/// Writes out a problem for its reader.
fn written(mut response: Response, is_api: bool, request_id: &str) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let (mut parts, _) = response.into_parts();
    let body = problem.body(parts.status, request_id);
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    if is_api {
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        (parts, serde_json::to_vec(&body).unwrap_or_default()).into_response()
    } else {
        (parts, Page(ProblemPage { problem: body })).into_response()
    }
}

fn dress(headers: &mut HeaderMap, request_id: &str) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Ok(value) = HeaderValue::try_from(request_id) {
        headers.insert(REQUEST_ID, value);
    }
}

/// What no route answers.
pub(crate) async fn no_route() -> Problem {
    Problem::not_found()
}

/// What a route answers to a method that it does not have.
pub(crate) async fn no_method() -> Response {
    let problem = Problem::bad_request("this path does not take that method");
    (axum::http::StatusCode::METHOD_NOT_ALLOWED, problem).into_response()
}
