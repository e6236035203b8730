//! How long what is over is kept.

use std::ops::RangeInclusive;
use std::time::Duration;

use counterfoil_store::retention::KeepFor;

use super::reader::Reader;

/// How long what is over is kept: a number of days, for ever without one.
#[derive(Debug, Clone)]
pub(crate) struct RetentionConfig {
    /// How long a finished run is kept, in days; a tenant may have a time of its own.
    /// `COUNTERFOIL__RETENTION__FINISHED_RUNS_DAYS`, default for ever.
    pub(crate) finished_runs: Option<u32>,
    /// How long an event is known, and so taken for a repeat when it comes again, in days.
    /// `COUNTERFOIL__RETENTION__EVENTS_DAYS`, default for ever.
    pub(crate) events: Option<u32>,
    /// How long the answer to a request is kept for its repeats (`Idempotency-Key`), in days.
    /// `COUNTERFOIL__RETENTION__REQUESTS_DAYS`, default for ever.
    pub(crate) requests: Option<u32>,
    /// How long audit rows are kept, in days. `COUNTERFOIL__RETENTION__AUDIT_DAYS`, default for ever.
    pub(crate) audit: Option<u32>,
}

impl RetentionConfig {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let mut days = |key| {
            let days = reader.optional(key, |days: &u32| days.to_string(), "for ever");
            reader.check(key, days.is_none_or(|days| DAYS.contains(&days)), || {
                format!("from {} to {} days", DAYS.start(), DAYS.end())
            });
            days
        };
        Self {
            finished_runs: days("retention.finished_runs_days"),
            events: days("retention.events_days"),
            requests: days("retention.requests_days"),
            audit: days("retention.audit_days"),
        }
    }

    /// The same as times.
    pub(crate) fn keep(&self) -> KeepFor {
        let time = |days: Option<u32>| days.map(|days| Duration::from_hours(24 * u64::from(days)));
        KeepFor {
            runs: time(self.finished_runs),
            events: time(self.events),
            requests: time(self.requests),
            audit: time(self.audit),
        }
    }
}

/// Days that anything may be kept: less is no history, and more is for ever.
pub(crate) const DAYS: RangeInclusive<u32> = 1..=36_500;
