//! Walks the tree once: refuses what may not be in it, and notes what evaluating it will need.

use std::collections::BTreeMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SourceInfo};

use super::environment::{FUNCTIONS, MATCHES, ORDERED, Pattern, TYPES};
use super::scope::{Need, Path, Root};
use super::{EXPRESSION_DEPTH_MAX, ExpressionError};

pub(super) struct Analysis {
    pub(super) weight: u64,
    pub(super) needs: BTreeMap<Root, Need>,
    pub(super) patterns: Vec<Pattern>,
}

/// Checks `tree`, and changes it where the evaluator's own way is not good enough: comprehensions go over maps in key
/// order, and patterns are compiled here, not on every call.
pub(super) fn analyse(
    tree: &mut IdedExpr,
    positions: &SourceInfo,
    roots: &[Root],
) -> Result<Analysis, ExpressionError> {
    let analysis = Analysis { weight: 0, needs: BTreeMap::new(), patterns: vec![] };
    let mut walk = Walk { positions, roots, variable: None, analysis };
    walk.visit(tree, 1)?;
    Ok(walk.analysis)
}

struct Walk<'a> {
    positions: &'a SourceInfo,
    roots: &'a [Root],
    /// The variable of the comprehension around this place.
    variable: Option<String>,
    analysis: Analysis,
}

