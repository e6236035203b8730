//! A scenario, as an author writes it: what the block is given, how the provider answers, what goes wrong, and what must
//! come of it.

mod comparison;
mod written;

use serde::Serialize;
use serde_json::{Value, json};

use self::comparison::Comparison;
use self::written::{Authored, AuthoredAnswer, response};
use super::provider::{Fault, Provider, Reply};
use super::{Outcome, Rehearsal};
use crate::block::EffectGrant;
use crate::code::Code;
use crate::expression::child;
use crate::ports::LogLine;
use crate::wording;
use crate::workflow::Problem;
use crate::workflow::source::Source;

pub use self::written::{Resolve, Stage};

/// A scenario that was read.
#[derive(Debug)]
pub struct Scenario {
    source: Source,
    authored: Authored,
}

/// One thing that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// JSON Pointer to what was expected.
    pub pointer: String,
    /// Line of the scenario, from 1.
    pub line: u64,
    /// Character in the line, from 1.
    pub column: u64,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(text: &str) -> Result<Self, Problem> {
        let source = Source::read(text)?;
        let authored: Authored = match serde_path_to_error::deserialize(&source.value) {
            Ok(authored) => authored,
            Err(error) => {
                let pointer = error.path().iter().fold(String::new(), |pointer, segment| match segment {
                    serde_path_to_error::Segment::Seq { index } => child(&pointer, &index.to_string()),
                    serde_path_to_error::Segment::Map { key } => child(&pointer, key),
                    _ => pointer,
                });
                return Err(problem(&source, pointer, &error.inner().to_string()));
            }
        };
        let scenario = Self { source, authored };
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), Problem> {
        let wrong = |pointer: String, message: &str| Err(problem(&self.source, pointer, message));
        for (index, answer) in self.authored.answers.iter().enumerate() {
            let AuthoredAnswer { status, json, body, lost, not_sent, .. } = answer;
            let ways = [status.is_some(), *lost, *not_sent].into_iter().filter(|way| *way).count();
            if ways != 1
                || (json.is_some() && body.is_some())
                || (status.is_none() && (json.is_some() || body.is_some()))
            {
                return wrong(
                    format!("/answers/{index}"),
                    "an answer is a `status` with `json` or `body`, or `lost: true`, or `not_sent: true`",
                );
            }
        }
        let stages = std::iter::once((String::new(), &self.authored.expect)).chain(
            self.authored
                .then
                .iter()
                .enumerate()
                .map(|(index, stage)| (format!("/then/{index}"), &stage.expect)),
        );
        for (pointer, expect) in stages {
            let ends =
                [expect.output.is_some(), expect.failed.is_some(), expect.blocked.is_some()].into_iter();
            if ends.filter(|end| *end).count() != 1 {
                return wrong(
                    format!("{pointer}/expect"),
                    "say how it ends: `output`, `failed` with a code, or `blocked: true`",
                );
            }
        }
        Ok(())
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.authored.name.as_deref()
    }

    /// The block's input: UTF-8 JSON.
    pub fn input(&self) -> String {
        self.authored.input.to_string()
    }

    /// The step, of a block with these grants.
    pub fn rehearsal(&self, grants: Vec<EffectGrant>) -> Rehearsal {
        let Authored { started_at, stored, answers, .. } = &self.authored;
        let mut provider = Provider::default();
        for answer in answers {
            let reply = match answer.status {
                Some(status) => Reply::Answer(response(
                    status,
                    &answer.headers,
                    answer.json.as_ref(),
                    answer.body.as_deref(),
                )),
                None if answer.not_sent => Reply::NotSent,
                None => Reply::Lost,
            };
            match answer.to.clone() {
                Some(calls) => provider.answer(calls, reply),
                None => provider.otherwise(reply),
            }
        }
        for (faults, fault) in [
            (&self.authored.crash_before_answer, Fault::CrashBefore),
            (&self.authored.crash_after_answer, Fault::CrashAfter),
            (&self.authored.drop_answer, Fault::Lose),
        ] {
            for nth in faults {
                provider.fault(*nth, fault);
            }
        }
        let mut rehearsal = Rehearsal::new(grants, provider, *started_at);
        for (key, value) in stored {
            rehearsal.store(key.clone(), value.to_string().into_bytes());
        }
        rehearsal
    }

    /// What happens after the step has stopped, in order.
    pub fn stages(&self) -> &[Stage] {
        &self.authored.then
    }

    /// Compares what came of a stage, 0 for the first run, with what must come of it.
    pub fn compare(
        &self,
        stage: usize,
        outcome: &Outcome,
        rehearsal: &Rehearsal,
        logs: &[LogLine],
    ) -> Vec<Mismatch> {
        let (pointer, expect) = match stage.checked_sub(1) {
            None => ("/expect".to_owned(), &self.authored.expect),
            Some(index) => (format!("/then/{index}/expect"), &self.authored.then[index].expect),
        };
        let mut comparison = Comparison { source: &self.source, found: vec![] };
        comparison.end(&pointer, expect, outcome);
        let mut list = |name: &str, expected: Option<Value>, found: Value| {
            if let Some(expected) = expected {
                comparison.value(&child(&pointer, name), &expected, &found, true);
            }
        };
        list("receipts", expect.receipts.as_ref().map(|it| json!(it)), json!(rehearsal.receipts()));
        list("calls", expect.calls.as_ref().map(|it| json!(it)), json!(rehearsal.sent()));
        list("emitted", expect.emitted.as_ref().map(|it| json!(it)), json!(rehearsal.emitted()));
        list("stored", expect.stored.as_ref().map(|it| json!(it)), stored(rehearsal));
        let logged: Vec<&str> = logs.iter().map(|line| line.message.as_str()).collect();
        list("logs", expect.logs.as_ref().map(|it| json!(it)), json!(logged));
        comparison.found
    }

    /// What is scripted and never came to pass, once the scenario is over. An answer to whatever else is asked may lie idle.
    pub fn idle(&self, rehearsal: &Rehearsal) -> Vec<Mismatch> {
        let answers = self.authored.answers.iter().enumerate();
        let of_calls: Vec<usize> =
            answers.filter(|(_, answer)| answer.to.is_some()).map(|(index, _)| index).collect();
        let mut idle: Vec<(String, &str)> = rehearsal
            .unused_answers()
            .filter_map(|index| of_calls.get(index))
            .map(|index| (format!("/answers/{index}"), "a call that this answers"))
            .collect();
        let Authored { crash_before_answer, crash_after_answer, drop_answer, .. } = &self.authored;
        let spared: Vec<u32> = rehearsal.spared_calls().collect();
        for (name, calls) in [
            ("crash_before_answer", crash_before_answer),
            ("crash_after_answer", crash_after_answer),
            ("drop_answer", drop_answer),
        ] {
            let spared = calls.iter().enumerate().filter(|(_, nth)| spared.contains(nth));
            idle.extend(spared.map(|(index, _)| (format!("/{name}/{index}"), "a call of this number")));
        }
        let mismatch = |(pointer, expected): (String, &str)| {
            let (line, column) = self.source.value_position(&pointer);
            Mismatch { pointer, line, column, expected: expected.into(), found: "none".into() }
        };
        idle.into_iter().map(mismatch).collect()
    }

    /// Says that a stage could not be played as it is written.
    pub fn unplayable(&self, stage: usize, why: &str) -> Mismatch {
        let pointer = stage.checked_sub(1).map_or_else(String::new, |index| format!("/then/{index}"));
        let (line, column) = self.source.value_position(&pointer);
        Mismatch { pointer, line, column, expected: "a step that can be played".into(), found: why.into() }
    }
}

fn problem(source: &Source, pointer: String, message: &str) -> Problem {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let at = match unknown {
        Some((field, _)) if !pointer.ends_with(&child("", field)) => child(&pointer, field),
        _ => pointer,
    };
    let (line, column) =
        if unknown.is_some() { source.key_position(&at) } else { source.value_position(&at) };
    Problem { pointer: at, line, column, code: Code::Schema, message: wording::told(message) }
}

fn stored(rehearsal: &Rehearsal) -> Value {
    let value = |bytes: &Vec<u8>| {
        serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into())
    };
    Value::Object(rehearsal.stored().iter().map(|(key, bytes)| (key.clone(), value(bytes))).collect())
}

#[cfg(test)]
mod tests;
