//! Expressions: CEL that is bounded before it runs.
//!
//! An expression is customer's code that runs in the host, outside the sandbox. So its size, depth and shape are
//! checked when it is compiled, and its cost on the values at hand before each evaluation. What passes both ends
//! within milliseconds, allocates no more than a few times its cost, and always gives the same answer: no clock, no
//! random source, no map order.
//!
//! The language is standard CEL without optional values and message types. JSON integers within `i64` are `int`,
//! all other numbers `double`. The pattern of `matches` is a literal, so that it is compiled, and weighed, once.

mod analysis;
mod compiled;
mod cost;
mod environment;
mod error;
mod nesting;
mod object;
mod pointer;
mod quick;
mod scope;
mod template;
mod value;

use std::collections::BTreeMap;

use cel::common::value::Val;
use cel::{Context, IdedExpr};
use serde_json::Value;

pub use self::compiled::{Compile, Compiled};
use self::environment::Pattern;
pub use self::error::{EvaluationError, ExpressionError, Reason};
pub(crate) use self::pointer::Pointer;
pub use self::pointer::child;
use self::quick::Quick;
use self::scope::{Need, Path};
pub use self::scope::{Root, Scope};
pub(crate) use self::template::text;
pub use self::template::{RenderError, Template, TemplateError};

/// Text of one expression: longer logic belongs in a block, where it can be tested.
pub const EXPRESSION_BYTES_MAX: usize = 1_024;
/// Nesting, of brackets in the text and of nodes in the tree: parser and evaluator recurse on the host's own stack.
pub const EXPRESSION_DEPTH_MAX: usize = 32;
/// Work of one evaluation, in bytes touched: about what a core reads in five milliseconds.
pub const EVALUATION_COST_BYTES_MAX: u64 = 16 << 20;

/// Builds the tables of the parser and the evaluator, which the first expression would wait for: some milliseconds.
pub fn warm() {
    let warmed = Expression::compile("[event].all(x, true)").map(|warmed| warmed.evaluate(&Scope::default()));
    debug_assert!(matches!(warmed, Ok(Ok(_))), "it is a valid expression");
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Expression {
    source: String,
    tree: IdedExpr,
    /// Nodes of the tree as written, each regular expression counted by the size of its program.
    weight: u64,
    /// What it reads, by root variable: only that is converted, and only that is paid for.
    needs: BTreeMap<Root, Need>,
    /// The expression is no more than this path: its value is handed over as it is, whatever its numbers.
    path: Option<Path>,
    patterns: Vec<Pattern>,
    /// The same tree with what need not be left to the evaluator taken out, if there is any of it.
    quick: Option<Quick>,
}

impl Expression {
    /// Compiles an expression that may read every root variable.
    ///
    /// # Errors
    /// If it is too long or too deep, is not CEL, nests comprehensions, or names a function or variable that does not
    /// exist. The error says where.
    pub fn compile(source: &str) -> Result<Self, ExpressionError> {
        Self::compile_for(source, Root::ALL)
    }

    /// Compiles an expression that may read only `roots`.
    ///
    /// # Errors
    /// As [`Expression::compile`].
    pub fn compile_for(source: &str, roots: &[Root]) -> Result<Self, ExpressionError> {
        if source.len() > EXPRESSION_BYTES_MAX {
            let message =
                format!("an expression has at most {EXPRESSION_BYTES_MAX} bytes, this one {}", source.len());
            return Err(ExpressionError::new(message, 0));
        }
        nesting::check(source)?;
        let (mut tree, positions) = environment::parse(source)?;
        let analysis = analysis::analyse(&mut tree, &positions, roots)?;
        let path = Path::of(&tree).filter(|path| !path.presence);
        let quick = Quick::of(&tree);
        Ok(Self {
            source: source.to_owned(),
            tree,
            weight: analysis.weight,
            needs: analysis.needs,
            path,
            patterns: analysis.patterns,
            quick,
        })
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Names of the steps that it reads, or `None` if it may read any.
    pub fn steps_read(&self) -> Option<impl Iterator<Item = &str>> {
        match self.needs.get(&Root::Steps) {
            None => Some(None.into_iter().flatten()),
            Some(Need::Fields(names)) => Some(Some(names.keys().map(String::as_str)).into_iter().flatten()),
            Some(Need::Whole) => None,
        }
    }

    /// Whether it reads this variable.
    pub fn reads(&self, root: Root) -> bool {
        self.needs.contains_key(&root)
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// If it would cost more than [`EVALUATION_COST_BYTES_MAX`], fails (a missing field, a division by zero, an
    /// overflow, a type that does not fit), or comes to something that is not JSON.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, EvaluationError> {
        let result = match &self.path {
            Some(path) => scope.get(path),
            None => self.run(scope),
        };
        result.map_err(|reason| EvaluationError { expression: self.source.clone(), reason })
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    /// As [`Expression::evaluate`], and if the value is not a boolean.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, EvaluationError> {
        match self.evaluate(scope)? {
            Value::Bool(holds) => Ok(holds),
            other => {
                let message =
                    format!("a condition is true or false, this one is {}", value::kind_name(&other));
                Err(EvaluationError { expression: self.source.clone(), reason: Reason::WrongType(message) })
            }
        }
    }

    fn run(&self, scope: &Scope<'_>) -> Result<Value, Reason> {
        let cost = cost::of(&self.tree, self.weight, &self.needs, scope);
        if cost > EVALUATION_COST_BYTES_MAX {
            return Err(Reason::TooCostly { cost_bytes: cost });
        }
        let quick = self.quick.as_ref().and_then(|quick| Some((quick, quick.values(scope)?)));
        match quick {
            Some((quick, values)) => self.resolve(&quick.tree, &quick.needs, values, scope),
            None => self.resolve(&self.tree, &self.needs, vec![], scope),
        }
    }

    /// Lets the evaluator come to the value of `tree`, which reads `needs`, and beside these the `values` that have names.
    fn resolve<'a>(
        &'a self,
        tree: &'a IdedExpr,
        needs: &'a BTreeMap<Root, Need>,
        values: Vec<(String, Box<dyn Val + 'a>)>,
        scope: &'a Scope<'_>,
    ) -> Result<Value, Reason> {
        let mut context = Context::with_env(environment::standard());
        for (root, need) in needs {
            context.add_variable_as_val(root.name(), value::to_cel(scope.root(*root), need));
        }
        for (name, value) in values {
            context.add_variable_as_val(name, value);
        }
        environment::add_patterns(&mut context, &self.patterns);
        environment::contained(|| {
            let result = cel::Value::resolve_val(tree, &context);
            match result {
                Ok(result) => value::from_cel(result.as_ref()),
                Err(error) => Err(error::reason(&error, &self.needs, scope)),
            }
        })
        .unwrap_or_else(|| Err(Reason::Failed("the evaluator gave up".to_owned())))
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

#[cfg(test)]
mod tests;
