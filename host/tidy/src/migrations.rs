//! Migrations have numbers of their own, in order, and each tells its story.

use crate::{Finding, Tree, finding};

const DIR: &str = "migrations/";
const DIGITS: usize = 4;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut last = 0;
    for (path, text) in tree.under(DIR) {
        let (number, name) = path[DIR.len()..].split_once('_').unwrap_or_default();
        let named = number.len() == DIGITS && name.strip_suffix(".sql").is_some_and(is_snake);
        // A number that is left out belongs to what is still being written.
        match number.parse::<u32>().ok().filter(|number| named && *number > last) {
            Some(number) => last = number,
            None => found.push(finding(
                path,
                format!("must be named {:0DIGITS$}_what_it_is_about.sql, or with a later number", last + 1),
            )),
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
    fn a_double_a_name_and_a_silent_file_are_found() {
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
                finding(
                    "migrations/0002_runs.sql",
                    "must be named 0003_what_it_is_about.sql, or with a later number"
                ),
                finding(
                    "migrations/0004_Steps.sql",
                    "must be named 0003_what_it_is_about.sql, or with a later number"
                ),
            ]
        );
    }
}
