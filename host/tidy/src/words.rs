//! What may not be written anywhere, in comments and strings excepted: code is read token by token, also within macros.

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use crate::{Finding, Tree, finding_at};

/// Macros that stand for something that is not done.
const UNDONE: &[&str] = &["dbg", "todo", "unimplemented"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources().flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    match text.parse::<TokenStream>() {
        Ok(tokens) => {
            let mut found = Vec::new();
            walk(path, tokens, &mut found);
            found
        }
        Err(error) => vec![finding_at(path, error.span().start().line, format!("cannot be read: {error}"))],
    }
}

fn walk(path: &str, tokens: TokenStream, found: &mut Vec<Finding>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        match (token, &tokens[index + 1..]) {
            (TokenTree::Ident(name), [next, ..])
                if UNDONE.iter().any(|undone| name == undone) && calls(next) =>
            {
                found.push(finding_at(path, line, format!("`{name}!`: finish it, or leave it out")));
            }
            (TokenTree::Ident(name), _) if name == "unsafe" => {
                found.push(finding_at(path, line, "`unsafe`: write it otherwise"));
            }
            // `#[…]` and `#![…]`.
            (hash, [TokenTree::Group(attribute), ..]) if is(hash, '#') => lints(path, attribute, found),
            (hash, [bang, TokenTree::Group(attribute), ..]) if is(hash, '#') && is(bang, '!') => {
                lints(path, attribute, found);
            }
            _ => {}
        }
        if let TokenTree::Group(group) = token {
            walk(path, group.stream(), found);
        }
    }
}

/// `allow(…)` and `expect(…)` in an attribute, also within a `cfg_attr`.
fn lints(path: &str, attribute: &Group, found: &mut Vec<Finding>) {
    if !matches!(attribute.delimiter(), Delimiter::Bracket | Delimiter::Parenthesis) {
        return;
    }
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    for pair in tokens.windows(2) {
        let [TokenTree::Ident(name), TokenTree::Group(list)] = pair else { continue };
        let reasoned = || {
            list.stream().into_iter().any(|token| matches!(token, TokenTree::Ident(name) if name == "reason"))
        };
        if name == "cfg_attr" {
            lints(path, list, found);
        } else if (name == "allow" || name == "expect") && !reasoned() {
            let says = format!("`{name}` without a reason: say `#[expect(…, reason = \"…\")]`");
            found.push(finding_at(path, name.span().start().line, says));
        }
    }
}

fn is(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// A `!` that is not the first half of `!=`.
fn calls(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == '!' && punct.spacing() == Spacing::Alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_code_and_only_there() {
        for (text, expected) in [
            ("fn a() { todo!() }", Some("`todo!`: finish it, or leave it out")),
            (
                "fn a() { std::unimplemented!(\"later\") }",
                Some("`unimplemented!`: finish it, or leave it out"),
            ),
            ("fn a() { tokio::select! { x = dbg!(y) => {} } }", Some("`dbg!`: finish it, or leave it out")),
            ("fn todo() { if todo != b { todo() } }", None),
            ("/// todo!()\nconst A: &str = \"todo!()\"; // todo!()", None),
            ("fn a() { unsafe { b() } }", Some("`unsafe`: write it otherwise")),
            ("unsafe impl Send for A {}", Some("`unsafe`: write it otherwise")),
            ("/// unsafe\nfn unsafe_code() {}", None),
            (
                "#[allow(dead_code)] fn a() {}",
                Some("`allow` without a reason: say `#[expect(…, reason = \"…\")]`"),
            ),
            ("#![allow(dead_code)]", Some("`allow` without a reason: say `#[expect(…, reason = \"…\")]`")),
            (
                "#[cfg_attr(test, allow(dead_code))] fn a() {}",
                Some("`allow` without a reason: say `#[expect(…, reason = \"…\")]`"),
            ),
            (
                "fn a() { quote! { #[expect(dead_code)] } }",
                Some("`expect` without a reason: say `#[expect(…, reason = \"…\")]`"),
            ),
            ("#[expect(dead_code, reason = \"for its size\")] struct A;", None),
            ("#[serde(allow)] struct A; fn a() { b.expect(\"c\") }", None),
        ] {
            let expected: Vec<Finding> =
                expected.map(|says| finding_at("x.rs", 1, says)).into_iter().collect();
            assert_eq!(check_file("x.rs", text), expected, "{text}");
        }
        assert_eq!(check_file("x.rs", "fn a() {\n    }}").len(), 1);
    }
}
