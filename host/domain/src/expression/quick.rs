//! Comprehensions that only compare fields, carried out on the JSON itself: in a tenth of the time that the evaluator takes.
//!
//! `filter`, `all` and `exists` over a list that is read from the scope, whose test is made of comparisons of the element's
//! fields with each other and with literals. The tree has such a comprehension twice: as it is, and with a name in its place
//! to which its value is bound. Whatever is not as plain as that when it comes to the values (a field that is missing, two
//! types that differ) is left to the evaluator and the tree as it is, so that the answer, and the error, are always its own.

use std::collections::BTreeMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use cel::common::types::{CelBool, CelList};
use cel::common::value::Val;
use serde_json::Value;

use super::environment::ORDERED;
use super::scope::{Need, Node, Path, Root, Scope};
use super::value::json_to_cel;

/// A tree in which names stand for such comprehensions.
#[derive(Debug, Clone)]
pub(super) struct Quick {
    pub(super) tree: IdedExpr,
    /// What the tree reads beside their values.
    pub(super) needs: BTreeMap<Root, Need>,
    loops: Vec<Loop>,
}

#[derive(Debug, Clone)]
struct Loop {
    list: Path,
    fold: Fold,
    test: Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Filter,
    All,
    Exists,
}

#[derive(Debug, Clone)]
enum Test {
    /// A field that is a boolean.
    Is(Operand),
    Compare(&'static str, Operand, Operand),
    Not(Box<Test>),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
}

#[derive(Debug, Clone)]
enum Operand {
    /// The element, or what these fields of it lead to.
    Element(Vec<String>),
    Int(i64),
    Double(f64),
    Text(String),
    Bool(bool),
}

/// What can be compared here.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Scalar<'a> {
    Int(i64),
    Double(f64),
    Text(&'a str),
    Bool(bool),
}

impl Quick {
    /// None if the tree has no such comprehension.
    pub(super) fn of(tree: &IdedExpr) -> Option<Self> {
        let mut quick = Self { tree: tree.clone(), needs: BTreeMap::new(), loops: vec![] };
        let mut tree = std::mem::take(&mut quick.tree);
        quick.replace(&mut tree, None);
        quick.tree = tree;
        (!quick.loops.is_empty()).then_some(quick)
    }

    /// Names and values of the comprehensions; none if the evaluator must look at one.
    pub(super) fn values<'a>(&self, scope: &'a Scope<'_>) -> Option<Vec<(String, Box<dyn Val + 'a>)>> {
        let values = self.loops.iter().enumerate();
        values.map(|(number, one)| Some((name(number), one.value(scope)?))).collect()
    }

    /// Puts names in, and notes what is read around them. `variable` is that of the comprehension around this place.
    fn replace(&mut self, expr: &mut IdedExpr, variable: Option<&str>) {
        if let Some(path) = Path::of(expr).filter(|path| variable != Some(path.root.name())) {
            self.needs.entry(path.root).or_insert(Need::KIND).add(&path.fields, path.presence);
            return;
        }
        match &mut expr.expr {
            Expr::Select(select) => self.replace(&mut select.operand, variable),
            Expr::Call(call) => {
                for part in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
                    self.replace(part, variable);
                }
            }
            Expr::List(list) => list.elements.iter_mut().for_each(|element| self.replace(element, variable)),
            Expr::Map(map) => {
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        self.replace(&mut entry.key, variable);
                        self.replace(&mut entry.value, variable);
                    }
                }
            }
            Expr::Comprehension(comprehension) => {
                if let Some(one) = Loop::of(comprehension) {
                    expr.expr = Expr::Ident(name(self.loops.len()));
                    self.loops.push(one);
                    return;
                }
                let ComprehensionExpr {
                    iter_range, iter_var, accu_init, loop_cond, loop_step, result, ..
                } = comprehension.as_mut();
                self.replace(iter_range, variable);
                for part in [accu_init, loop_cond, loop_step, result] {
                    self.replace(part, Some(iter_var));
                }
            }
            Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
        }
    }
}

/// No text can name it.
fn name(number: usize) -> String {
    format!("@quick{number}")
}

impl Loop {
    fn of(comprehension: &ComprehensionExpr) -> Option<Self> {
        let Expr::Call(CallExpr { func_name, args, .. }) = &comprehension.iter_range.expr else {
            return None;
        };
        let [list] = args.as_slice() else { return None };
        let list = (func_name == ORDERED).then(|| Path::of(list)).flatten().filter(|path| !path.presence)?;
        let is_result =
            |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == comprehension.accu_var);
        if !is_result(&comprehension.result) {
            return None;
        }
        let Expr::Call(step) = &comprehension.loop_step.expr else { return None };
        let (fold, test) = match (step.func_name.as_str(), step.args.as_slice()) {
            (operators::LOGICAL_AND, [result, test]) if is_result(result) => (Fold::All, test),
            (operators::LOGICAL_OR, [result, test]) if is_result(result) => (Fold::Exists, test),
            (operators::CONDITIONAL, [test, added, result])
                if is_result(result) && adds_element(added, &comprehension.iter_var) =>
            {
                (Fold::Filter, test)
            }
            _ => return None,
        };
        Some(Self { list, fold, test: Test::of(test, &comprehension.iter_var)? })
    }

    fn value<'a>(&self, scope: &'a Scope<'_>) -> Option<Box<dyn Val + 'a>> {
        let Node::Json(Value::Array(elements)) = scope.find(&self.list)? else { return None };
        if self.fold == Fold::Filter {
            let mut kept: Vec<Box<dyn Val + 'a>> = vec![];
            for element in elements {
                if self.test.holds(element)? {
                    kept.push(json_to_cel(element));
                }
            }
            return Some(Box::new(CelList::from(kept)));
        }
        let decides = self.fold == Fold::Exists;
        for element in elements {
            if self.test.holds(element)? == decides {
                return Some(Box::new(CelBool::from(decides)));
            }
        }
        Some(Box::new(CelBool::from(!decides)))
    }
}

