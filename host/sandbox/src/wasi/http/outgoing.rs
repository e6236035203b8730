//! What a guest makes of a request.

use counterfoil_domain::limits::REQUEST_BODY_BYTES_MAX;
use wasmtime::component::Resource;

use super::super::bindings::wasi::http::types::{self, ErrorCode, Method, Scheme};
use super::super::bindings::wasi::io::streams::StreamError;
use super::super::streams::OutputStream;
use super::{Body, Exchange, Fields};
use crate::host::HostState;

/// Texts of a request's head: what common servers accept of a URL. The rest of its form is judged where it is sent.
const HEAD_TEXT_BYTES_MAX: usize = 8 << 10;
const NS_PER_MS: u64 = 1_000_000;

/// A request that is being made.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct OutgoingRequest {
    pub(super) method: Method,
    pub(super) path_with_query: Option<String>,
    pub(super) scheme: Option<Scheme>,
    pub(super) authority: Option<String>,
    pub(super) headers: Fields,
    pub(super) exchange: Exchange,
}

/// The end of a request's body that the guest holds.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct OutgoingBody {
    exchange: Exchange,
    is_written: bool,
}

/// How long a guest would wait, in nanoseconds.
#[derive(Debug, Default)]
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct RequestOptions {
    connect: Option<u64>,
    first_byte: Option<u64>,
    between_bytes: Option<u64>,
}

impl RequestOptions {
    /// The host knows one time, for the whole call.
    pub(super) fn total_ms(&self) -> Option<u32> {
        let parts = [self.connect, self.first_byte, self.between_bytes];
        let ns = parts.into_iter().flatten().reduce(u64::saturating_add)?;
        Some(u32::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(u32::MAX))
    }
}

impl Exchange {
    /// Takes a piece of the body. One that is too long is never sent.
    pub(in super::super) fn write(&self, bytes: &[u8]) -> wasmtime::Result<Result<(), StreamError>> {
        let mut state = self.lock();
        if state.body != Body::Open {
            return Ok(Err(StreamError::Closed));
        }
        if (state.bytes.len() + bytes.len()) as u64 > REQUEST_BODY_BYTES_MAX {
            state.body = Body::Broken;
            state.bytes = Vec::new();
            state.held.release();
            return Ok(Err(StreamError::Closed));
        }
        state.held.grow(bytes.len())?;
        state.bytes.extend_from_slice(bytes);
        Ok(Ok(()))
    }
}

impl types::HostOutgoingRequest for HostState {
    fn new(&mut self, headers: Resource<Fields>) -> wasmtime::Result<Resource<OutgoingRequest>> {
        let request = OutgoingRequest {
            method: Method::Get,
            path_with_query: None,
            scheme: None,
            authority: None,
            headers: self.wasi.table.delete(headers)?,
            exchange: Exchange::new(self.wasi.budget.held()),
        };
        Ok(self.wasi.table.push(request)?)
    }

    fn body(
        &mut self,
        request: Resource<OutgoingRequest>,
    ) -> wasmtime::Result<Result<Resource<OutgoingBody>, ()>> {
        let exchange = self.wasi.table.get(&request)?.exchange.clone();
        {
            let mut state = exchange.lock();
            if state.body != Body::Untouched {
                return Ok(Err(()));
            }
            state.body = Body::Open;
        }
        Ok(Ok(self.wasi.table.push(OutgoingBody { exchange, is_written: false })?))
    }

