//! What an expression can see, and which part of it one expression needs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, operators};
use serde_json::Value;

use super::error::Reason;

/// A variable that exists outside the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Root {
    /// The event that started the run, or that a trigger is asked about.
    Event,
    /// The input that the run was started with.
    Input,
    /// Steps that succeeded, by name: `steps.enrich.output`, or `steps["enrich-lead"].output`.
    Steps,
    /// What the run may know of itself.
    Run,
    /// The item of the innermost `map` around the step.
    Item,
    /// Its position in the list, from 0.
    Index,
    /// What came to a run, which a `listen` is asked about.
    Signal,
}

impl Root {
    /// All of them.
    pub const ALL: &'static [Self] =
        &[Self::Event, Self::Input, Self::Steps, Self::Run, Self::Item, Self::Index, Self::Signal];

    /// Its name in an expression.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Input => "input",
            Self::Steps => "steps",
            Self::Run => "run",
            Self::Item => "item",
            Self::Index => "index",
            Self::Signal => "signal",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|root| root.name() == name)
    }
}

/// The values of the root variables. What is not given is null.
///
/// A step is seen by the last part of its path, since step names are unique in a workflow: `decide/call` is
/// `steps.call`. Steps that were skipped, or have not ended, are not there: `has(steps.call)` asks.
#[derive(Debug, Clone)]
pub struct Scope<'a> {
    event: &'a Value,
    input: &'a Value,
    run: &'a Value,
    item: Cow<'a, Value>,
    index: Value,
    signal: Value,
    /// Outputs by step name.
    steps: Outputs<'a>,
}

type Outputs<'a> = BTreeMap<&'a str, Cow<'a, Value>>;

impl Default for Scope<'_> {
    fn default() -> Self {
        Self::new(&Value::Null, &Value::Null, &Value::Null)
    }
}

impl<'a> Scope<'a> {
    /// A scope in which no step has ended. Of `run` only what is the same in every re-run and replay may be told.
    pub fn new(event: &'a Value, input: &'a Value, run: &'a Value) -> Self {
        Self {
            event,
            input,
            run,
            item: Cow::Borrowed(&Value::Null),
            index: Value::Null,
            signal: Value::Null,
            steps: Outputs::new(),
        }
    }

    /// What a trigger sees.
    pub fn of_event(event: &'a Value) -> Self {
        Self { event, ..Self::default() }
    }

    /// Adds the output of a step that succeeded, by its name or its path.
    pub fn add_step(&mut self, node: &'a str, output: &'a Value) {
        self.steps.insert(name(node), Cow::Borrowed(output));
    }

    /// As [`Scope::add_step`], for an output that was computed on the way.
    pub(crate) fn add_computed(&mut self, node: &'a str, output: Value) {
        self.steps.insert(name(node), Cow::Owned(output));
    }

    /// Adds the steps that `other` has.
    pub(crate) fn merge(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    /// Sets the item that a `map` has come to.
    pub fn set_item(&mut self, index: u32, item: Value) {
        (self.index, self.item) = (Value::from(index), Cow::Owned(item));
    }

    /// Sets what a `listen` is asked about.
    pub(crate) fn set_signal(&mut self, signal: Value) {
        self.signal = signal;
    }

    pub(super) fn root(&self, root: Root) -> Node<'_> {
        match root {
            Root::Event => Node::Json(self.event),
            Root::Input => Node::Json(self.input),
            Root::Run => Node::Json(self.run),
            Root::Item => Node::Json(&self.item),
            Root::Index => Node::Json(&self.index),
            Root::Signal => Node::Json(&self.signal),
            Root::Steps => Node::Steps(&self.steps),
        }
    }

    /// The value at `path`.
    pub(super) fn get(&self, path: &Path) -> Result<Value, Reason> {
        let mut node = self.root(path.root);
        for (depth, field) in path.fields.iter().enumerate() {
            node = node.field(field).ok_or_else(|| Reason::MissingField { path: path.shown(depth + 1) })?;
        }
        Ok(node.to_json())
    }

    /// What is at `path`, if anything is.
    pub(super) fn find(&self, path: &Path) -> Option<Node<'_>> {
        path.fields.iter().try_fold(self.root(path.root), |node, field| node.field(field))
    }

    /// The first path in `needs` that is not there, down to its first missing field, which is `field` if given.
    pub(super) fn missing(&self, needs: &BTreeMap<Root, Need>, field: Option<&str>) -> Option<String> {
        needs.iter().find_map(|(root, need)| {
            let missing = missing_field(self.root(*root), need, field)?;
            Some(Path { root: *root, fields: missing, presence: false }.shown(usize::MAX))
        })
    }
}