/// Whether it is `@result + [element]`.
fn adds_element(expr: &IdedExpr, variable: &str) -> bool {
    let Expr::Call(CallExpr { func_name, args, .. }) = &expr.expr else { return false };
    let [_, list] = args.as_slice() else { return false };
    let Expr::List(list) = &list.expr else { return false };
    let [element] = list.elements.as_slice() else { return false };
    func_name == operators::ADD && matches!(&element.expr, Expr::Ident(name) if name == variable)
}

impl Test {
    fn of(expr: &IdedExpr, variable: &str) -> Option<Self> {
        let Expr::Call(call) = &expr.expr else {
            return Operand::of(expr, variable).map(Self::Is);
        };
        let test = |expr| Self::of(expr, variable).map(Box::new);
        let operand = |expr| Operand::of(expr, variable);
        Some(match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::LOGICAL_NOT, [one]) => Self::Not(test(one)?),
            (operators::LOGICAL_AND, [left, right]) => Self::And(test(left)?, test(right)?),
            (operators::LOGICAL_OR, [left, right]) => Self::Or(test(left)?, test(right)?),
            (function, [left, right]) => {
                Self::Compare(comparison(function)?, operand(left)?, operand(right)?)
            }
            _ => return None,
        })
    }

    /// None where the evaluator must say it.
    fn holds(&self, element: &Value) -> Option<bool> {
        Some(match self {
            Self::Is(operand) => match operand.scalar(element)? {
                Scalar::Bool(holds) => holds,
                _ => return None,
            },
            Self::Compare(comparison, left, right) => {
                let (left, right) = (left.scalar(element)?, right.scalar(element)?);
                if std::mem::discriminant(&left) != std::mem::discriminant(&right) {
                    return None;
                }
                match *comparison {
                    operators::EQUALS => left == right,
                    operators::NOT_EQUALS => left != right,
                    operators::LESS => left < right,
                    operators::LESS_EQUALS => left <= right,
                    operators::GREATER => left > right,
                    _ => left >= right,
                }
            }
            Self::Not(test) => !test.holds(element)?,
            Self::And(left, right) => left.holds(element)? && right.holds(element)?,
            Self::Or(left, right) => left.holds(element)? || right.holds(element)?,
        })
    }
}

fn comparison(function: &str) -> Option<&'static str> {
    [
        operators::EQUALS,
        operators::NOT_EQUALS,
        operators::LESS,
        operators::LESS_EQUALS,
        operators::GREATER,
        operators::GREATER_EQUALS,
    ]
    .into_iter()
    .find(|known| *known == function)
}

impl Operand {
    fn of(expr: &IdedExpr, variable: &str) -> Option<Self> {
        match &expr.expr {
            Expr::Literal(LiteralValue::Int(value)) => Some(Self::Int(*value.inner())),
            Expr::Literal(LiteralValue::Double(value)) => Some(Self::Double(*value.inner())),
            Expr::Literal(LiteralValue::String(text)) => Some(Self::Text(text.inner().to_owned())),
            Expr::Literal(LiteralValue::Boolean(value)) => Some(Self::Bool(*value.inner())),
            Expr::Ident(name) if name == variable => Some(Self::Element(vec![])),
            Expr::Select(select) if !select.test => match Self::of(&select.operand, variable)? {
                Self::Element(mut fields) => {
                    fields.push(select.field.clone());
                    Some(Self::Element(fields))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn scalar<'a>(&'a self, element: &'a Value) -> Option<Scalar<'a>> {
        let fields = match self {
            Self::Element(fields) => fields,
            Self::Int(value) => return Some(Scalar::Int(*value)),
            Self::Double(value) => return Some(Scalar::Double(*value)),
            Self::Text(text) => return Some(Scalar::Text(text)),
            Self::Bool(value) => return Some(Scalar::Bool(*value)),
        };
        let value = fields.iter().try_fold(element, |value, field| value.as_object()?.get(field))?;
        match value {
            Value::Bool(value) => Some(Scalar::Bool(*value)),
            Value::Number(number) => {
                number.as_i64().map(Scalar::Int).or_else(|| number.as_f64().map(Scalar::Double))
            }
            Value::String(text) => Some(Scalar::Text(text)),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}
