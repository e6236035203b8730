//! Every guest program has its host test.

use crate::{Finding, Tree, finding};

const GUESTS: &str = "guest-examples/";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let tests: Vec<&str> =
        tree.under("host/").filter(|(path, _)| path.contains("/tests/it/")).map(|(_, text)| text).collect();
    tree.directories(GUESTS)
        .into_iter()
        .filter(|guest| tree.get(&format!("{GUESTS}{guest}/Cargo.toml")).is_some())
        // A test that runs a guest names it.
        .filter(|guest| !tests.iter().any(|test| test.contains(&format!("\"{guest}\""))))
        .map(|guest| finding(format!("{GUESTS}{guest}"), "is run by no test in `host/*/tests/it`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_no_test_runs_is_found() {
        let tree = Tree::of([
            ("guest-examples/Cargo.toml", ""),
            ("guest-examples/charge-card/Cargo.toml", ""),
            ("guest-examples/two-effects/Cargo.toml", ""),
            ("host/sandbox/tests/it/guest.rs", "run(\"charge-card\"); // two-effects"),
        ]);
        assert_eq!(
            check(&tree),
            [finding("guest-examples/two-effects", "is run by no test in `host/*/tests/it`")]
        );
    }
}
