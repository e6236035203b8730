//! A place in a text that an author wrote.

use std::fmt::Write as _;
use std::path::Path;

use anstyle::AnsiColor;

/// A line or a column as a person counts it.
pub(crate) fn from_one(position: u64) -> usize {
    usize::try_from(position).unwrap_or(1).max(1)
}

/// What is to be said of the place, the line, and a caret under the column.
pub(crate) fn excerpt(file: &Path, source: &str, (line, column): (usize, usize), message: &str) -> String {
    /// A longer line would hide its own caret.
    const LINE_CHARS_MAX: usize = 160;
    let mut text = format!("{}:{line}:{column}: {message}\n", file.display());
    let Some(written) =
        source.lines().nth(line - 1).filter(|written| written.chars().count() <= LINE_CHARS_MAX)
    else {
        return text;
    };
    // What stands before the caret keeps its tabs, so that both lines are equally long.
    let before: String =
        written.chars().take(column - 1).map(|sign| if sign == '\t' { sign } else { ' ' }).collect();
    let (dim, red) = (AnsiColor::BrightBlack.on_default(), AnsiColor::Red.on_default());
    let gutter = line.to_string();
    // Writing to a text cannot fail.
    let _ = write!(
        text,
        "{dim}{gutter} |{dim:#} {written}\n{dim}{:width$} |{dim:#} {before}{red}^{red:#}\n",
        "",
        width = gutter.len(),
    );
    text
}