/// The name of the step whose path is `node`.
fn name(node: &str) -> &str {
    node.rsplit('/').next().unwrap_or(node)
}

fn missing_field(node: Node<'_>, need: &Need, wanted: Option<&str>) -> Option<Vec<String>> {
    let Need::Fields(fields) = need else { return None };
    fields.iter().find_map(|(name, need)| match node.field(name) {
        Some(child) => {
            let mut rest = missing_field(child, need, wanted)?;
            rest.insert(0, name.clone());
            Some(rest)
        }
        // What is only asked for by `has` may be missing.
        None => {
            (*need != Need::KIND && wanted.is_none_or(|wanted| wanted == name)).then(|| vec![name.clone()])
        }
    })
}

/// A place in the scope.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node<'a> {
    Json(&'a Value),
    /// The variable `steps`.
    Steps(&'a Outputs<'a>),
    /// One step: its only field is `output`.
    Step(&'a Value),
}

impl<'a> Node<'a> {
    pub(super) fn field(self, name: &str) -> Option<Node<'a>> {
        match self {
            Node::Json(value) => value.as_object()?.get(name).map(Node::Json),
            Node::Steps(steps) => steps.get(name).map(|output| Node::Step(output)),
            Node::Step(output) => (name == "output").then_some(Node::Json(output)),
        }
    }

    /// Names and values of its fields, if it has fields.
    pub(super) fn fields(self) -> Option<Box<dyn Iterator<Item = (&'a str, Node<'a>)> + 'a>> {
        match self {
            Node::Json(value) => {
                let fields = value.as_object()?.iter();
                Some(Box::new(fields.map(|(name, value)| (name.as_str(), Node::Json(value)))))
            }
            Node::Steps(steps) => {
                Some(Box::new(steps.iter().map(|(name, output)| (*name, Node::Step(output)))))
            }
            Node::Step(output) => Some(Box::new(std::iter::once(("output", Node::Json(output))))),
        }
    }

    pub(super) fn to_json(self) -> Value {
        match (self, self.fields()) {
            (Node::Json(value), _) => value.clone(),
            (_, Some(fields)) => fields.map(|(name, node)| (name.to_owned(), node.to_json())).collect(),
            (_, None) => Value::Null,
        }
    }
}

/// A chain of constant fields below a root variable: `event.data.id`, `steps["enrich-lead"].output`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) root: Root,
    pub(super) fields: Vec<String>,
    /// `has(…)`: whether the last field is there, not what it is.
    pub(super) presence: bool,
}

impl Path {
    /// The path that `expr` is, if it is one. A variable of a comprehension that hides a root is the caller's to know.
    pub(super) fn of(expr: &IdedExpr) -> Option<Self> {
        match &expr.expr {
            Expr::Ident(name) => Some(Self { root: Root::from_name(name)?, fields: vec![], presence: false }),
            Expr::Select(select) => {
                let mut path = Self::of(&select.operand).filter(|path| !path.presence)?;
                path.fields.push(select.field.clone());
                path.presence = select.test;
                Some(path)
            }
            Expr::Call(call) if call.func_name == operators::INDEX && call.target.is_none() => {
                let [operand, index] = call.args.as_slice() else { return None };
                let Expr::Literal(LiteralValue::String(field)) = &index.expr else { return None };
                let mut path = Self::of(operand).filter(|path| !path.presence)?;
                path.fields.push(field.inner().to_owned());
                Some(path)
            }
            _ => None,
        }
    }

    /// As it is written, down to `depth` fields.
    pub(super) fn shown(&self, depth: usize) -> String {
        let mut shown = self.root.name().to_owned();
        for field in self.fields.iter().take(depth) {
            let plain = field.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && field.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
            if plain {
                shown.push('.');
                shown.push_str(field);
            } else {
                shown.push('[');
                shown.push_str(&Value::from(field.as_str()).to_string());
                shown.push(']');
            }
        }
        shown
    }
}

/// Which part of a value an expression reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Need {
    /// All of it.
    Whole,
    /// Only these fields; with none, only what kind of value it is.
    Fields(BTreeMap<String, Need>),
}

impl Need {
    pub(super) const KIND: Self = Self::Fields(BTreeMap::new());

    /// Widens the need to what `fields` lead to.
    pub(super) fn add(&mut self, fields: &[String], presence: bool) {
        let Self::Fields(known) = self else { return };
        match fields {
            [] if presence => {}
            [] => *self = Self::Whole,
            [first, rest @ ..] => known.entry(first.clone()).or_insert(Self::KIND).add(rest, presence),
        }
    }
}
