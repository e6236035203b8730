//! The other side of `wasi:http`: a block answers no requests, so that it never has one, nor an answer to give.

use wasmtime::component::Resource;

use super::super::absent;
use super::super::bindings::wasi::http::types::{
    self, ErrorCode, IncomingRequest, Method, OutgoingResponse, ResponseOutparam, Scheme,
};
use super::{Fields, IncomingBody, OutgoingBody};
use crate::host::HostState;

const REQUEST: &str = "an incoming request";
const RESPONSE: &str = "an outgoing response";

impl types::HostIncomingRequest for HostState {
    fn method(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<Method> {
        absent(REQUEST)
    }

    fn path_with_query(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<Option<String>> {
        absent(REQUEST)
    }

    fn scheme(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<Option<Scheme>> {
        absent(REQUEST)
    }

    fn authority(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<Option<String>> {
        absent(REQUEST)
    }

    fn headers(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<Resource<Fields>> {
        absent(REQUEST)
    }

    fn consume(
        &mut self,
        _this: Resource<IncomingRequest>,
    ) -> wasmtime::Result<Result<Resource<IncomingBody>, ()>> {
        absent(REQUEST)
    }

    fn drop(&mut self, _this: Resource<IncomingRequest>) -> wasmtime::Result<()> {
        absent(REQUEST)
    }
}

impl types::HostOutgoingResponse for HostState {
    fn new(&mut self, _headers: Resource<Fields>) -> wasmtime::Result<Resource<OutgoingResponse>> {
        absent(RESPONSE)
    }

    fn status_code(&mut self, _this: Resource<OutgoingResponse>) -> wasmtime::Result<u16> {
        absent(RESPONSE)
    }

    fn set_status_code(
        &mut self,
        _this: Resource<OutgoingResponse>,
        _status: u16,
    ) -> wasmtime::Result<Result<(), ()>> {
        absent(RESPONSE)
    }

    fn headers(&mut self, _this: Resource<OutgoingResponse>) -> wasmtime::Result<Resource<Fields>> {
        absent(RESPONSE)
    }

    fn body(
        &mut self,
        _this: Resource<OutgoingResponse>,
    ) -> wasmtime::Result<Result<Resource<OutgoingBody>, ()>> {
        absent(RESPONSE)
    }

    fn drop(&mut self, _this: Resource<OutgoingResponse>) -> wasmtime::Result<()> {
        absent(RESPONSE)
    }
}

impl types::HostResponseOutparam for HostState {
    fn send_informational(
        &mut self,
        _this: Resource<ResponseOutparam>,
        _status: u16,
        _headers: Resource<Fields>,
    ) -> wasmtime::Result<Result<(), ErrorCode>> {
        absent(REQUEST)
    }

    fn set(
        &mut self,
        _this: Resource<ResponseOutparam>,
        _response: Result<Resource<OutgoingResponse>, ErrorCode>,
    ) -> wasmtime::Result<()> {
        absent(REQUEST)
    }

    fn drop(&mut self, _this: Resource<ResponseOutparam>) -> wasmtime::Result<()> {
        absent(REQUEST)
    }
}
