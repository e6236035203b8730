//! How a step ends when it does not succeed.

use std::error::Error;
use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use crate::effect::EffectError;
use crate::http::Answer;

/// A step's failure: transient, worth trying again, or permanent.
///
/// Errors of this crate become failures through `?`; see the [`From`] implementation for [`EffectError`]
/// for which of them are transient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: String,
    message: String,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Never,
    After(Option<Duration>),
}

impl Failure {
    /// A failure that trying again cannot mend. The code is for programs, the message for people.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retry: Retry::Never }
    }

    /// A failure that trying again may mend; the host decides when, and how often.
    pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retry: Retry::After(None) }
    }

    /// A transient failure, to be tried again no earlier than after `delay`.
    pub fn transient_after(code: impl Into<String>, message: impl Into<String>, delay: Duration) -> Self {
        Self { code: code.into(), message: message.into(), retry: Retry::After(Some(delay)) }
    }

    /// The code, for programs.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether trying again may mend it.
    pub fn is_transient(&self) -> bool {
        matches!(self.retry, Retry::After(_))
    }

    /// The earliest time for another try, counted from now.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.retry {
            Retry::After(delay) => delay,
            Retry::Never => None,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Error for Failure {}

/// Transient: nothing was sent, a read got no answer, or the receiver refused with a status that passes
/// (408, 425, 429 or 5xx; its `Retry-After` in seconds is honoured), or a mail server with a code of 4xx. Everything
/// else is permanent.
impl From<EffectError> for Failure {
    fn from(error: EffectError) -> Self {
        let message = error.to_string();
        match &error {
            EffectError::Denied(_) => Self::permanent("denied", message),
            EffectError::NotSent(_) => Self::transient("not_sent", message),
            EffectError::Rejected(answer) => rejected(answer, message),
            EffectError::MailRefused { code: 400..=499, .. } => Self::transient("rejected", message),
            EffectError::MailRefused { .. } => Self::permanent("rejected", message),
            EffectError::WorkerFailed { .. } => Self::permanent("worker_failed", message),
            EffectError::NoAnswer(_) => Self::transient("no_answer", message),
            EffectError::ResponseTooLarge(_) => Self::permanent("response_too_large", message),
            EffectError::Limit(_) => Self::permanent("limit", message),
        }
    }
}

fn rejected(answer: &Answer, message: String) -> Failure {
    const CODE: &str = "rejected";
    if !matches!(answer.status(), 408 | 425 | 429 | 500..=599) {
        return Failure::permanent(CODE, message);
    }
    // The form with a date is left to the host's own back-off: a block has no clock to hold it against.
    let seconds = answer.header("retry-after").and_then(|value| value.trim().parse().ok());
    match seconds {
        Some(seconds) => Failure::transient_after(CODE, message, Duration::from_secs(seconds)),
        None => Failure::transient(CODE, message),
    }
}

/// A body, or a value, that is not the JSON it should be.
#[derive(Debug)]
pub struct JsonError {
    what: &'static str,
    source: serde_json::Error,
}

impl JsonError {
    pub(crate) fn request(source: serde_json::Error) -> Self {
        Self { what: "the request's body cannot be written as JSON", source }
    }

    pub(crate) fn answer(source: serde_json::Error) -> Self {
        Self { what: "the answer's body is not the expected JSON", source }
    }

    pub(crate) fn event(source: serde_json::Error) -> Self {
        Self { what: "the event's data cannot be written as JSON", source }
    }

    pub(crate) fn value(source: serde_json::Error) -> Self {
        Self { what: "the value cannot be written as JSON", source }
    }

    pub(crate) fn task(source: serde_json::Error) -> Self {
        Self { what: "the work's input cannot be written as JSON", source }
    }

    pub(crate) fn output(source: serde_json::Error) -> Self {
        Self { what: "the worker's output is not the expected JSON", source }
    }

    pub(crate) fn stored(source: serde_json::Error) -> Self {
        Self { what: "the stored value is not the expected JSON", source }
    }
}

impl Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl Error for JsonError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Permanent: the same body would be met again.
impl From<JsonError> for Failure {
    fn from(error: JsonError) -> Self {
        Self::permanent("invalid_json", with_sources(&error))
    }
}

/// Permanent: the same text would be met again.
impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::permanent("invalid_json", error.to_string())
    }
}

fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}
