//! How long a file and a function may be, doc comments and inline tests not counted.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, ImplItemFn, ItemFn, ItemMod, Signature, TraitItemFn};

use crate::{Finding, Tree, finding, finding_at};

/// What one can hold in mind of one noun.
const FILE_LINES_MAX: usize = 400;
/// What one can see at once.
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources()
        .filter(|(path, _)| !is_for_tests(path))
        .flat_map(|(path, text)| check_file(path, text))
        .collect()
}

/// Tests are read one by one, each from top to bottom.
fn is_for_tests(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let file = match syn::parse_file(text) {
        Ok(file) => file,
        Err(error) => {
            return vec![finding_at(path, error.span().start().line, format!("cannot be read: {error}"))];
        }
    };
    let mut walk = Walk { counted: text.lines().map(|line| !is_doc(line)).collect(), functions: Vec::new() };
    walk.visit_file(&file);

    let mut found = Vec::new();
    let lines = walk.count(1, walk.counted.len());
    if lines > FILE_LINES_MAX {
        found
            .push(finding(path, format!("has {lines} lines, of at most {FILE_LINES_MAX}: split it by noun")));
    }
    for Function { name, first, last } in &walk.functions {
        let lines = walk.count(*first, *last);
        if lines > FUNCTION_LINES_MAX {
            let says = format!("`{name}` has {lines} lines, of at most {FUNCTION_LINES_MAX}: split it");
            found.push(finding_at(path, *first, says));
        }
    }
    found
}

fn is_doc(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("///") || line.starts_with("//!")
}

struct Function {
    name: String,
    first: usize,
    last: usize,
}

struct Walk {
    /// For each line whether it counts.
    counted: Vec<bool>,
    functions: Vec<Function>,
}

impl Walk {
    fn count(&self, first: usize, last: usize) -> usize {
        self.counted[first - 1..last].iter().filter(|counted| **counted).count()
    }

    fn leave_out(&mut self, span: Span) {
        self.counted[span.start().line - 1..span.end().line].fill(false);
    }

    fn function(&mut self, signature: &Signature, body: &Block) {
        let (first, last) = (signature.span().start().line, body.span().end().line);
        self.functions.push(Function { name: signature.ident.to_string(), first, last });
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_test(&module.attrs) {
            self.leave_out(module.span());
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if is_test(&function.attrs) {
            self.leave_out(function.span());
        } else {
            self.function(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if is_test(&function.attrs) {
            self.leave_out(function.span());
        } else {
            self.function(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.function(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// `#[cfg(test)]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(body_lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(body_lines))
    }

    #[test]
    fn a_function_is_at_its_limit_or_over_it() {
        for (body_lines, expected) in [
            (FUNCTION_LINES_MAX - 2, vec![]),
            (
                FUNCTION_LINES_MAX - 1,
                vec![finding_at("x.rs", 1, "`long` has 71 lines, of at most 70: split it")],
            ),
        ] {
            assert_eq!(check_file("x.rs", &function(body_lines)), expected);
            let method = format!("impl A {{ {} }}", function(body_lines));
            assert_eq!(check_file("x.rs", &method), expected);
            let default = format!("trait A {{ {} }}", function(body_lines));
            assert_eq!(check_file("x.rs", &default), expected);
        }
    }

    #[test]
    fn a_file_is_at_its_limit_or_over_it() {
        let lines = |count: usize| "const A: u8 = 0;\n".repeat(count);
        assert_eq!(check_file("x.rs", &lines(FILE_LINES_MAX)), []);
        assert_eq!(
            check_file("x.rs", &lines(FILE_LINES_MAX + 1)),
            [finding("x.rs", "has 401 lines, of at most 400: split it by noun")]
        );
    }

    #[test]
    fn documentation_and_tests_do_not_count() {
        let documented = format!("//! Why.\n{}", "/// What.\nconst A: u8 = 0;\n".repeat(FILE_LINES_MAX));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}\n{}}}\n", function(100), function(400));
        assert_eq!(check_file("x.rs", &format!("{documented}{tests}")), []);
        // Other comments do, and so does a module that is for tests only by its name.
        assert_eq!(check_file("x.rs", &"// Why.\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
        assert_eq!(check_file("x.rs", &tests.replace("#[cfg(test)]", "")).len(), 3);
    }

    #[test]
    fn only_what_is_built_into_something_is_measured() {
        let long = function(100);
        let tree = Tree::of([
            ("host/web/src/page.rs", long.as_str()),
            ("host/web/src/page/tests.rs", &long),
            ("host/web/tests/it/page.rs", &long),
            ("sdk/rust/src/lib.rs", "fn broken( {"),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|finding| finding.subject).collect();
        assert_eq!(paths, ["host/web/src/page.rs", "sdk/rust/src/lib.rs"]);
    }
}
