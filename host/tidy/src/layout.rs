//! One binary of integration tests a crate: each more is linked, and run, by itself.

use crate::tree::ends;
use crate::{Finding, Tree, finding};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (manifest, _) in tree.manifests().filter(|(path, _)| path.starts_with("host/")) {
        let tests = manifest.replace("Cargo.toml", "tests/");
        let binaries = tree.under(&tests).map(|(path, _)| path).filter(|path| {
            let inside = &path[tests.len()..];
            (ends(inside, "rs") && !inside.contains('/'))
                || (inside.ends_with("/main.rs") && inside != "it/main.rs")
        });
        found.extend(
            binaries.map(|path| finding(path, format!("belongs into {tests}it, as a module of main.rs"))),
        );
        let modules = tree.under(&tests).any(|(path, _)| path[tests.len()..].starts_with("it/"));
        if modules && tree.get(&format!("{tests}it/main.rs")).is_none() {
            found.push(finding(
                format!("{tests}it/main.rs"),
                "is missing, so that the tests beside it never run",
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_in_the_one_binary_of_its_crate() {
        let tree = Tree::of([
            ("host/web/Cargo.toml", ""),
            ("host/web/tests/it/main.rs", ""),
            ("host/web/tests/it/pages.rs", ""),
            ("host/web/tests/pages.rs", ""),
            ("host/store/Cargo.toml", ""),
            ("host/store/tests/it/receipt.rs", ""),
            ("host/store/tests/slow/main.rs", ""),
        ]);
        assert_eq!(
            check(&tree),
            [
                finding(
                    "host/store/tests/slow/main.rs",
                    "belongs into host/store/tests/it, as a module of main.rs"
                ),
                finding("host/store/tests/it/main.rs", "is missing, so that the tests beside it never run"),
                finding("host/web/tests/pages.rs", "belongs into host/web/tests/it, as a module of main.rs"),
            ]
        );
    }
}
