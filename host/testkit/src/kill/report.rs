//! What a run of the harness came to: a table, JSON, and one last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use counterfoil_domain::id::{HostId, TenantId};
use serde::Serialize;
use sqlx::PgPool;
use uuid::Uuid;

use super::Options;
use super::fleet::{Ended, Incarnation};
use super::load::Answered;
use super::log::Said;
use super::operator::Resolutions;
use super::plan::Fate;
use super::strangers::Strangers;
use crate::ledger::{Reconciled, Violation};
use crate::provider::{Act, Call};

/// Violations that are told with the hosts that held their steps.
const TRACED_MAX: usize = 20;

/// What was done to the database and to the connections to it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Faults {
    /// Ended at once and started again.
    pub restarts: u64,
    /// Times that some connections of hosts were terminated.
    pub terminations: u64,
    /// Committed, and the answer cut off.
    pub cuts_after: u64,
    /// Cut while the commit was on its way.
    pub cuts_blind: u64,
    /// Cut before the commit arrived.
    pub cuts_before: u64,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Hosts that were killed.
    pub kills: u64,
    /// Calls that may have changed something.
    pub calls: usize,
    /// Calls beyond those that receipts stand for.
    pub duplicates: usize,
    /// Effects that only one of provider and database knows of.
    pub lost: usize,
    /// Receipts whose outcome was ever unknown.
    pub unknown: usize,
    /// Those of them that carry a reason, and of which the provider's log says what became of them.
    pub explained: usize,
    /// Every broken invariant, with the hosts that had held its step.
    pub violations: Vec<Violation>,
    /// The same run again.
    pub replay: String,
    /// Everything else that was counted, by group and name.
    pub counts: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Hosts that held the steps of the first violations, and how each ended.
    pub traces: Vec<String>,
    kills_wanted: u64,
}

impl Report {
    pub(super) fn new(
        options: &Options,
        found: Reconciled,
        faults: &Faults,
        logs: &[(TenantId, Vec<Call>)],
    ) -> Self {
        let mut report = Self {
            kills: 0,
            calls: found.calls,
            duplicates: found.duplicates,
            lost: found.lost,
            unknown: found.were_unknown,
            explained: found.decided,
            violations: found.violations,
            replay: replay(options),
            counts: BTreeMap::new(),
            traces: vec![],
            kills_wanted: options.kills,
        };
        if found.unknown > 0 {
            report.violation(format!("{} effects are still unknown", found.unknown));
        }
        for (state, count) in found.receipts {
            report.count("receipts", &state, count as u64);
        }
        let Faults { restarts, terminations, cuts_after, cuts_blind, cuts_before } = *faults;
        for (name, count) in [
            ("Postgres ended at once and started again", restarts),
            ("backends terminated", terminations),
            ("committed, the answer cut off", cuts_after),
            ("cut with the commit on its way", cuts_blind),
            ("cut before the commit", cuts_before),
        ] {
            report.count("database", name, count);
        }
        for call in logs.iter().flat_map(|(_, calls)| calls) {
            report.count("provider", &behaviour(&call.act), 1);
        }
        report
    }

    fn violation(&mut self, what: String) {
        self.violations.push(Violation { what, step: None });
    }

    fn count(&mut self, group: &'static str, name: &str, count: u64) {
        *self.counts.entry(group).or_default().entry(name.to_owned()).or_default() += count;
    }

    pub(super) fn time(&mut self, killing: Duration, drain: Option<Duration>) {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.count("time", "killing, ms", ms(killing));
        match drain {
            Some(drain) => self.count("time", "until all had ended after the last fault, ms", ms(drain)),
            None => self.violation("not everything has ended in time after the last fault".into()),
        }
    }

    /// What the application and the operator met.
    pub(super) fn people(&mut self, answered: &Answered, resolutions: &Resolutions, strangers: Strangers) {
        self.violations
            .extend(answered.wrong.iter().map(|what| Violation { what: what.clone(), step: None }));
        self.violations.extend(strangers.seen.into_iter().map(|what| Violation { what, step: None }));
        if !answered.unanswered.is_empty() {
            let first = &answered.unanswered[0];
            self.violation(format!(
                "{} starts were never answered: {first} and on",
                answered.unanswered.len()
            ));
        }
        let both = resolutions.both_done.load(Ordering::Relaxed);
        if both > 0 {
            self.violation(format!("{both} effects were resolved by two people at once"));
        }
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        for (group, name, count) in [
            ("starts", "accepted", answered.accepted.len() as u64),
            ("starts", "asked for again after their answer", answered.asked_again),
            ("starts", "taken over from a host that never answered", answered.aged),
            ("resolved", "took place", read(&resolutions.took_place)),
            ("resolved", "did not take place", read(&resolutions.did_not)),
            ("resolved", "refused as too early", read(&resolutions.too_early)),
            ("resolved", "found settled", read(&resolutions.settled_before)),
            ("resolved", "by one of two at once", read(&resolutions.at_once)),
            ("tenants", "rows asked for with another's key, all not found", strangers.asked),
        ] {
            self.count(group, name, count);
        }
    }

