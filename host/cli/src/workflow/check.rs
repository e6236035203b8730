//! Checks a definition, and shows each problem where it stands in the text.

use std::collections::BTreeMap;
use std::path::Path;

use counterfoil_domain::id::Digest;
use counterfoil_domain::workflow::{Authored, PROBLEMS_MAX, Problem, Version};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::api::ProblemPart;
use crate::excerpt::{excerpt, from_one};
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output::Output;

/// Checks a file, and prints what is wrong with it.
pub(super) fn check(file: &Path, output: Output) -> anyhow::Result<Exit> {
    let text = input::read_file(file)?;
    match compile(&text) {
        Ok(Version { plan, .. }) => {
            let answer = json!({ "name": plan.workflow(), "valid": true, "problems": [] });
            output.show(&answer, || format!("{} is valid", plan.workflow()))?;
            Ok(Exit::Ok)
        }
        Err(problems) => {
            let answer = json!({ "valid": false, "problems": problems });
            let shown = problems.iter().map(Shown::from);
            output.show(&answer, || {
                shown.map(|problem| problem.text(file, &text)).collect::<Vec<_>>().join("\n")
            })?;
            anstream::eprintln!("{}", count(problems.len()));
            Ok(Exit::Refused)
        }
    }
}

/// The name of the workflow that the text defines.
///
/// # Errors
/// The text is no definition, for a reason that can be told without a host.
pub(super) fn name(file: &Path, text: &str) -> Result<String, Failure> {
    match compile(text) {
        Ok(version) => Ok(version.plan.workflow().to_owned()),
        Err(problems) => Err(failure(file, text, problems.iter().map(Shown::from))),
    }
}

/// What a host found.
pub(super) fn refused(file: &Path, text: &str, problems: &[ProblemPart]) -> Failure {
    failure(file, text, problems.iter().map(Shown::from))
}

/// Tells what a host found that will fail as things are.
pub(super) fn warn(file: &Path, text: &str, warnings: &Value) {
    for part in Vec::<ProblemPart>::deserialize(warnings).unwrap_or_default() {
        anstream::eprintln!("warning: {}", Shown::from(&part).text(file, text));
    }
}

fn failure<'a>(file: &Path, text: &str, problems: impl ExactSizeIterator<Item = Shown<'a>>) -> Failure {
    let what = format!("{} is refused: {}", file.display(), count(problems.len()));
    Failure::new(Exit::Refused, what).details(problems.map(|problem| problem.text(file, text)))
}

/// All that can be checked without a host: of the blocks, only the names are known here.
fn compile(text: &str) -> Result<Version, Vec<Problem>> {
    let authored = Authored::read(text).map_err(|problem| vec![problem])?;
    let blocks: BTreeMap<_, _> = authored.blocks().into_iter().map(|name| (name, Digest([0; 32]))).collect();
    let version = authored.compile(&blocks)?;
    match authored.cycle(&version, &BTreeMap::new()) {
        Some(problem) => Err(vec![problem]),
        None => Ok(version),
    }
}

fn count(problems: usize) -> String {
    match problems {
        1 => "1 problem".into(),
        PROBLEMS_MAX => format!("{PROBLEMS_MAX} problems, and perhaps more"),
        _ => format!("{problems} problems"),
    }
}

/// A problem, whoever found it.
struct Shown<'a> {
    message: &'a str,
    line: usize,
    column: usize,
}

impl<'a> From<&'a Problem> for Shown<'a> {
    fn from(problem: &'a Problem) -> Self {
        Self { message: &problem.message, line: from_one(problem.line), column: from_one(problem.column) }
    }
}

impl<'a> From<&'a ProblemPart> for Shown<'a> {
    fn from(part: &'a ProblemPart) -> Self {
        let at = |position: Option<u64>| from_one(position.unwrap_or(1));
        Self { message: &part.detail, line: at(part.line), column: at(part.column) }
    }
}

impl Shown<'_> {
    fn text(&self, file: &Path, source: &str) -> String {
        excerpt(file, source, (self.line, self.column), self.message)
    }
}
