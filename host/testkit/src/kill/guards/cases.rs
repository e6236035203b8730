//! Each guard off, one at a time, and what the harness must see of it.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::{Guard, Guards};
use crate::kill::plan::{Mix, Severed};
use crate::kill::{Options, Report};

/// What is left standing when a guard is off needs no whole minute to be seen.
const DRAIN_WITHOUT: Duration = Duration::from_secs(12);

/// Guards off together, and what that must look like.
struct Case {
    off: &'static [Guard],
    expected: Expected,
    mix: Mix,
}

/// The harness goes red, for this reason.
struct Expected {
    /// What a violation says.
    seen: &'static str,
    /// Something was sent twice.
    twice: bool,
    /// What that shows.
    shows: &'static str,
}

/// Hosts wake among others that have taken their work over.
const ZOMBIES: Mix = Mix { site: 35, outside: 15, freeze: 50, ..Mix::ALL };

const CASES: [Case; 10] = [
    Case {
        off: &[Guard::Receipt],
        expected: Expected {
            seen: "have no receipt",
            twice: true,
            shows: "nothing else knows what was sent",
        },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::Swap],
        expected: Expected {
            seen: "has moved from where it did not stand",
            twice: false,
            shows: "late answers overwrite what was decided meanwhile",
        },
        mix: ZOMBIES,
    },
    Case {
        off: &[Guard::Fence],
        expected: Expected {
            seen: "was dispatched under a lease that had ended",
            twice: false,
            shows: "thawed hosts dispatch; the send window keeps their requests in",
        },
        mix: ZOMBIES,
    },
    Case {
        off: &[Guard::Index],
        expected: Expected {
            seen: "which its invariant allows once",
            twice: true,
            shows: "the same order is charged twice",
        },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::Journal],
        expected: Expected {
            seen: "has not ended",
            twice: false,
            shows: "steps stand still, since the identity lets nothing be sent again",
        },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::Identity],
        expected: Expected {
            seen: "are recorded",
            twice: false,
            shows: "a dispatch that is cut off on its way is written once more; the journal and the fence cover the rest",
        },
        mix: Mix { cut_every: 1, severed: &[Severed::Blind], ..Mix::ALL },
    },
    Case {
        off: &[Guard::Journal, Guard::Identity],
        expected: Expected { seen: "dispatches", twice: true, shows: "every takeover sends again" },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::StartKey],
        expected: Expected {
            seen: "and has the runs",
            twice: false,
            shows: "a run that the API starts is admitted in one statement, before which nothing is looked up",
        },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::StartLookup],
        expected: Expected {
            seen: "were never answered",
            twice: false,
            shows: "the unique key keeps the second run out, and nobody can say which was the first",
        },
        mix: Mix::ALL,
    },
    Case {
        off: &[Guard::StartKey, Guard::StartLookup],
        expected: Expected { seen: "and has the runs", twice: false, shows: "one call starts two runs" },
        mix: Mix::ALL,
    },
];

/// What came of one case.
#[derive(Debug, Clone, Serialize)]
pub struct Judged {
    /// The guards that were off.
    pub off: String,
    /// What it came to, as the last line of a run says it.
    pub line: String,
    /// Invariants that were broken.
    pub violations: usize,
    /// The first of those that the case is about.
    pub seen: Option<String>,
    /// What the harness shows by it.
    pub shows: String,
    /// Whether that is what it must look like.
    pub is_right: bool,
    /// What must be seen was not, and nothing was that must not be.
    #[serde(skip)]
    is_to_be_seen: bool,
    /// The same run again.
    pub replay: String,
}

/// A short run may not meet what a guard is for; such a case is run once more, so many times as long.
const SECOND_RUN_TIMES: u64 = 5;

/// Runs every case with the kills and the seed of `options`, and those in which nothing was seen once more, for longer.
///
/// # Errors
/// The harness itself could not go on, or a guard's statement was never met.
pub async fn run_all(options: &Options) -> anyhow::Result<Vec<Judged>> {
    let mut judged = vec![];
    for case in CASES {
        let guards = Guards(case.off.to_vec());
        let mut options = Options { guards, drain: DRAIN_WITHOUT, mix: case.mix.clone(), ..options.clone() };
        let mut found = judge(&case, &options, &crate::kill::run(&options).await?);
        if found.is_to_be_seen {
            options.kills *= SECOND_RUN_TIMES;
            found = judge(&case, &options, &crate::kill::run(&options).await?);
        }
        judged.push(found);
    }
    Ok(judged)
}

fn judge(case: &Case, options: &Options, report: &Report) -> Judged {
    let off = options.guards.names().collect::<Vec<_>>().join(" and ");
    let Expected { seen, twice, shows } = case.expected;
    let seen = report.violations.iter().find(|violation| violation.what.contains(seen));
    let is_twice = report.duplicates > 0;
    let is_right = seen.is_some() && twice == is_twice;
    let is_to_be_seen = !is_right && (twice || !is_twice);
    let (seen, shows) = (seen.map(ToString::to_string), shows.to_owned());
    let replay = format!("scripts/kill --guards-off --kills {} --seed {}", options.kills, options.seed);
    let (line, violations) = (report.last_line(), report.violations.len());
    Judged { off, line, violations, seen, shows, is_right, is_to_be_seen, replay }
}

/// The list, a line a case.
pub fn table(judged: &[Judged]) -> String {
    let mut table = String::new();
    for Judged { off, line, violations, seen, shows, is_right, replay, .. } in judged {
        let colour = if *violations == 0 { "green" } else { "red" };
        let _ = writeln!(table, "without {off}: {colour}, {violations} violations; {shows}");
        let _ = writeln!(table, "    {line}");
        if let Some(seen) = seen {
            let _ = writeln!(table, "    {seen}");
        }
        if !is_right {
            let _ = writeln!(table, "    THIS IS NOT WHAT IT MUST LOOK LIKE; again: {replay}");
        }
    }
    table
}
