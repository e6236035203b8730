//! What an exchange may cost, and what it may come to.

use std::fmt;

use counterfoil_domain::effect::HttpResponse;
use counterfoil_domain::limits::ANSWER_BODY_BYTES_MAX;

/// Bounds of one exchange. The total bounds every part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Resolving the name.
    pub dns_ms_max: u64,
    /// Connecting, over all addresses of the name.
    pub connect_ms_max: u64,
    /// The TLS handshake.
    pub tls_ms_max: u64,
    /// From the connection to the end of the answer's head.
    pub first_byte_ms_max: u64,
    /// The whole exchange.
    pub total_ms_max: u64,
    /// Header fields of the answer.
    pub headers_max: usize,
    /// Head of the answer.
    pub head_bytes_max: usize,
    /// Informational answers (1xx) before the real one.
    pub informational_max: usize,
    /// Body that is kept; what is longer is cut.
    pub body_bytes_max: usize,
}

impl Budget {
    /// What applies where an effect says nothing.
    pub const DEFAULT: Self = Self {
        // A resolver's second try fits.
        dns_ms_max: 2_000,
        // A lost SYN is sent again after one second, and after three.
        connect_ms_max: 3_000,
        tls_ms_max: 3_000,
        first_byte_ms_max: 10_000,
        total_ms_max: 30_000,
        headers_max: 64,
        head_bytes_max: 32 << 10,
        informational_max: 3,
        #[expect(clippy::cast_possible_truncation, reason = "one mebibyte")]
        body_bytes_max: ANSWER_BODY_BYTES_MAX as usize,
    };
}

/// What an exchange came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// No byte of the request was handed to the operating system.
    NotSent(NotSent),
    /// A complete answer, all its header fields in it, its body possibly cut at the cap. (A body that ends with the
    /// connection is complete when that is closed in order: HTTP has no other sign of its end.)
    Answered(HttpResponse),
    /// At least one byte may have left, and no complete answer came.
    Lost(Lost),
}

/// Why nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotSent {
    /// Which part failed.
    pub kind: NotSentKind,
    /// In words, for the operator.
    pub detail: String,
}

impl NotSent {
    /// The only thing that a guest is told: were the kinds told apart, a block could scan ports.
    pub const GUEST_TEXT: &'static str = "the request could not be sent";

    fn new(kind: NotSentKind, detail: impl fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }

    pub(super) fn refused(detail: impl fmt::Display) -> Self {
        Self::new(NotSentKind::Refused, detail)
    }

    pub(super) fn dns(detail: impl fmt::Display) -> Self {
        Self::new(NotSentKind::Dns, detail)
    }

    pub(super) fn connect(detail: impl fmt::Display) -> Self {
        Self::new(NotSentKind::Connect, detail)
    }

    pub(super) fn tls(detail: impl fmt::Display) -> Self {
        Self::new(NotSentKind::Tls, detail)
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not sent: {}", self.detail)
    }
}

/// Which part of sending failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotSentKind {
    /// Policy: of the address, or of the message's form.
    Refused,
    /// The name could not be resolved.
    Dns,
    /// No connection, or it broke before the first byte was written.
    Connect,
    /// No TLS session that proves the host's name.
    Tls,
    /// The send window had closed before the first byte was written.
    WindowClosed,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// What happened.
    pub kind: LostKind,
    /// In words, for the operator.
    pub detail: String,
}

impl Lost {
    pub(super) fn new(kind: LostKind, detail: impl fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer: {}", self.detail)
    }
}

/// What kept an answer from being complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostKind {
    /// A part of the exchange took longer than its budget.
    Timeout,
    /// The connection was reset, or ended before the answer did.
    Closed,
    /// The answer's head is larger than its budget, or came after too many informational ones.
    HeadTooLarge,
    /// The answer cannot be read as HTTP.
    Malformed,
}