impl Walk<'_> {
    fn visit(&mut self, expr: &mut IdedExpr, depth: usize) -> Result<(), ExpressionError> {
        if depth > EXPRESSION_DEPTH_MAX {
            return Err(
                self.error(expr.id, format!("an expression nests at most {EXPRESSION_DEPTH_MAX} deep"))
            );
        }
        let id = expr.id;
        if let Some(path) = self.path(expr) {
            return self.note(id, &path, depth);
        }
        self.analysis.weight += 1;
        match &mut expr.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.check_variable(id, name),
            Expr::Select(select) => self.visit(&mut select.operand, depth + 1),
            Expr::Call(call) => self.visit_call(id, call, depth),
            Expr::List(list) => {
                list.elements.iter_mut().try_for_each(|element| self.visit(element, depth + 1))
            }
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.visit(&mut entry.key, depth + 1)?;
                    self.visit(&mut entry.value, depth + 1)
                }
                EntryExpr::StructField(_) => Err(self.error(id, "a map has keys and values")),
            }),
            Expr::Comprehension(comprehension) => self.visit_comprehension(id, comprehension, depth),
            Expr::Struct(message) => {
                Err(self.error(id, format!("there is no message type `{}`", message.type_name)))
            }
            Expr::Unspecified => Err(self.error(id, "there is nothing here")),
        }
    }

    /// The longest chain of fields below a root variable that begins here: the shorter ones in it need nothing more.
    fn path(&self, expr: &IdedExpr) -> Option<Path> {
        let is_visible = |path: &Path| {
            self.roots.contains(&path.root) && self.variable.as_deref() != Some(path.root.name())
        };
        Path::of(expr).filter(is_visible)
    }

    fn note(&mut self, id: u64, path: &Path, depth: usize) -> Result<(), ExpressionError> {
        if depth + path.fields.len() > EXPRESSION_DEPTH_MAX {
            return Err(self.error(id, format!("an expression nests at most {EXPRESSION_DEPTH_MAX} deep")));
        }
        self.analysis.weight += 1 + path.fields.len() as u64;
        self.analysis.needs.entry(path.root).or_insert(Need::KIND).add(&path.fields, path.presence);
        Ok(())
    }

    fn check_variable(&self, id: u64, name: &str) -> Result<(), ExpressionError> {
        let of_comprehension = self.variable.as_deref() == Some(name) || name.starts_with('@');
        match Root::from_name(name) {
            _ if of_comprehension => Ok(()),
            Some(root) if self.roots.contains(&root) => Ok(()),
            Some(_) => {
                Err(self.error(id, format!("`{name}` does not exist here, only {}", names(self.roots))))
            }
            None if TYPES.contains(&name) => Ok(()),
            None => {
                let mut message = format!("there is no variable `{name}`, only {}", names(self.roots));
                if self.positions.source.contains(&format!("-{name}"))
                    && self.positions.source.contains("steps.")
                {
                    message.push_str("; a step whose name has a hyphen is written steps[\"its-name\"]");
                }
                Err(self.error(id, message))
            }
        }
    }

    fn visit_call(&mut self, id: u64, call: &mut CallExpr, depth: usize) -> Result<(), ExpressionError> {
        let is_operator = !call.func_name.starts_with(|first: char| first.is_ascii_alphabetic())
            && call.func_name.contains(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
        if !is_operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
            // The parser places a call at its bracket.
            let mut error = self.error(id, unknown_function(&call.func_name));
            error.offset = error.offset.saturating_sub(call.func_name.len());
            return Err(error);
        }
        if let Some(target) = &mut call.target {
            self.visit(target, depth + 1)?;
        }
        call.args.iter_mut().try_for_each(|argument| self.visit(argument, depth + 1))?;
        if call.func_name == "matches" {
            self.compile_pattern(id, call)?;
        }
        Ok(())
    }

    /// Turns `text.matches(pattern)` and `matches(text, pattern)` into a call with the pattern's position.
    fn compile_pattern(&mut self, id: u64, call: &mut CallExpr) -> Result<(), ExpressionError> {
        call.args.splice(0..0, call.target.take().map(|target| *target));
        let [_, pattern] = call.args.as_mut_slice() else {
            return Err(self.error(id, "`matches` takes a text and a pattern"));
        };
        let Expr::Literal(LiteralValue::String(literal)) = &pattern.expr else {
            return Err(self.error(pattern.id, "the pattern of `matches` is a literal string"));
        };
        let compiled =
            Pattern::compile(literal.inner()).map_err(|message| self.error(pattern.id, message))?;
        let position = i64::try_from(self.analysis.patterns.len()).unwrap_or(i64::MAX);
        self.analysis.weight += compiled.weight;
        self.analysis.patterns.push(compiled);
        pattern.expr = Expr::Literal(LiteralValue::Int(position.into()));
        MATCHES.clone_into(&mut call.func_name);
        Ok(())
    }

    fn visit_comprehension(
        &mut self,
        id: u64,
        comprehension: &mut ComprehensionExpr,
        depth: usize,
    ) -> Result<(), ExpressionError> {
        if self.variable.is_some() {
            return Err(self.error(id, "a comprehension does not stand inside another one's body"));
        }
        self.visit(&mut comprehension.iter_range, depth + 1)?;
        self.variable = Some(comprehension.iter_var.clone());
        self.visit(&mut comprehension.accu_init, depth + 1)?;
        self.visit(&mut comprehension.loop_cond, depth + 1)?;
        self.visit(&mut comprehension.loop_step, depth + 1)?;
        self.visit(&mut comprehension.result, depth + 1)?;
        self.variable = None;

        let range = std::mem::take(&mut comprehension.iter_range);
        comprehension.iter_range = IdedExpr {
            id: range.id,
            expr: Expr::Call(CallExpr { func_name: ORDERED.to_owned(), target: None, args: vec![range] }),
        };
        Ok(())
    }

    fn error(&self, id: u64, message: impl Into<String>) -> ExpressionError {
        let offset = self.positions.offset_for(id).map_or(0, |(start, _)| start);
        ExpressionError::new(message, usize::try_from(offset).unwrap_or(0))
    }
}

fn names(roots: &[Root]) -> String {
    let names: Vec<_> = roots.iter().map(|root| format!("`{}`", root.name())).collect();
    names.join(", ")
}

fn unknown_function(name: &str) -> String {
    match name {
        "map" | "filter" | "all" | "exists" | "exists_one" | "has" => {
            format!("`{name}` does not take these arguments")
        }
        _ => format!("there is no function `{name}`"),
    }
}