    /// How the hosts ended, and what they said.
    pub(super) fn hosts(&mut self, incarnations: &[Incarnation], mut said: Said) {
        for host in incarnations {
            let killed = match (host.ended, host.fate) {
                (Ended::AtSite, Fate::Site { site, .. }) => Some(format!("at {}", site.name())),
                (Ended::AtSite | Ended::Outside, _) => Some("from outside".to_owned()),
                (Ended::Thawed, _) => Some("frozen past the lease, thawed, killed".to_owned()),
                (Ended::NoDatabase, _) => {
                    self.count("hosts", "not started for want of the database", 1);
                    None
                }
                (Ended::Told, _) => None,
            };
            if let Some(killed) = killed {
                self.kills += 1;
                self.count("kills", &killed, 1);
            }
            said.add(&host.said);
        }
        for panic in std::mem::take(&mut said.panics) {
            self.violation(format!("a host panicked: {panic}"));
        }
        for (name, count) in [
            ("leases found lost", said.leases_lost),
            ("writes of stale owners refused", said.stale_refused),
            ("late answers recorded", said.late_answers),
            ("answers after their receipt was settled", said.answers_too_late),
        ] {
            self.count("hosts", name, count);
        }
        if self.kills < self.kills_wanted {
            self.violation(format!("only {} hosts were killed", self.kills));
        }
    }

    /// Says which hosts had held the steps of the first violations, and how each ended.
    pub(super) async fn trace(&mut self, pool: &PgPool, incarnations: &[Incarnation]) -> anyhow::Result<()> {
        for violation in self.violations.iter().filter(|violation| violation.step.is_some()).take(TRACED_MAX)
        {
            let held: Vec<(Uuid, String)> = sqlx::query_as(
                "SELECT host_id, ended FROM step_attempts WHERE step_id = $1 ORDER BY started_at",
            )
            .bind(violation.step)
            .fetch_all(pool)
            .await
            .context("reading who held a step")?;
            let mut trace = format!("{violation}:");
            for (host, ended) in held {
                let host = HostId(host).to_string();
                match incarnations.iter().find(|known| known.said.host == host) {
                    Some(known) => {
                        let _ = write!(trace, " host {} ({}) {ended};", known.name, known.fate);
                    }
                    None => {
                        let _ = write!(trace, " a host of the end {ended};");
                    }
                }
            }
            self.traces.push(trace);
        }
        Ok(())
    }

    /// How runs and steps ended.
    pub(super) async fn count_ends(&mut self, pool: &PgPool) -> anyhow::Result<()> {
        let runs: Vec<(String, i64)> = sqlx::query_as(
            "SELECT state || COALESCE(': ' || (error ->> 'code'), ''), count(*) FROM runs GROUP BY 1 ORDER BY 1",
        )
        .fetch_all(pool)
        .await
        .context("counting runs")?;
        let attempts: Vec<(String, i64)> =
            sqlx::query_as("SELECT ended, count(*) FROM step_attempts GROUP BY 1 ORDER BY 1")
                .fetch_all(pool)
                .await
                .context("counting attempts")?;
        for (group, rows) in [("runs", runs), ("executions that did not settle", attempts)] {
            for (name, count) in rows {
                self.count(group, &name, count.unsigned_abs());
            }
        }
        Ok(())
    }

    /// Whether everything reconciles.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.duplicates == 0 && self.lost == 0 && self.explained == self.unknown
    }

    /// Kills in a second, while there were any.
    pub fn kills_per_second(&self) -> f64 {
        let ms =
            self.counts.get("time").and_then(|time| time.get("killing, ms")).copied().unwrap_or(1).max(1);
        #[expect(clippy::cast_precision_loss, reason = "both are far below 2^52")]
        let rate = self.kills as f64 * 1_000.0 / ms as f64;
        rate
    }

    /// Everything that was counted.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (group, counts) in &self.counts {
            let _ = writeln!(table, "{group}");
            for (name, count) in counts {
                let _ = writeln!(table, "    {count:>8}  {name}");
            }
        }
        let _ = writeln!(table, "{:.1} kills a second", self.kills_per_second());
        table
    }

    /// The line that counts.
    pub fn last_line(&self) -> String {
        let Self { kills, calls, duplicates, lost, unknown, explained, .. } = self;
        format!(
            "{kills} kills, {calls} calls, {duplicates} duplicates, {lost} lost, {unknown} unknown ({explained} explained)"
        )
    }
}

fn replay(options: &Options) -> String {
    let Options { kills, seed, hosts, guards, .. } = options;
    let mut command = format!("scripts/kill --kills {kills} --seed {seed} --hosts {hosts}");
    for name in guards.names() {
        let _ = write!(command, " --guard-off {name}");
    }
    command
}

/// What the provider was told to do with a call, by kind.
fn behaviour(act: &Act) -> String {
    match act {
        Act { drop: true, .. } => "no answer".into(),
        Act { reset_at: Some(_), .. } => "reset within the answer".into(),
        Act { cut_at: Some(_), .. } => "closed within the answer".into(),
        Act { status: Some(status), retry_after: Some(_), .. } => {
            format!("answered {status} with Retry-After")
        }
        Act { status: Some(status), .. } => format!("answered {status}"),
        Act { delay_ms: 1_000.., .. } => "answered after the lease".into(),
        _ => "answered".into(),
    }
}
