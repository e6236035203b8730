//! What can be wrong with an expression, when it is saved and when it runs.

use std::collections::BTreeMap;

use cel::ExecutionError;
use cel::objects::ValueType;

use super::environment::ORDERED;
use super::scope::{Need, Root, Scope};
use super::{EVALUATION_COST_BYTES_MAX, EXPRESSION_BYTES_MAX};
use crate::code::Code;
use crate::limits::bounded_text;

/// Why an expression cannot be saved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// In words.
    pub message: String,
    /// Where in the text, in bytes.
    pub offset: usize,
}

impl ExpressionError {
    pub(super) fn new(message: impl Into<String>, offset: usize) -> Self {
        Self { message: message.into(), offset }
    }

    /// The line of `source` that the error is in, and below it a caret under the place.
    pub fn pointed(&self, source: &str) -> String {
        let before = source.get(..self.offset).unwrap_or(source);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = source[line_start..].lines().next().unwrap_or_default();
        let column = before[line_start..].chars().count();
        format!("{line}\n{:column$}^", "")
    }
}

/// Why an evaluation gave no value. It depends on nothing but the expression and its scope: trying again is no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} in `{expression}`")]
pub struct EvaluationError {
    /// The text of the expression.
    pub expression: String,
    /// What went wrong in it.
    pub reason: Reason,
}

impl EvaluationError {
    /// The code under which a person meets it.
    pub fn code(&self) -> Code {
        match self.reason {
            Reason::TooCostly { .. } => Code::ExpressionTooCostly,
            _ => Code::ExpressionFailed,
        }
    }
}

/// What went wrong in an evaluation. None of these repeats a value: values may be large, or private.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It would touch too much, and was not begun.
    #[error("a cost of {cost_bytes} bytes, more than the {EVALUATION_COST_BYTES_MAX} allowed,")]
    TooCostly {
        /// Bytes that it might touch.
        cost_bytes: u64,
    },
    /// A field that is not there.
    #[error("no field `{path}`")]
    MissingField {
        /// From the root variable down to the first field that is not there; only its last part where it was computed.
        path: String,
    },
    /// A list has no such position.
    #[error("an index out of bounds")]
    OutOfBounds,
    /// Division, or remainder, by zero.
    #[error("a division by zero")]
    DivisionByZero,
    /// An integer left the range of 64 bits.
    #[error("an integer overflow")]
    Overflow,
    /// An operator, function or condition met a type that it does not take.
    #[error("a type that does not fit ({0})")]
    WrongType(String),
    /// The result has no JSON form.
    #[error("a result that is not JSON ({0})")]
    NotJson(String),
    /// Anything else.
    #[error("a failure ({0})")]
    Failed(String),
}

/// Says in our words what the evaluator reports.
pub(super) fn reason(error: &ExecutionError, needs: &BTreeMap<Root, Need>, scope: &Scope<'_>) -> Reason {
    match error {
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => Reason::DivisionByZero,
        ExecutionError::Overflow(..) => Reason::Overflow,
        ExecutionError::IndexOutOfBounds(_) => Reason::OutOfBounds,
        ExecutionError::NoSuchKey(field) => {
            let path = scope.missing(needs, Some(field));
            Reason::MissingField { path: path.unwrap_or_else(|| bounded_text(field, EXPRESSION_BYTES_MAX)) }
        }
        // Selecting a field of what has none.
        ExecutionError::NoSuchOverload(overload) if matches!(overload.function(), "_._" | "_[_]") => {
            match scope.missing(needs, None) {
                Some(path) => Reason::MissingField { path },
                None => Reason::WrongType(format!("fields of {}", overload.argument_types().join(" at "))),
            }
        }
        ExecutionError::NoSuchOverload(overload) => {
            let types = overload.argument_types().join(" and ");
            Reason::WrongType(match overload.function() {
                ORDERED => format!("a comprehension over {types}"),
                function => format!("`{}` of {types}", operator(function)),
            })
        }
        ExecutionError::UnsupportedBinaryOperator(operation, left, right) => {
            let operation = match *operation {
                "add" => "+",
                "sub" => "-",
                "mul" => "*",
                "div" => "/",
                "rem" => "%",
                other => other,
            };
            Reason::WrongType(format!("`{operation}` of {} and {}", type_name(left), type_name(right)))
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            Reason::WrongType(format!("an order of {} and {}", type_name(left), type_name(right)))
        }
        ExecutionError::UnexpectedType { got, want } => {
            Reason::WrongType(format!("{got} where {want} is wanted"))
        }
        ExecutionError::UnsupportedKeyType(key) => Reason::WrongType(format!("{} as a key", type_name(key))),
        ExecutionError::DuplicateKey(_) => Reason::Failed("a key twice in one map".to_owned()),
        ExecutionError::FunctionError { function, .. } => {
            Reason::Failed(format!("`{function}` cannot convert it"))
        }
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            Reason::WrongType(format!("{actual} arguments where {expected} are wanted"))
        }
        _ => Reason::Failed("the evaluator refused it".to_owned()),
    }
}

fn type_name(value: &cel::Value) -> String {
    match value.type_of() {
        ValueType::Float => "double".to_owned(),
        other => other.to_string(),
    }
}

/// `_>=_` and the like, as they are written.
fn operator(function: &str) -> &str {
    match function {
        "@in" => "in",
        "_?_:_" => "?:",
        "_[_]" => "[]",
        other => other.trim_matches('_'),
    }
}
