//! What is wrong with a definition: a list, so that an author sees all of it at once.

use serde::Serialize;

use super::PROBLEMS_MAX;
use super::source::Source;
use crate::code::Code;
use crate::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};

/// One thing that is wrong with a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{line}:{column}: {message} ({pointer})")]
pub struct Problem {
    /// JSON Pointer (RFC 6901) to the value at fault; empty for the whole text.
    pub pointer: String,
    /// Line in the text, from 1.
    pub line: u64,
    /// Character in the line, from 1.
    pub column: u64,
    /// Which rule it breaks.
    pub code: Code,
    /// In words.
    pub message: String,
}

/// Collects problems, and finds their places in the text.
#[derive(Debug)]
pub(super) struct Problems<'a> {
    source: &'a Source,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, found: vec![] }
    }

    /// A problem with the value at `pointer`.
    pub(super) fn at_value(&mut self, pointer: &str, code: Code, message: impl AsRef<str>) {
        self.add(pointer, self.source.value_position(pointer), code, message.as_ref());
    }

    /// A problem with the key at `pointer`: its name rather than what it holds.
    pub(super) fn at_key(&mut self, pointer: &str, code: Code, message: impl AsRef<str>) {
        self.add(pointer, self.source.key_position(pointer), code, message.as_ref());
    }

    /// A problem inside the text at `pointer`, `offset` bytes from its beginning.
    pub(super) fn in_text(&mut self, pointer: &str, offset: usize, code: Code, message: impl AsRef<str>) {
        self.add(pointer, self.source.text_position(pointer, offset), code, message.as_ref());
    }

    /// The line of the key at `pointer`.
    pub(super) fn line_of_key(&self, pointer: &str) -> u64 {
        self.source.key_position(pointer).0
    }

    fn add(&mut self, pointer: &str, (line, column): (u64, u64), code: Code, message: &str) {
        if self.found.len() < PROBLEMS_MAX {
            let pointer = bounded_text(pointer, ERROR_TEXT_BYTES_MAX);
            let message = bounded_text(message, ERROR_TEXT_BYTES_MAX);
            self.found.push(Problem { pointer, line, column, code, message });
        }
    }

    /// All of them, in the order of the text.
    pub(super) fn into_list(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        self.found
    }
}
