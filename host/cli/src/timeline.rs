//! A run's timeline in the terminal: attempts one after the other, effects nested with their receipts.
//!
//! A state is told by its word, its sign and its colour, so that any one of them may be missing.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, Utc};
use counterfoil_domain::limits::bounded_text;
use serde::Deserialize;
use serde_json::Value;

use crate::output::{hung, one_line, spoken_time};

/// As much of the API's timeline as is printed.
#[derive(Debug, Deserialize)]
pub(crate) struct Timeline {
    pub(crate) run: Run,
    duration_ms: i64,
    pub(crate) entries: Vec<Entry>,
    /// Where they go on.
    next: Option<String>,
    audit: Vec<Audit>,
}

/// The run itself.
#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) workflow: String,
    version: u32,
    pub(crate) state: String,
    record: Option<String>,
    trigger: String,
    admitted_at: DateTime<Utc>,
    output: Option<Value>,
    error: Option<Fault>,
}

/// A step.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub(crate) node: String,
    iteration: Vec<u32>,
    kind: String,
    block: Option<String>,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    queued_at: DateTime<Utc>,
    choice: Option<String>,
    error: Option<Fault>,
    logs: Option<Logs>,
    spans: Vec<Span>,
    effects: Vec<Effect>,
}

#[derive(Debug, Deserialize)]
struct Logs {
    lines: Vec<Log>,
    truncated: bool,
}

#[derive(Debug, Deserialize)]
struct Log {
    level: String,
    message: String,
}

#[derive(Debug, Deserialize)]
struct Span {
    phase: String,
    attempt: u32,
    ms: i64,
    ended: Option<String>,
}

/// An effect.
#[derive(Debug, Deserialize)]
struct Effect {
    id: String,
    safety: String,
    state: String,
    summary: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Fault {
    code: String,
    /// The block's own, or a worker's.
    block_code: Option<String>,
    message: String,
}

#[derive(Debug, Deserialize)]
struct Audit {
    at: DateTime<Utc>,
    actor: Value,
    action: String,
}

/// The sign of a state of a run, a step or a receipt.
pub(crate) fn mark(state: &str) -> &'static str {
    look(state).0
}

fn look(state: &str) -> (&'static str, AnsiColor) {
    match state {
        "succeeded" | "committed" | "verified" => ("✓", AnsiColor::Green),
        "failed" | "rejected" => ("✗", AnsiColor::Red),
        "cancelled" | "abandoned" | "compensated" => ("⊘", AnsiColor::BrightBlack),
        "blocked" => ("■", AnsiColor::Yellow),
        "unknown" => ("?", AnsiColor::Yellow),
        "running" | "dispatched" => ("▶", AnsiColor::Cyan),
        "skipped" => ("–", AnsiColor::BrightBlack),
        _ if state.starts_with("waiting") => ("◷", AnsiColor::Blue),
        _ => ("·", AnsiColor::BrightBlack),
    }
}

fn coloured(state: &str) -> String {
    let (sign, colour) = look(state);
    let style = colour.on_default();
    format!("{style}{sign} {}{style:#}", state.replace('_', " "))
}

/// Milliseconds as a person says them.
fn spoken(ms: i64) -> String {
    const SECOND: i64 = 1_000;
    const MINUTE: i64 = 60 * SECOND;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    match ms {
        ..SECOND => format!("{ms} ms"),
        SECOND..MINUTE => format!("{}.{} s", ms / SECOND, ms % SECOND / 100),
        MINUTE..HOUR => format!("{} min {} s", ms / MINUTE, ms % MINUTE / SECOND),
        HOUR..DAY => format!("{} h {} min", ms / HOUR, ms % HOUR / MINUTE),
        _ => format!("{} d {} h", ms / DAY, ms % DAY / HOUR),
    }
}

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

impl Timeline {
    /// All of it, in lines, with colours.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = self.write(&mut text);
        text.truncate(text.trim_end().len());
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let run = &self.run;
        let about = run.record.as_ref().map_or_else(String::new, |record| format!(" · about {record}"));
        let by = if run.trigger == "event" { "an event" } else { "a call" };
        let workflow = format!("{BOLD}{} v{}{BOLD:#}", run.workflow, run.version);
        writeln!(out, "{}  {workflow}  {}  {}", run.id, coloured(&run.state), spoken(self.duration_ms))?;
        let begun = spoken_time(run.admitted_at);
        writeln!(out, "{DIM}started by {by}{about} · {begun}{DIM:#}\n")?;