    fn method(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<Method> {
        Ok(self.wasi.table.get(&request)?.method.clone())
    }

    fn set_method(
        &mut self,
        request: Resource<OutgoingRequest>,
        method: Method,
    ) -> wasmtime::Result<Result<(), ()>> {
        if matches!(&method, Method::Other(name) if !fits(Some(name))) {
            return Ok(Err(()));
        }
        self.wasi.table.get_mut(&request)?.method = method;
        Ok(Ok(()))
    }

    fn path_with_query(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<Option<String>> {
        Ok(self.wasi.table.get(&request)?.path_with_query.clone())
    }

    fn set_path_with_query(
        &mut self,
        request: Resource<OutgoingRequest>,
        path: Option<String>,
    ) -> wasmtime::Result<Result<(), ()>> {
        // Many clients leave the slash out before a bare query.
        let path = path.map(|path| if path.starts_with('/') { path } else { format!("/{path}") });
        if !fits(path.as_deref()) {
            return Ok(Err(()));
        }
        self.wasi.table.get_mut(&request)?.path_with_query = path;
        Ok(Ok(()))
    }

    fn scheme(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<Option<Scheme>> {
        Ok(self.wasi.table.get(&request)?.scheme.clone())
    }

    fn set_scheme(
        &mut self,
        request: Resource<OutgoingRequest>,
        scheme: Option<Scheme>,
    ) -> wasmtime::Result<Result<(), ()>> {
        if matches!(&scheme, Some(Scheme::Other(name)) if !fits(Some(name))) {
            return Ok(Err(()));
        }
        self.wasi.table.get_mut(&request)?.scheme = scheme;
        Ok(Ok(()))
    }

    fn authority(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<Option<String>> {
        Ok(self.wasi.table.get(&request)?.authority.clone())
    }

    fn set_authority(
        &mut self,
        request: Resource<OutgoingRequest>,
        authority: Option<String>,
    ) -> wasmtime::Result<Result<(), ()>> {
        // What would end the authority would make another URL of it.
        let is_one = |text: &str| !text.is_empty() && !text.contains(['/', '?', '#', '\\', '@']);
        if !fits(authority.as_deref()) || authority.as_deref().is_some_and(|text| !is_one(text)) {
            return Ok(Err(()));
        }
        self.wasi.table.get_mut(&request)?.authority = authority;
        Ok(Ok(()))
    }

    fn headers(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<Resource<Fields>> {
        let headers = self.wasi.table.get(&request)?.headers.copied(true)?;
        Ok(self.wasi.table.push(headers)?)
    }

    fn drop(&mut self, request: Resource<OutgoingRequest>) -> wasmtime::Result<()> {
        self.wasi.table.delete(request)?;
        Ok(())
    }
}

fn fits(text: Option<&str>) -> bool {
    text.is_none_or(|text| text.len() <= HEAD_TEXT_BYTES_MAX)
}

impl types::HostOutgoingBody for HostState {
    fn write(
        &mut self,
        body: Resource<OutgoingBody>,
    ) -> wasmtime::Result<Result<Resource<OutputStream>, ()>> {
        let body = self.wasi.table.get_mut(&body)?;
        if std::mem::replace(&mut body.is_written, true) {
            return Ok(Err(()));
        }
        let stream = OutputStream::Body(body.exchange.clone());
        Ok(Ok(self.wasi.table.push(stream)?))
    }

    async fn finish(
        &mut self,
        body: Resource<OutgoingBody>,
        trailers: Option<Resource<Fields>>,
    ) -> wasmtime::Result<Result<(), ErrorCode>> {
        let exchange = self.wasi.table.delete(body)?.exchange;
        if let Some(trailers) = trailers {
            let trailers = self.wasi.table.delete(trailers)?;
            if !trailers.into_entries().is_empty() {
                exchange.lock().body = Body::Broken;
            }
        }
        let finished = {
            let mut state = exchange.lock();
            let finished = match state.body {
                Body::Broken => Err(ErrorCode::HttpRequestBodySize(Some(REQUEST_BODY_BYTES_MAX))),
                _ => Ok(()),
            };
            if finished.is_ok() {
                state.body = Body::Finished;
            }
            finished
        };
        self.advance(&exchange).await?;
        Ok(finished)
    }

    fn drop(&mut self, body: Resource<OutgoingBody>) -> wasmtime::Result<()> {
        let exchange = self.wasi.table.delete(body)?.exchange;
        exchange.lock().body = Body::Broken;
        // Nothing is due of a body that is broken; whoever waits for the answer is told so.
        let _ = exchange.due();
        Ok(())
    }
}

impl types::HostRequestOptions for HostState {
    fn new(&mut self) -> wasmtime::Result<Resource<RequestOptions>> {
        Ok(self.wasi.table.push(RequestOptions::default())?)
    }

    fn connect_timeout(&mut self, options: Resource<RequestOptions>) -> wasmtime::Result<Option<u64>> {
        Ok(self.wasi.table.get(&options)?.connect)
    }

    fn set_connect_timeout(
        &mut self,
        options: Resource<RequestOptions>,
        ns: Option<u64>,
    ) -> wasmtime::Result<Result<(), ()>> {
        self.wasi.table.get_mut(&options)?.connect = ns;
        Ok(Ok(()))
    }

    fn first_byte_timeout(&mut self, options: Resource<RequestOptions>) -> wasmtime::Result<Option<u64>> {
        Ok(self.wasi.table.get(&options)?.first_byte)
    }

    fn set_first_byte_timeout(
        &mut self,
        options: Resource<RequestOptions>,
        ns: Option<u64>,
    ) -> wasmtime::Result<Result<(), ()>> {
        self.wasi.table.get_mut(&options)?.first_byte = ns;
        Ok(Ok(()))
    }

    fn between_bytes_timeout(&mut self, options: Resource<RequestOptions>) -> wasmtime::Result<Option<u64>> {
        Ok(self.wasi.table.get(&options)?.between_bytes)
    }

    fn set_between_bytes_timeout(
        &mut self,
        options: Resource<RequestOptions>,
        ns: Option<u64>,
    ) -> wasmtime::Result<Result<(), ()>> {
        self.wasi.table.get_mut(&options)?.between_bytes = ns;
        Ok(Ok(()))
    }

    fn drop(&mut self, options: Resource<RequestOptions>) -> wasmtime::Result<()> {
        self.wasi.table.delete(options)?;
        Ok(())
    }
}
