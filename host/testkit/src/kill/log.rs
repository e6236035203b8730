//! What hosts said, counted.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

/// What the log of one host, or of many, holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Said {
    /// By which the database knows its leases; empty for many hosts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) host: String,
    /// It could not start for want of the database.
    #[serde(skip)]
    pub(super) database_is_gone: bool,
    /// Leases that it found lost while it worked under them.
    pub(super) leases_lost: u64,
    /// Ends of executions that were refused, the lease being another's.
    pub(super) stale_refused: u64,
    /// Answers that came after their receipts were unknown, and were recorded.
    pub(super) late_answers: u64,
    /// Answers that came after their receipts were settled by somebody else.
    pub(super) answers_too_late: u64,
    /// Panics, which none may have.
    pub(super) panics: Vec<String>,
}

/// One more of something.
type Count = fn(&mut Said);

/// Each message, and what it counts.
const PHRASES: [(&str, Count); 5] = [
    ("the lease of a step was lost while it ran", |said| said.leases_lost += 1),
    ("its lease had been lost", |said| said.stale_refused += 1),
    ("stop=Stale", |said| said.stale_refused += 1),
    ("a late answer is recorded", |said| said.late_answers += 1),
    ("an answer came after its receipt was settled", |said| said.answers_too_late += 1),
];

/// What a host says that ends because it cannot use the database.
const NO_DATABASE: [&str; 3] = [
    "the database cannot be reached",
    "the database did not carry out a statement",
    // It looks for them when it starts.
    "the migrations could not be applied",
];

impl Said {
    /// Adds what another host said.
    pub(super) fn add(&mut self, other: &Self) {
        self.leases_lost += other.leases_lost;
        self.stale_refused += other.stale_refused;
        self.late_answers += other.late_answers;
        self.answers_too_late += other.answers_too_late;
        self.panics.extend(other.panics.iter().cloned());
    }

    fn hear(&mut self, line: &str) {
        for (phrase, count) in PHRASES {
            if line.contains(phrase) {
                count(self);
            }
        }
        if line.contains("panicked at") {
            self.panics.push(line.to_owned());
        }
        self.database_is_gone |= NO_DATABASE.iter().any(|phrase| line.contains(phrase));
        if let Some((_, host)) = line.split_once("serving").and_then(|(_, rest)| rest.split_once("host=")) {
            host.split_whitespace().next().unwrap_or_default().clone_into(&mut self.host);
        }
    }
}

/// Reads a host's log.
pub(super) fn read(path: &Path) -> anyhow::Result<Said> {
    let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut said = Said::default();
    for line in BufReader::new(file).split(b'\n') {
        said.hear(&String::from_utf8_lossy(&line?));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_counted_by_its_messages() {
        let mut said = Said::default();
        for line in [
            "2026-01-01T00:00:00Z  INFO counterfoil::wire: serving url=http://127.0.0.1:1/ host=host_1",
            "an execution stops at an effect step=step_1 stop=Stale",
            "a step was settled by nobody: its lease had been lost step=step_1",
            "thread 'main' panicked at src/lib.rs:1:1:",
            "nothing",
        ] {
            said.hear(line);
        }
        let panics = vec!["thread 'main' panicked at src/lib.rs:1:1:".to_owned()];
        assert_eq!(said, Said { host: "host_1".into(), stale_refused: 2, panics, ..Said::default() });
    }
}