        let width = self.entries.iter().map(|entry| entry.name().chars().count()).max().unwrap_or_default();
        for entry in &self.entries {
            entry.write(out, width, run.admitted_at)?;
        }
        if let Some(next) = &self.next {
            writeln!(out, "{DIM}further steps: counterfoil run show {} --after {next}{DIM:#}", run.id)?;
        }
        for audit in &self.audit {
            let actor = audit.actor.as_str().map_or_else(|| audit.actor.to_string(), Into::into);
            writeln!(out, "{} {DIM}{actor}: {}{DIM:#}", offset(audit.at, run.admitted_at), audit.action)?;
        }
        if let Some(output) = run.output.as_ref().filter(|output| !output.is_null()) {
            writeln!(out, "\noutput  {output}")?;
        }
        if let Some(error) = &run.error {
            writeln!(out, "\nerror   {}", error.line("        │ "))?;
        }
        Ok(())
    }
}

impl Entry {
    /// The node, and in which iteration.
    pub(crate) fn name(&self) -> String {
        self.iteration.iter().fold(self.node.clone(), |name, index| format!("{name}[{index}]"))
    }

    fn write(&self, out: &mut String, width: usize, begun: DateTime<Utc>) -> std::fmt::Result {
        const INDENT: &str = "          ";
        /// Before what a foreign text has on further lines.
        const HUNG: &str = "          │ ";
        let name = self.name();
        let pad = width.saturating_sub(name.chars().count());
        let what = self.block.as_ref().map_or_else(|| self.kind.clone(), |block| format!("block {block}"));
        let choice = self.choice.as_ref().map_or_else(String::new, |choice| format!(" → {choice}"));
        writeln!(
            out,
            "{} {BOLD}{name}{BOLD:#}{:pad$}  {}  {DIM}{what}{choice}{DIM:#}",
            offset(self.queued_at, begun),
            "",
            coloured(&self.state),
        )?;
        let spans: Vec<String> =
            self.spans.iter().map(|span| span.text(self.spans_tell_attempts())).collect();
        if !spans.is_empty() {
            writeln!(out, "{INDENT}{DIM}{}{DIM:#}", spans.join(" · "))?;
        }
        for effect in &self.effects {
            let Effect { id, safety, state, summary, reason } = effect;
            let summary = one_line(summary);
            writeln!(out, "{INDENT}└ {}  {summary}  {DIM}{safety}{DIM:#}  {id}", coloured(state))?;
            if let Some(reason) = reason {
                writeln!(out, "{INDENT}  {DIM}{}{DIM:#}", one_line(reason))?;
            }
        }
        if let Some(logs) = &self.logs {
            for line in logs.shown() {
                writeln!(out, "{INDENT}{DIM}{}{DIM:#}", hung(&line, HUNG))?;
            }
        }
        if let Some(error) = &self.error {
            writeln!(out, "{INDENT}{}", error.line(HUNG))?;
        }
        Ok(())
    }

    fn spans_tell_attempts(&self) -> bool {
        self.attempt > 1
    }
}

impl Logs {
    /// Its last lines: what a step said before it ended explains its end.
    fn shown(&self) -> Vec<String> {
        /// Of one step: a screen holds several.
        const LINES_MAX: usize = 20;
        const LINE_BYTES_MAX: usize = 500;
        let Self { lines, truncated } = self;
        let left_out = lines.len().saturating_sub(LINES_MAX);
        let is_cut = |line: &Log| line.message.len() > LINE_BYTES_MAX;
        let shown = &lines[left_out..];
        let mut text = vec![];
        if left_out > 0 || shown.iter().any(is_cut) {
            let which =
                if left_out > 0 { format!("{left_out} lines before these") } else { "lines are cut".into() };
            text.push(format!("({which}; all of it with -o json, and on the page)"));
        }
        text.extend(
            shown
                .iter()
                .map(|Log { level, message }| format!("{level}: {}", bounded_text(message, LINE_BYTES_MAX))),
        );
        if *truncated {
            text.push("(it logged more than is kept)".into());
        }
        text
    }
}

impl Span {
    fn text(&self, with_attempt: bool) -> String {
        let attempt = if with_attempt && self.phase == "running" {
            format!("attempt {} ", self.attempt)
        } else {
            String::new()
        };
        let ended = match self.ended.as_deref() {
            None | Some("settled") => "",
            Some("lost") => ", host lost",
            Some("handed_back") => ", handed back",
            Some("retry") => ", to be tried again",
            Some("blocked") => ", outcome unknown",
            Some(_) => ", ended",
        };
        format!("{attempt}{} {}{ended}", self.phase, spoken(self.ms))
    }
}

impl Fault {
    fn line(&self, indent: &str) -> String {
        let red = AnsiColor::Red.on_default();
        let own = self.block_code.as_ref().map_or_else(String::new, |own| format!(" ({})", one_line(own)));
        format!("{red}{}{own}{red:#} {}", self.code, hung(&self.message, indent))
    }
}

/// Since the beginning of the run, in seconds.
fn offset(at: DateTime<Utc>, begun: DateTime<Utc>) -> String {
    let ms = (at - begun).num_milliseconds().max(0);
    format!("{DIM}{:>+9}{DIM:#}", format!("+{}.{:03}", ms / 1_000, ms % 1_000))
}

#[cfg(test)]
mod tests;
