//! A problem, for a person.

use askama::Template;

use crate::problem::ProblemBody;

/// What went wrong.
#[derive(Debug, Template)]
#[template(path = "problem.html")]
pub(crate) struct ProblemPage {
    pub(crate) problem: ProblemBody,
}
