//! `wasi:http` for programs that know nothing of receipts: their requests leave by the one door that there is.

mod absent;
mod fields;
mod incoming;
mod outgoing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectRequest, HttpRequest, HttpResponse, Safety,
};
use counterfoil_domain::ports::LogLevel;
use wasmtime::component::Resource;

#[expect(unreachable_pub, reason = "the generated bindings name them again")]
pub use self::{
    fields::Fields,
    incoming::{FutureTrailers, IncomingBody, IncomingResponse},
    outgoing::{OutgoingBody, OutgoingRequest, RequestOptions},
};
use super::bindings::wasi::http::outgoing_handler;
use super::bindings::wasi::http::types::{self, ErrorCode, Method, Scheme};
use super::held::Held;
use crate::host::HostState;

/// What a request may say to the host in header fields, which are not sent.
const SAFETY: &str = "counterfoil-safety";
const KEY: &str = "counterfoil-key";
const CONNECTION: &str = "counterfoil-connection";

/// One request and what becomes of it: its parts are in several hands, of which the guest may drop each at any time.
#[derive(Clone)]
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct Exchange(Arc<Mutex<State>>);

struct State {
    body: Body,
    bytes: Vec<u8>,
    held: Held,
    /// Handed over, and waiting for the rest of its body.
    call: Option<EffectCall>,
    reply: Reply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// Nobody asked for it: the request has none.
    Untouched,
    Open,
    Finished,
    /// Dropped before its end, or longer than it may be.
    Broken,
}

enum Reply {
    Awaited,
    Here(Result<HttpResponse, ErrorCode>),
    /// A guest asks once.
    Taken,
}

impl Exchange {
    fn new(held: Held) -> Self {
        let (bytes, call) = (Vec::new(), None);
        Self(Arc::new(Mutex::new(State { body: Body::Untouched, bytes, held, call, reply: Reply::Awaited })))
    }

    /// Only one thread at a time runs a guest, and none panics in between.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the guest need not wait for the answer.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.lock().reply, Reply::Awaited)
    }

    /// The call, once the guest has handed it over and finished its body.
    fn due(&self) -> Option<EffectCall> {
        let mut state = self.lock();
        match state.body {
            Body::Untouched | Body::Finished => {
                let mut call = state.call.take()?;
                if let EffectRequest::Http(request) = &mut call.request {
                    request.body = std::mem::take(&mut state.bytes);
                    state.held.release();
                }
                Some(call)
            }
            Body::Open => None,
            Body::Broken => {
                state.call.take()?;
                let reason = "the body of the request was not finished, and nothing was sent";
                state.reply = Reply::Here(Err(ErrorCode::InternalError(Some(reason.into()))));
                None
            }
        }
    }
}

impl HostState {
    /// Makes the call that an exchange may now be ready for.
    async fn advance(&mut self, exchange: &Exchange) -> wasmtime::Result<()> {
        let Some(call) = exchange.due() else { return Ok(()) };
        let shown = match &call.request {
            EffectRequest::Http(HttpRequest { method, url, .. }) => format!("{method} {url}"),
            _ => String::new(),
        };
        let reply = match self.perform(call).await? {
            Ok(Answer::Http(response)) if !response.truncated => Ok(response),
            Ok(Answer::Http(_)) => Err(ErrorCode::HttpResponseBodySize(None)),
            Ok(_) => Err(ErrorCode::InternalError(Some("the answer is one of another kind".into()))),
            Err(failure) => failed(failure).map_err(|(code, reason)| {
                // The codes of WASI have no room for reasons.
                self.log.push(LogLevel::Warn, &format!("{shown}: {reason}"));
                code
            }),
        };
        exchange.lock().reply = Reply::Here(reply);
        Ok(())
    }
}

/// What a failure is to a client, and why. A refusal of the receiver is an answer like any other.
fn failed(failure: EffectFailure) -> Result<HttpResponse, (ErrorCode, String)> {
    Err(match failure {
        EffectFailure::Rejected(response) => return Ok(response),
        EffectFailure::Denied(reason) => (ErrorCode::HttpRequestDenied, reason),
        EffectFailure::NotSent(reason) => (ErrorCode::DestinationUnavailable, reason),
        EffectFailure::NoAnswer(reason) => (ErrorCode::ConnectionTerminated, reason),
        EffectFailure::ResponseTooLarge(response) => {
            let reason = format!("status {}, and a body longer than the host keeps", response.status);
            (ErrorCode::HttpResponseBodySize(None), reason)
        }
        EffectFailure::Limit(reason) => (ErrorCode::InternalError(Some(reason.clone())), reason),
    })
}

impl outgoing_handler::Host for HostState {
    async fn handle(
        &mut self,
        request: Resource<OutgoingRequest>,
        options: Option<Resource<RequestOptions>>,
    ) -> wasmtime::Result<Result<Resource<Exchange>, ErrorCode>> {
        let request = self.wasi.table.delete(request)?;
        let options = match options {
            Some(options) => self.wasi.table.delete(options)?,
            None => RequestOptions::default(),
        };
        let exchange = request.exchange.clone();
        match effect(request, &options) {
            Ok(call) => exchange.lock().call = Some(call),
            Err(code) => return Ok(Err(code)),
        }
        self.advance(&exchange).await?;
        Ok(Ok(self.wasi.table.push(exchange)?))
    }
}

/// The effect that a request asks for, but for its body.
fn effect(request: OutgoingRequest, options: &RequestOptions) -> Result<EffectCall, ErrorCode> {
    let mut headers = request.headers.into_entries();
    let connection = taken(&mut headers, CONNECTION)?;
    let key = taken(&mut headers, KEY)?;
    let safety = match taken(&mut headers, SAFETY)? {
        Some(name) => Some(Safety::from_name(&name).ok_or(ErrorCode::ConfigurationError)?),
        None => None,
    };
    // It says what the host counts itself.
    taken(&mut headers, "content-length")?;
    let path = request.path_with_query.unwrap_or_else(|| "/".into());
    let url = match (request.authority, &connection) {
        (Some(authority), Some(connection)) if authority == *connection => path,
        (None, Some(_)) => path,
        (Some(authority), _) => {
            let scheme = match request.scheme {
                Some(Scheme::Http) => "http",
                None | Some(Scheme::Https) => "https",
                Some(Scheme::Other(_)) => return Err(ErrorCode::HttpRequestUriInvalid),
            };
            format!("{scheme}://{authority}{path}")
        }
        (None, None) => return Err(ErrorCode::HttpRequestUriInvalid),
    };
    let method = method_name(request.method);
    let timeout_ms = options.total_ms();
    let request = EffectRequest::Http(HttpRequest { method, url, headers, body: Vec::new() });
    Ok(EffectCall { request, key, connection, safety, idempotency_key: None, timeout_ms, extra: Vec::new() })
}

/// Takes a field that may be there once.
fn taken(headers: &mut Vec<(String, String)>, name: &str) -> Result<Option<String>, ErrorCode> {
    let mut found = headers.extract_if(.., |(given, _)| given.eq_ignore_ascii_case(name));
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(ErrorCode::ConfigurationError),
        (found, None) => Ok(found.map(|(_, value)| value)),
    }
}

fn method_name(method: Method) -> String {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
        Method::Connect => "CONNECT",
        Method::Options => "OPTIONS",
        Method::Trace => "TRACE",
        Method::Patch => "PATCH",
        Method::Other(name) => return name,
    }
    .into()
}

impl types::Host for HostState {
    fn http_error_code(
        &mut self,
        _error: Resource<super::bindings::wasi::io::error::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        super::absent("an error of a stream")
    }
}
