//! What a guest is given of an answer.

use wasmtime::component::Resource;

use super::super::bindings::wasi::http::types::{self, ErrorCode};
use super::super::held::Held;
use super::super::poll::Pollable;
use super::super::streams::{Bytes, InputStream};
use super::{Exchange, Fields, Reply};
use crate::host::HostState;

/// An answer.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct IncomingResponse {
    status: u16,
    headers: Fields,
    body: Option<Bytes>,
}

/// Its body, until somebody reads it.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct IncomingBody(Option<Bytes>);

/// What follows a body: nothing. Whether it was asked for already.
#[derive(Default)]
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub struct FutureTrailers(bool);

impl types::HostFutureIncomingResponse for HostState {
    fn subscribe(&mut self, exchange: Resource<Exchange>) -> wasmtime::Result<Resource<Pollable>> {
        let pollable = Pollable::Answered(self.wasi.table.get(&exchange)?.clone());
        Ok(self.wasi.table.push(pollable)?)
    }

    fn get(
        &mut self,
        exchange: Resource<Exchange>,
    ) -> wasmtime::Result<Option<Result<Result<Resource<IncomingResponse>, ErrorCode>, ()>>> {
        let reply = {
            let mut state = self.wasi.table.get(&exchange)?.lock();
            match std::mem::replace(&mut state.reply, Reply::Taken) {
                Reply::Awaited => {
                    state.reply = Reply::Awaited;
                    return Ok(None);
                }
                Reply::Here(reply) => reply,
                Reply::Taken => return Ok(Some(Err(()))),
            }
        };
        let response = match reply {
            Ok(response) => response,
            Err(code) => return Ok(Some(Ok(Err(code)))),
        };
        let mut held: Held = self.wasi.budget.held();
        held.grow(response.body.len())?;
        let response = IncomingResponse {
            status: response.status,
            headers: Fields::of(response.headers, self.wasi.budget.held())?,
            body: Some(Bytes::new(response.body, held)),
        };
        Ok(Some(Ok(Ok(self.wasi.table.push(response)?))))
    }

    fn drop(&mut self, exchange: Resource<Exchange>) -> wasmtime::Result<()> {
        self.wasi.table.delete(exchange)?;
        Ok(())
    }
}

impl types::HostIncomingResponse for HostState {
    fn status(&mut self, response: Resource<IncomingResponse>) -> wasmtime::Result<u16> {
        Ok(self.wasi.table.get(&response)?.status)
    }

    fn headers(&mut self, response: Resource<IncomingResponse>) -> wasmtime::Result<Resource<Fields>> {
        let headers = self.wasi.table.get(&response)?.headers.copied(true)?;
        Ok(self.wasi.table.push(headers)?)
    }

    fn consume(
        &mut self,
        response: Resource<IncomingResponse>,
    ) -> wasmtime::Result<Result<Resource<IncomingBody>, ()>> {
        match self.wasi.table.get_mut(&response)?.body.take() {
            Some(body) => Ok(Ok(self.wasi.table.push(IncomingBody(Some(body)))?)),
            None => Ok(Err(())),
        }
    }

    fn drop(&mut self, response: Resource<IncomingResponse>) -> wasmtime::Result<()> {
        self.wasi.table.delete(response)?;
        Ok(())
    }
}

impl types::HostIncomingBody for HostState {
    fn stream(
        &mut self,
        body: Resource<IncomingBody>,
    ) -> wasmtime::Result<Result<Resource<InputStream>, ()>> {
        match self.wasi.table.get_mut(&body)?.0.take() {
            Some(bytes) => Ok(Ok(self.wasi.table.push(InputStream::Bytes(bytes))?)),
            None => Ok(Err(())),
        }
    }

    fn finish(&mut self, body: Resource<IncomingBody>) -> wasmtime::Result<Resource<FutureTrailers>> {
        self.wasi.table.delete(body)?;
        Ok(self.wasi.table.push(FutureTrailers::default())?)
    }

    fn drop(&mut self, body: Resource<IncomingBody>) -> wasmtime::Result<()> {
        self.wasi.table.delete(body)?;
        Ok(())
    }
}

impl types::HostFutureTrailers for HostState {
    fn subscribe(&mut self, _trailers: Resource<FutureTrailers>) -> wasmtime::Result<Resource<Pollable>> {
        Ok(self.wasi.table.push(Pollable::Ready)?)
    }

    fn get(
        &mut self,
        trailers: Resource<FutureTrailers>,
    ) -> wasmtime::Result<Option<Result<Result<Option<Resource<Fields>>, ErrorCode>, ()>>> {
        let FutureTrailers(is_taken) = self.wasi.table.get_mut(&trailers)?;
        Ok(Some(if std::mem::replace(is_taken, true) { Err(()) } else { Ok(Ok(None)) }))
    }

    fn drop(&mut self, trailers: Resource<FutureTrailers>) -> wasmtime::Result<()> {
        self.wasi.table.delete(trailers)?;
        Ok(())
    }
}
