//! Every code that a person can meet has its page.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Item, LitStr};

use crate::{Finding, Tree, finding};

const CODES: &str = "host/domain/src/code.rs";
const PAGES: &str = "docs/advice/";
/// The macro whose lines are `Name = "code",`.
const LIST: &str = "codes";
/// To whom a page speaks.
const READERS: &[&str] = &["block author", "application developer", "operator"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let codes = codes(tree.get(CODES).unwrap_or_default());
    if codes.is_empty() {
        return vec![finding(CODES, format!("has no list of codes in `{LIST}!`"))];
    }
    let mut found = Vec::new();
    for code in &codes {
        let path = format!("{PAGES}{code}.md");
        match tree.get(&path) {
            None => found.push(finding(path, format!("is missing: what does one do who meets `{code}`?"))),
            Some(page) => {
                if !page.starts_with("# ") {
                    found.push(finding(path.as_str(), "must begin with a title"));
                }
                let spoken_to = spoken_to(page);
                for reader in
                    READERS.iter().filter(|reader| !spoken_to.iter().any(|spoken_to| spoken_to == **reader))
                {
                    found.push(finding(path.as_str(), format!("has nothing for the {reader}")));
                }
            }
        }
    }
    for (path, _) in tree.under(PAGES) {
        let name = path[PAGES.len()..].trim_end_matches(".md");
        if name != "README" && !codes.iter().any(|code| code == name) {
            found.push(finding(path, "advises on a code that does not exist"));
        }
    }
    found
}

/// Who is named at the head of an entry: `- **Block author, operator:** …`.
fn spoken_to(page: &str) -> Vec<String> {
    let heads = page.lines().filter_map(|line| line.strip_prefix("- **")?.split_once(":**"));
    heads.flat_map(|(head, _)| head.split(", ")).map(str::to_lowercase).collect()
}

/// The strings of the list, in order.
fn codes(text: &str) -> Vec<String> {
    let Ok(file) = syn::parse_file(text) else { return Vec::new() };
    let lists = file.items.into_iter().filter_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident(LIST) => Some(item.mac.tokens),
        _ => None,
    });
    lists.flat_map(values).collect()
}

/// What stands behind each `=` outside of attributes.
fn values(list: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = list.into_iter().collect();
    tokens
        .windows(2)
        .filter_map(|pair| match pair {
            [TokenTree::Punct(equals), TokenTree::Literal(value)] if equals.as_char() == '=' => {
                syn::parse_str::<LitStr>(&value.to_string()).ok()
            }
            _ => None,
        })
        .map(|value| value.value())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "macro_rules! codes { ($($name:ident = $text:literal,)*) => {}; }\n\
                       codes! { /// A = \"doc\"\n Denied = \"denied\", Stale = \"stale\", }";
    const PAGE: &str = "# Denied\n- **Block author:** a\n- **Application developer:** b\n- **Operator:** c\n";

    #[test]
    fn a_code_without_advice_and_advice_without_a_code_are_found() {
        let tree = Tree::of([
            (CODES, TWO),
            ("docs/advice/denied.md", PAGE),
            ("docs/advice/gone.md", PAGE),
            ("docs/advice/README.md", "All of them."),
        ]);
        assert_eq!(
            check(&tree),
            [
                finding("docs/advice/stale.md", "is missing: what does one do who meets `stale`?"),
                finding("docs/advice/gone.md", "advises on a code that does not exist"),
            ]
        );
    }

    #[test]
    fn a_page_has_a_title_and_speaks_to_every_reader() {
        let tree = Tree::of([
            (CODES, TWO),
            ("docs/advice/denied.md", PAGE),
            ("docs/advice/stale.md", "- **Block author, application developer:** a\n"),
        ]);
        assert_eq!(
            check(&tree),
            [
                finding("docs/advice/stale.md", "must begin with a title"),
                finding("docs/advice/stale.md", "has nothing for the operator"),
            ]
        );
    }

    #[test]
    fn a_list_that_cannot_be_found_is_no_empty_list() {
        assert_eq!(check(&Tree::of([])), [finding(CODES, "has no list of codes in `codes!`")]);
    }
}
