//! Programs that are blocks without knowing it: the input comes in at standard input, and the output is what they print.

use super::streams::Bytes;
use crate::host::{Abort, HostState};

/// What was printed, up to one byte more than an output may have.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Output {
    /// The rest is let go: a program that prints too much is told so at its end.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let room = self.bytes_max - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl HostState {
    /// Lays out the input, and catches what is printed from here on.
    pub(crate) fn begin_command(&mut self, input: String) {
        self.wasi.stdin = Bytes::new(input.into_bytes(), self.wasi.budget.held());
        let bytes_max = usize::try_from(self.output_bytes_max.saturating_add(1)).unwrap_or(usize::MAX);
        self.wasi.output = Some(Output { bytes: Vec::new(), bytes_max });
    }

    /// What the program printed, once it has come to its end.
    ///
    /// # Errors
    /// [`Abort::NoOutput`] and [`Abort::OutputNotText`].
    pub(crate) fn end_command(&mut self) -> Result<String, Abort> {
        let output = self.wasi.output.take().map(|output| output.bytes).unwrap_or_default();
        if output.iter().all(u8::is_ascii_whitespace) {
            return Err(Abort::NoOutput);
        }
        String::from_utf8(output).map_err(|_| Abort::OutputNotText)
    }
}
