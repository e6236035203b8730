//! What is known of a request's bytes on their way out.
//!
//! Two adapters stand around TLS (around nothing, without it). [`RequestSide`] sees the request's bytes and marks
//! where they begin; [`KernelSide`] sees every byte that the operating system takes, asks the send window before it
//! hands over the first that belongs to the request, and counts. So a byte that waits in a TLS buffer is not yet
//! sent, and cannot leave after the window has closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use counterfoil_domain::ports::{Faults, Site};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::SendWindow;

/// No request has begun.
const NOWHERE: u64 = u64::MAX;

/// The state of one exchange, shared by its adapters. One task owns them all; the atomics only make that task `Send`.
pub(super) struct Wire<'a> {
    window: SendWindow,
    pub(super) faults: &'a dyn Faults,
    first_byte_alone: bool,
    /// Bytes that the operating system took, handshake included.
    kernel_bytes: AtomicU64,
    /// What `kernel_bytes` was when the request began.
    request_begins_at: AtomicU64,
    window_closed: AtomicBool,
    /// Informational answers so far.
    pub(super) informational: Arc<AtomicUsize>,
    informational_max: usize,
}

impl<'a> Wire<'a> {
    pub(super) fn new(
        window: SendWindow,
        faults: &'a dyn Faults,
        first_byte_alone: bool,
        informational_max: usize,
    ) -> Self {
        Self {
            window,
            faults,
            first_byte_alone,
            kernel_bytes: AtomicU64::new(0),
            request_begins_at: AtomicU64::new(NOWHERE),
            window_closed: AtomicBool::new(false),
            informational: Arc::default(),
            informational_max,
        }
    }

    pub(super) fn kernel_side(&'a self, stream: TcpStream) -> KernelSide<'a> {
        KernelSide { stream, wire: self }
    }

    pub(super) fn request_side<S>(&'a self, stream: S) -> RequestSide<'a, S> {
        RequestSide { stream, wire: self, first_write: true, is_complete: false }
    }

    /// Whether a byte of the request may have left. (With TLS, a record of the session's own counts as one: it errs to
    /// this side only.)
    pub(super) fn is_sent(&self) -> bool {
        self.kernel_bytes.load(Ordering::Relaxed) > self.request_begins_at.load(Ordering::Relaxed)
    }

    /// Whether the send window kept the first byte from leaving.
    pub(super) fn is_window_closed(&self) -> bool {
        self.window_closed.load(Ordering::Relaxed)
    }

    /// Whether more informational answers came than may.
    pub(super) fn is_flooded(&self) -> bool {
        self.informational.load(Ordering::Relaxed) > self.informational_max
    }

    fn begin_request(&self) {
        if self.request_begins_at.load(Ordering::Relaxed) == NOWHERE {
            self.request_begins_at.store(self.kernel_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn is_at_first_byte(&self) -> bool {
        self.kernel_bytes.load(Ordering::Relaxed) == self.request_begins_at.load(Ordering::Relaxed)
    }
}

/// The connection below TLS.
pub(super) struct KernelSide<'a> {
    stream: TcpStream,
    wire: &'a Wire<'a>,
}

impl AsyncWrite for KernelSide<'_> {
    // Vectored writes come through here as well, one part at a time: there is one place where a byte can leave.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wire = self.wire;
        let is_first = wire.is_at_first_byte();
        if is_first && !wire.window.is_open() {
            wire.window_closed.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("the send window has closed")));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        wire.kernel_bytes.fetch_add(written as u64, Ordering::Relaxed);
        if is_first && written > 0 {
            wire.faults.reach(Site::AfterFirstByte);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for KernelSide<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

/// The connection above TLS: what the HTTP layer writes here is the request and nothing else.
pub(super) struct RequestSide<'a, S> {
    stream: S,
    wire: &'a Wire<'a>,
    first_write: bool,
    is_complete: bool,
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestSide<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.wire.begin_request();
        let part = if self.first_write && self.wire.first_byte_alone {
            bytes.get(..1).unwrap_or(bytes)
        } else {
            bytes
        };
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, part))?;
        self.first_write &= written == 0;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        // The HTTP layer puts the whole request into its buffer, body in one piece, before it writes; it flushes when
        // that is empty.
        if !self.is_complete && self.wire.is_sent() {
            self.is_complete = true;
            self.wire.faults.reach(Site::AfterLastByte);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestSide<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.wire.is_flooded() {
            return Poll::Ready(Err(io::Error::other("too many informational answers")));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}
