//! A test that reads the tree and holds it to the architecture: what the compiler cannot hold by itself.

mod advice;
mod edges;
mod exceptions;
mod guests;
mod layout;
mod migrations;
mod sizes;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

pub use self::tree::Tree;

use self::exceptions::EXCEPTIONS;

/// One place where the tree breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// A path, and what in it where that is needed to tell it from its neighbours.
    pub subject: String,
    /// From 1.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub says: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.subject, self.says),
            None => write!(f, "{}: {}", self.subject, self.says),
        }
    }
}

/// A finding about something as a whole.
fn finding(subject: impl Into<String>, says: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), line: None, says: says.into() }
}

/// A finding at a line.
fn finding_at(subject: impl Into<String>, line: usize, says: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), line: Some(line), says: says.into() }
}

/// Everything that is wrong with the tree at `root`.
///
/// # Errors
/// If the tree cannot be read.
pub fn check(root: &Path) -> std::io::Result<Vec<Finding>> {
    let tree = Tree::read(root)?;
    let rules = [
        edges::check,
        layout::check,
        sizes::check,
        words::check,
        advice::check,
        guests::check,
        migrations::check,
    ];
    let found = rules.iter().flat_map(|rule| rule(&tree)).collect();
    Ok(exceptions::apply(EXCEPTIONS, found))
}
