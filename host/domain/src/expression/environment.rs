//! The language: what the parser takes, which functions there are, and how the third-party evaluator is contained.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::SourceInfo;
use cel::common::types::{self, CelBool, CelInt, CelList, CelMap, CelString};
use cel::common::value::{CowVal, Val};
use cel::parser::Parser;
use cel::{Context, Env, ExecutionError, FunctionContext, IdedExpr, ParseError};
use regex::{Regex, RegexBuilder};

use super::{EXPRESSION_DEPTH_MAX, ExpressionError};

/// The functions that an expression may call.
pub(super) const FUNCTIONS: &[&str] = &[
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "int",
    "matches",
    "size",
    "startsWith",
    "string",
    "type",
    "uint",
];

/// The names of types, as in `type(event.data.id) == string`.
pub(super) const TYPES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// Stands around the range of every comprehension: gives the keys of a map in their order. No text can name it.
pub(super) const ORDERED: &str = "@ordered";
/// Stands for `matches`: its second argument is the position of the compiled pattern. No text can name it.
pub(super) const MATCHES: &str = "@matches";

/// A compiled pattern may have that size: some Unicode classes, not a dictionary.
const PATTERN_BYTES_LOG2_MAX: u32 = 18;
/// Memory for the states that a search meets, kept per pattern and thread.
const PATTERN_CACHE_BYTES_MAX: usize = 256 << 10;
/// A state of the compiled pattern takes about that much, and at worst each state is looked at for each byte.
const PATTERN_BYTES_PER_NODE: u64 = 16;

/// A compiled regular expression. They are the linear-time kind: no backreferences, no look-around.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    regex: Arc<Regex>,
    /// What it counts for among the nodes of the tree.
    pub(super) weight: u64,
}

impl Pattern {
    pub(super) fn compile(pattern: &str) -> Result<Self, String> {
        for log2 in 10..=PATTERN_BYTES_LOG2_MAX {
            let built = RegexBuilder::new(pattern)
                .size_limit(1 << log2)
                .dfa_size_limit(PATTERN_CACHE_BYTES_MAX)
                .nest_limit(32)
                .build();
            match built {
                Ok(regex) => {
                    return Ok(Self { regex: Arc::new(regex), weight: (1 << log2) / PATTERN_BYTES_PER_NODE });
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    return Err(format!("this pattern is not a regular expression: {}", last_line(&error)));
                }
            }
        }
        Err("this pattern is too large once compiled".to_owned())
    }
}

/// The regex crate draws a picture first; its last line says what is wrong.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The standard functions, without optional values.
pub(super) fn standard() -> Arc<Env> {
    static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| {
        let mut env = Env::default().with_optional_support(false).with_stdlib();
        for (id, argument) in [("ordered_list", types::LIST_TYPE), ("ordered_map", types::MAP_TYPE)] {
            env.add_overload(ORDERED, id, vec![argument], ordered).expect("each overload is declared once");
        }
        Arc::new(env)
    });
    Arc::clone(&STANDARD)
}

/// A map's keys, which the evaluator would visit in an order that differs from run to run, sorted.
fn ordered<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let range = arguments.pop().ok_or(ExecutionError::MissingArgumentOrTarget)?;
    let Some(map) = range.downcast_ref::<CelMap>() else { return Ok(range) };
    let mut keys: Vec<_> = map.keys().collect();
    keys.sort_unstable();
    let keys: Vec<Box<dyn Val + 'v>> = keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect();
    Ok(CowVal::owned(CelList::from(keys)))
}

/// Makes the patterns of one expression known to its evaluation.
pub(super) fn add_patterns(context: &mut Context<'_, '_>, patterns: &[Pattern]) {
    if patterns.is_empty() {
        return;
    }
    let patterns = patterns.to_vec();
    let matches: MatchFunction = Box::new(move |call| {
        let [text, position] = call.args.as_slice() else {
            return Err(ExecutionError::invalid_argument_count(2, call.args.len()));
        };
        let position =
            position.downcast_ref::<CelInt>().and_then(|position| usize::try_from(*position.inner()).ok());
        let pattern = position.and_then(|position| patterns.get(position));
        let pattern = pattern.ok_or_else(|| call.error("no such pattern"))?;
        let Some(text) = text.downcast_ref::<CelString>() else {
            let types = vec![text.get_type().name().to_owned(), "string".to_owned()];
            return Err(ExecutionError::no_such_member_overload("matches", types));
        };
        Ok(CowVal::owned(CelBool::from(pattern.regex.is_match(text.inner()))))
    });
    context.add_function(MATCHES, matches).expect("no overload has this name");
}

type MatchFunction = Box<
    dyn for<'context, 'call> Fn(
            &mut FunctionContext<'context, 'call>,
        ) -> Result<CowVal<'context, 'call>, ExecutionError>
        + Send
        + Sync,
>;

pub(super) fn parse(source: &str) -> Result<(IdedExpr, SourceInfo), ExpressionError> {
    let depth_max = u16::try_from(EXPRESSION_DEPTH_MAX).unwrap_or(u16::MAX);
    let parser = Parser::new().max_recursion_depth(depth_max);
    let parsed = contained(|| parser.parse_with_source_info(source));
    let parsed = parsed.ok_or_else(|| ExpressionError::new("the parser gave up", 0))?;
    parsed.map_err(|errors| {
        // The errors after the first are mostly the parser finding its way back.
        let first = errors.errors.first();
        ExpressionError::new(
            first.map_or_else(String::new, syntax_message),
            first.map_or(0, |e| offset(e, source)),
        )
    })
}

fn syntax_message(error: &ParseError) -> String {
    let message = error.msg.trim_start_matches("Syntax error: ");
    if message.contains("Recursion limit") {
        return format!("an expression nests at most {EXPRESSION_DEPTH_MAX} deep");
    }
    // What follows is the list of every token that might have stood here, which explains nothing.
    let message = message.split(" expecting ").next().unwrap_or(message);
    if message.starts_with("missing") {
        return message.replace("'<EOF>'", "the end").replace('\'', "`");
    }
    let quoted =
        message.split_once('\'').and_then(|(_, rest)| rest.rsplit_once('\'')).map(|(quoted, _)| quoted);
    match quoted.map(str::trim) {
        Some("<EOF>") if message.starts_with("mismatched") => "the expression ends too early".to_owned(),
        Some("=") => "`=` is not an operator; equality is `==`".to_owned(),
        Some(token) => format!("`{token}` does not belong here"),
        None => message.to_owned(),
    }
}

/// The parser counts lines from 1, and characters in the line from 1.
fn offset(error: &ParseError, source: &str) -> usize {
    let line = usize::try_from(error.pos.0).unwrap_or(1).max(1) - 1;
    let column = usize::try_from(error.pos.1).unwrap_or(1).max(1) - 1;
    let line_start: usize = source.split_inclusive('\n').take(line).map(str::len).sum();
    let rest = &source[line_start..];
    line_start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
}

/// Runs third-party code on customer's input: a panic in it is an error here, and the host goes on.
pub(super) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
