//! Migrations are numbered without a gap, and each tells its story.

use crate::{Finding, Tree, finding};

const DIR: &str = "migrations/";
const DIGITS: usize = 4;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, (path, text)) in tree.under(DIR).enumerate() {
        let number = format!("{:0DIGITS$}", index + 1);
        let name = path[DIR.len()..].strip_prefix(&number).and_then(|rest| rest.strip_prefix('_'));
        let named = name.and_then(|name| name.strip_suffix(".sql")).is_some_and(is_snake);
        if !named {
            found.push(finding(path, format!("must be named {number}_what_it_is_about.sql")));
        }
        if !text.starts_with("-- ") {
            found.push(finding(path, "must open with a paragraph that tells the story of its tables"));
        }
    }
    found
}

fn is_snake(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_double_and_a_silent_file_are_found() {
        let tree = Tree::of([
            ("migrations/0001_tenants.sql", "-- Who."),
            ("migrations/0002_blocks.sql", "CREATE TABLE blocks ();"),
            ("migrations/0002_runs.sql", "-- What."),
            ("migrations/0004_Steps.sql", "-- How."),
        ]);
        assert_eq!(
            check(&tree),
            [
                finding(
                    "migrations/0002_blocks.sql",
                    "must open with a paragraph that tells the story of its tables"
                ),
                finding("migrations/0002_runs.sql", "must be named 0003_what_it_is_about.sql"),
                finding("migrations/0004_Steps.sql", "must be named 0004_what_it_is_about.sql"),
            ]
        );
    }
}
