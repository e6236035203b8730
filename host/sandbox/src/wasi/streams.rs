//! Streams of bytes. All of them are in memory, so that none ever blocks.

use wasmtime::component::Resource;

use super::Pollable;
use super::bindings::wasi::io::streams::{self, StreamError};
use super::held::Held;
use super::http::Exchange;
use crate::host::{Abort, HostState};
use crate::log::Source;

/// Bytes that one call moves at most; a guest calls again for the rest.
const CHUNK_BYTES: u64 = 64 << 10;

/// Where a guest reads from.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub enum InputStream {
    /// One for all who ask for it: what one reads, another does not find.
    Stdin,
    Bytes(Bytes),
}

/// Bytes that are read from their beginning.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "a stream that the generated bindings name is made of them")]
pub struct Bytes {
    all: Vec<u8>,
    at: usize,
    /// Gives back what they take, once they are gone.
    _held: Held,
}

impl Bytes {
    pub(super) fn new(bytes: Vec<u8>, held: Held) -> Self {
        Self { all: bytes, at: 0, _held: held }
    }

    fn read(&mut self, len: u64) -> Result<Vec<u8>, StreamError> {
        let left = &self.all[self.at..];
        if left.is_empty() {
            return Err(StreamError::Closed);
        }
        let len = left.len().min(usize::try_from(len.min(CHUNK_BYTES)).unwrap_or(usize::MAX));
        let piece = left[..len].to_vec();
        self.at += len;
        Ok(piece)
    }
}

/// Where a guest writes to.
#[expect(unreachable_pub, reason = "the generated bindings name it again")]
pub enum OutputStream {
    Stdout,
    Stderr,
    /// The body of a request.
    Body(Exchange),
}

impl HostState {
    fn take(
        &mut self,
        stream: &Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<Vec<u8>, StreamError>> {
        match self.wasi.table.get_mut(stream)? {
            InputStream::Stdin => Ok(self.wasi.stdin.read(len)),
            InputStream::Bytes(bytes) => Ok(bytes.read(len)),
        }
    }

    fn put(
        &mut self,
        stream: &Resource<OutputStream>,
        bytes: &[u8],
    ) -> wasmtime::Result<Result<(), StreamError>> {
        match self.wasi.table.get_mut(stream)? {
            OutputStream::Stdout => match &mut self.wasi.output {
                Some(output) => output.write(bytes),
                None => self.log.write(Source::Stdout, bytes),
            },
            OutputStream::Stderr => self.log.write(Source::Stderr, bytes),
            OutputStream::Body(exchange) => return exchange.write(bytes),
        }
        Ok(Ok(()))
    }

    fn zeroes(
        &mut self,
        stream: &Resource<OutputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        match usize::try_from(len) {
            Ok(bytes_len) if len <= CHUNK_BYTES => self.put(stream, &vec![0; bytes_len]),
            _ => Err(Abort::WriteTooLong(len).into()),
        }
    }
}

impl streams::Host for HostState {}

impl streams::HostInputStream for HostState {
    fn read(
        &mut self,
        stream: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<Vec<u8>, StreamError>> {
        self.take(&stream, len)
    }

    fn blocking_read(
        &mut self,
        stream: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<Vec<u8>, StreamError>> {
        self.take(&stream, len)
    }

    fn skip(
        &mut self,
        stream: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<u64, StreamError>> {
        Ok(self.take(&stream, len)?.map(|bytes| bytes.len() as u64))
    }

    fn blocking_skip(
        &mut self,
        stream: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<u64, StreamError>> {
        Ok(self.take(&stream, len)?.map(|bytes| bytes.len() as u64))
    }

    fn subscribe(&mut self, _stream: Resource<InputStream>) -> wasmtime::Result<Resource<Pollable>> {
        Ok(self.wasi.table.push(Pollable::Ready)?)
    }

    fn drop(&mut self, stream: Resource<InputStream>) -> wasmtime::Result<()> {
        self.wasi.table.delete(stream)?;
        Ok(())
    }
}

impl streams::HostOutputStream for HostState {
    fn check_write(&mut self, _stream: Resource<OutputStream>) -> wasmtime::Result<Result<u64, StreamError>> {
        Ok(Ok(CHUNK_BYTES))
    }

    fn write(
        &mut self,
        stream: Resource<OutputStream>,
        contents: Vec<u8>,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        self.put(&stream, &contents)
    }

    fn blocking_write_and_flush(
        &mut self,
        stream: Resource<OutputStream>,
        contents: Vec<u8>,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        self.put(&stream, &contents)
    }

    fn flush(&mut self, _stream: Resource<OutputStream>) -> wasmtime::Result<Result<(), StreamError>> {
        Ok(Ok(()))
    }

    fn blocking_flush(
        &mut self,
        _stream: Resource<OutputStream>,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        Ok(Ok(()))
    }

    fn subscribe(&mut self, _stream: Resource<OutputStream>) -> wasmtime::Result<Resource<Pollable>> {
        Ok(self.wasi.table.push(Pollable::Ready)?)
    }

    fn write_zeroes(
        &mut self,
        stream: Resource<OutputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        self.zeroes(&stream, len)
    }

    fn blocking_write_zeroes_and_flush(
        &mut self,
        stream: Resource<OutputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<(), StreamError>> {
        self.zeroes(&stream, len)
    }

    fn splice(
        &mut self,
        stream: Resource<OutputStream>,
        source: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<u64, StreamError>> {
        let bytes = match self.take(&source, len)? {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.put(&stream, &bytes)?.map(|()| bytes.len() as u64))
    }

    fn blocking_splice(
        &mut self,
        stream: Resource<OutputStream>,
        source: Resource<InputStream>,
        len: u64,
    ) -> wasmtime::Result<Result<u64, StreamError>> {
        self.splice(stream, source, len)
    }

    fn drop(&mut self, stream: Resource<OutputStream>) -> wasmtime::Result<()> {
        self.wasi.table.delete(stream)?;
        Ok(())
    }
}
