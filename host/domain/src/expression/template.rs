//! JSON with expressions in it.

use serde_json::{Map, Value};

use super::pointer::Pointer;
use super::value::kind_name;
use super::{Compile, EvaluationError, Expression, ExpressionError, Scope};
use crate::code::Code;
use crate::limits::PAYLOAD_BYTES_MAX;

/// A JSON value in which a string that begins with `=` is an expression, whose value takes its place and keeps its
/// type. A string that begins with `==` is a literal, with one `=` taken off. Names of fields are literal.
#[derive(Debug, Clone)]
pub struct Template {
    part: Part,
}

#[derive(Debug, Clone)]
enum Part {
    Literal(Value),
    Expression(Box<Expression>),
    List(Vec<Part>),
    Map(Vec<(String, Part)>),
}

/// An expression in a template that does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct TemplateError {
    /// JSON Pointer to the string, from the template's root.
    pub pointer: String,
    /// What is wrong. Its offset counts from behind the `=`.
    #[source]
    pub error: ExpressionError,
}

/// Why a template could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// One of its expressions failed.
    #[error("{error}, at `{pointer}`")]
    Evaluation {
        /// JSON Pointer to the expression, from the template's root.
        pointer: String,
        /// Why.
        error: EvaluationError,
    },
    /// The result is larger than a payload may be.
    #[error("more than {PAYLOAD_BYTES_MAX} bytes")]
    TooLarge,
    /// A place that takes a text came to something else.
    #[error("{found} where a text is wanted, at `{place}`")]
    NotText {
        /// Which place.
        place: String,
        /// What it came to.
        found: String,
    },
    /// The stored template does not compile on this host.
    #[error("a stored expression that this host refuses: {0}")]
    Refused(TemplateError),
    /// There is no such node, or it is of another kind.
    #[error("the plan has no such node `{node}`")]
    NotInPlan {
        /// Its path.
        node: String,
    },
}

impl RenderError {
    /// The code under which a person meets it.
    pub fn code(&self) -> Code {
        match self {
            Self::Evaluation { error, .. } => error.code(),
            Self::TooLarge => Code::InputTooLarge,
            Self::NotText { .. } | Self::Refused(_) => Code::ExpressionFailed,
            Self::NotInPlan { .. } => Code::Internal,
        }
    }
}

impl Template {
    /// Compiles every expression in `source`.
    ///
    /// # Errors
    /// Every expression that does not compile, with its place.
    pub fn compile_all(source: &Value) -> Result<Self, Vec<TemplateError>> {
        let mut errors = Vec::new();
        let part = compile(source, &Pointer::At(""), &mut errors);
        if errors.is_empty() { Ok(Self { part }) } else { Err(errors) }
    }

    /// What stands where nothing could be compiled.
    pub(crate) fn null() -> Self {
        Self { part: Part::Literal(Value::Null) }
    }

    /// Fills it in.
    ///
    /// # Errors
    /// If an expression fails, or the result grows beyond [`PAYLOAD_BYTES_MAX`].
    pub fn render(&self, scope: &Scope<'_>) -> Result<Value, RenderError> {
        let mut rendering = Rendering { scope, room_bytes: PAYLOAD_BYTES_MAX };
        rendering.part(&self.part, &Pointer::At(""))
    }

    /// Calls `visit` with each of its expressions and its place.
    pub(crate) fn each_expression(
        &self,
        pointer: &Pointer<'_>,
        visit: &mut dyn FnMut(&Pointer<'_>, &Expression),
    ) {
        each_expression(&self.part, pointer, visit);
    }
}

impl Compile for Template {
    type Source = Value;
    type Error = TemplateError;

    fn compile(source: &Value) -> Result<Self, TemplateError> {
        Self::compile_all(source).map_err(|mut errors| errors.swap_remove(0))
    }
}

fn compile(source: &Value, pointer: &Pointer<'_>, errors: &mut Vec<TemplateError>) -> Part {
    match source {
        Value::String(text) => match text.strip_prefix('=') {
            None => Part::Literal(source.clone()),
            Some(literal) if literal.starts_with('=') => Part::Literal(Value::from(literal)),
            Some(expression) => match Expression::compile(expression) {
                Ok(expression) => Part::Expression(Box::new(expression)),
                Err(error) => {
                    errors.push(TemplateError { pointer: pointer.to_string(), error });
                    Part::Literal(Value::Null)
                }
            },
        },
        Value::Array(elements) => {
            let compile = |(index, element)| compile(element, &Pointer::Index(pointer, index), errors);
            Part::List(elements.iter().enumerate().map(compile).collect())
        }
        Value::Object(fields) => {
            let compile = |(name, value): (&String, &Value)| {
                (name.clone(), compile(value, &Pointer::Field(pointer, name), errors))
            };
            Part::Map(fields.iter().map(compile).collect())
        }
        other => Part::Literal(other.clone()),
    }
}

fn each_expression(part: &Part, pointer: &Pointer<'_>, visit: &mut dyn FnMut(&Pointer<'_>, &Expression)) {
    match part {
        Part::Literal(_) => {}
        Part::Expression(expression) => visit(pointer, expression),
        Part::List(parts) => {
            for (index, part) in parts.iter().enumerate() {
                each_expression(part, &Pointer::Index(pointer, index), visit);
            }
        }
        Part::Map(parts) => {
            for (name, part) in parts {
                each_expression(part, &Pointer::Field(pointer, name), visit);
            }
        }
    }
}

struct Rendering<'a> {
    scope: &'a Scope<'a>,
    /// What the result may still grow by.
    room_bytes: u64,
}

impl Rendering<'_> {
    fn part(&mut self, part: &Part, pointer: &Pointer<'_>) -> Result<Value, RenderError> {
        match part {
            Part::Literal(value) => self.fitting(value.clone()),
            Part::Expression(expression) => match expression.evaluate(self.scope) {
                Ok(value) => self.fitting(value),
                Err(error) => Err(RenderError::Evaluation { pointer: pointer.to_string(), error }),
            },
            Part::List(parts) => {
                let render = |(index, part)| self.part(part, &Pointer::Index(pointer, index));
                parts.iter().enumerate().map(render).collect()
            }
            Part::Map(parts) => {
                let mut fields = Map::new();
                for (name, part) in parts {
                    fields.insert(name.clone(), self.part(part, &Pointer::Field(pointer, name))?);
                }
                Ok(Value::Object(fields))
            }
        }
    }

    fn fitting(&mut self, value: Value) -> Result<Value, RenderError> {
        let bytes = value.to_string().len() as u64;
        self.room_bytes = self.room_bytes.checked_sub(bytes).ok_or(RenderError::TooLarge)?;
        Ok(value)
    }
}

/// The text that a template came to, where only a text makes sense; numbers and booleans are written out.
pub(crate) fn text(value: Value, place: &str) -> Result<String, RenderError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        other => Err(RenderError::NotText { place: place.to_owned(), found: kind_name(&other).to_owned() }),
    }
}
