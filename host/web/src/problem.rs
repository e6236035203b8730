//! What went wrong, for whoever asked: `application/problem+json` (RFC 9457) under `/v1`, a page elsewhere.
//!
//! A handler returns a [`Problem`]; the outermost layer, which knows the request's id, writes it out.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use counterfoil_domain::code::Code;
use counterfoil_domain::key::Scope;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use counterfoil_store::StoreError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::advice;

/// Seconds after which a caller may try again what failed for now: a database restarts within a few.
const RETRY_AFTER_S: u32 = 2;

/// A problem, before it is written out.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    errors: Vec<FieldError>,
    retry_after_s: Option<u32>,
}

/// The body of every answer that is an error (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// Where to read what to do about it, relative to this host.
    #[schema(example = "/advice/not_found")]
    #[serde(rename = "type")]
    pub(crate) advice: String,
    /// The code in words.
    pub(crate) title: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// A stable name of what went wrong.
    #[schema(example = "not_found")]
    pub(crate) code: String,
    /// What went wrong this time.
    pub(crate) detail: String,
    /// The id of the request, which the host's log has too.
    pub(crate) request_id: String,
    /// Each thing that is wrong with the request.
    pub(crate) errors: Vec<FieldError>,
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// JSON Pointer (RFC 6901) into the body; empty for the whole.
    pub(crate) pointer: String,
    /// Which rule it breaks; `/advice/{code}` says what to do about it.
    #[schema(value_type = String)]
    pub(crate) code: Code,
    /// In words.
    pub(crate) detail: String,
    /// Line in the text that was sent, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u64>,
    /// Character in the line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) column: Option<u64>,
}

impl FieldError {
    /// What is wrong with the value at `pointer`.
    pub(crate) fn new(code: Code, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), code, detail: detail.into(), line: None, column: None }
    }
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = bounded_text(&detail.into(), ERROR_TEXT_BYTES_MAX);
        let later = matches!(code, Code::Unavailable | Code::IdempotencyKeyBusy);
        Self { code, detail, errors: Vec::new(), retry_after_s: later.then_some(RETRY_AFTER_S) }
    }

    /// The same answer for what does not exist, what another tenant has, and what no id could name.
    pub(crate) fn not_found() -> Self {
        Self::new(Code::NotFound, "there is nothing by this name or id")
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, detail)
    }

    /// A body of which the value at `pointer` is wrong.
    pub(crate) fn bad_field(pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let error = FieldError::new(Code::BadRequest, pointer, bounded_text(&detail, ERROR_TEXT_BYTES_MAX));
        Self::bad_request(detail).with_errors(vec![error])
    }

    pub(crate) fn forbidden(needed: Scope) -> Self {
        Self::new(Code::Forbidden, format!("this needs a key of scope `{needed}` or wider"))
    }

    pub(crate) fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.errors = errors;
        self
    }

    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// In words, with what is wrong with each field.
    pub(crate) fn told(&self) -> String {
        let fields = self.errors.iter().map(|error| format!("{} ({})", error.detail, error.pointer));
        std::iter::once(self.detail.clone()).chain(fields).collect::<Vec<_>>().join("; ")
    }

    pub(crate) const fn status(&self) -> StatusCode {
        status(self.code)
    }

    /// As it is sent with this status.
    pub(crate) fn body(&self, status: StatusCode, request_id: &str) -> ProblemBody {
        ProblemBody {
            advice: advice::path(self.code),
            title: advice::title(self.code).into(),
            status: status.as_u16(),
            code: self.code.name().into(),
            detail: self.detail.clone(),
            request_id: request_id.into(),
            errors: self.errors.clone(),
        }
    }
}

/// The problem travels beside an empty body until the outermost layer writes it out.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.code == Code::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::InvalidCursor) {
            return Self::bad_request("`after` is not a cursor that this list gave out");
        }
        let passing = error.is_transient();
        tracing::error!(
            error = &error as &dyn std::error::Error,
            passing,
            "a request failed at the database"
        );
        if passing {
            Self::new(Code::Unavailable, "the database cannot be reached now")
        } else {
            Self::new(Code::Internal, "something failed that should not; the host's log has the cause")
        }
    }
}

/// The status that goes with a code.
const fn status(code: Code) -> StatusCode {
    match code {
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Conflict
        | Code::ConnectionInUse
        | Code::AlreadyDecided
        | Code::RunEnded
        | Code::SignalLimit
        | Code::TaskNotOwned
        | Code::TaskOver
        | Code::IdempotencyKeyBusy
        | Code::NotUnknown
        | Code::TooEarly
        | Code::WorkflowNotActive
        | Code::SideEffectsChanged
        | Code::WorkflowPaused
        | Code::AlreadyRunning
        | Code::DuplicateTrigger => StatusCode::CONFLICT,
        Code::TooLarge | Code::InputTooLarge | Code::OutputTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unavailable | Code::SecretKeyMissing => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}
