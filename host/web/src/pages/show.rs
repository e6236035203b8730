//! How things are written for people: states, times, lengths of time, payloads.

use std::fmt;

use askama::filters::HtmlSafe;
use chrono::{DateTime, Utc};
use counterfoil_domain::limits::bounded_text;
use serde_json::Value;

/// Of a payload on a page; the API has the whole of it.
const PAYLOAD_BYTES_SHOWN_MAX: usize = 16 << 10;

/// A state, by word, shape and colour. The word comes from our own names, never from a guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Badge {
    word: &'static str,
    shape: &'static str,
    tone: &'static str,
}

/// How a state of a run, step or effect is shown.
pub(crate) fn badge(state: &str) -> Badge {
    let (word, shape, tone) = match state {
        "pending" => ("pending", "○", "quiet"),
        "planned" => ("planned", "○", "quiet"),
        "prepared" => ("prepared", "○", "quiet"),
        "queued" => ("queued", "○", "quiet"),
        "running" => ("running", "▶", "busy"),
        "dispatched" => ("dispatched", "▶", "busy"),
        "waiting" => ("waiting", "◷", "wait"),
        "waiting_for_delay" => ("waiting for delay", "◷", "wait"),
        "waiting_for_retry" => ("waiting for retry", "↻", "wait"),
        "retrying" => ("retrying", "↻", "wait"),
        "waiting_for_signal" => ("waiting for signal", "◷", "wait"),
        "waiting_for_child" => ("waiting for child", "◷", "wait"),
        "waiting_for_worker" => ("waiting for worker", "◷", "wait"),
        "blocked" => ("blocked", "■", "ask"),
        "unknown" => ("unknown", "?", "ask"),
        "succeeded" => ("succeeded", "✓", "good"),
        "committed" => ("committed", "✓", "good"),
        "verified" => ("verified", "✓", "good"),
        "skipped" => ("skipped", "–", "quiet"),
        "compensated" => ("compensated", "↶", "quiet"),
        "abandoned" => ("abandoned", "⊘", "quiet"),
        "cancelled" => ("cancelled", "⊘", "quiet"),
        "failed" => ("failed", "✕", "bad"),
        "rejected" => ("rejected", "✕", "bad"),
        "paused" => ("paused", "‖", "wait"),
        _ => ("other", "·", "quiet"),
    };
    Badge { word, shape, tone }
}

impl fmt::Display for Badge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, shape, tone } = self;
        write!(f, r#"<span class="badge {tone}"><span aria-hidden="true">{shape}</span> {word}</span>"#)
    }
}

impl HtmlSafe for Badge {}

/// A moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(DateTime<Utc>);

/// How a moment is written.
pub(crate) fn moment(at: &DateTime<Utc>) -> Moment {
    Moment(*at)
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.0.format("%Y-%m-%dT%H:%M:%S%.3fZ");
        let person = self.0.format("%Y-%m-%d %H:%M:%S%.3f");
        write!(f, r#"<time datetime="{machine}">{person}<span class="zone"> UTC</span></time>"#)
    }
}

impl HtmlSafe for Moment {}

/// A length of time in at most two units.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a template passes references")]
pub(crate) fn length(ms: &i64) -> String {
    let ms = (*ms).max(0);
    let (seconds, minutes, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    if ms < 1_000 {
        format!("{ms} ms")
    } else if seconds < 10 {
        format!("{seconds}.{} s", ms % 1_000 / 100)
    } else if minutes < 1 {
        format!("{seconds} s")
    } else if hours < 1 {
        format!("{minutes} min {} s", seconds % 60)
    } else if days < 1 {
        format!("{hours} h {} min", minutes % 60)
    } else {
        format!("{days} d {} h", hours % 24)
    }
}

/// A name of ours, without its underscores.
pub(crate) fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// A number of bytes.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a template passes references")]
pub(crate) fn bytes(count: &u64) -> String {
    match *count {
        count if count < 10 << 10 => format!("{count} B"),
        count if count < 10 << 20 => format!("{} KiB", count >> 10),
        count => format!("{} MiB", count >> 20),
    }
}

/// A payload, indented, and cut where it is long.
pub(crate) fn payload(value: &Value) -> String {
    text(&serde_json::to_string_pretty(value).unwrap_or_default())
}

/// Foreign text, its control characters spelled out, and cut where it is long.
pub(crate) fn text(text: &str) -> String {
    bounded_text(text, PAYLOAD_BYTES_SHOWN_MAX)
}

/// The error of a step or run: its code, and its message.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
    /// Whether there is a page of advice for the code.
    pub(crate) has_advice: bool,
}

/// Reads an error as it is stored.
pub(crate) fn failure(error: &Value) -> Failure {
    let code = error["code"].as_str().unwrap_or("error");
    let mut message = error["message"].as_str().map_or_else(|| error.to_string(), ToOwned::to_owned);
    if let Some(block_code) = error["block_code"].as_str() {
        message = format!("{block_code}: {message}");
    }
    let has_advice = counterfoil_domain::code::Code::from_name(code).is_some();
    Failure { code: text(code), message: text(&message), has_advice }
}

/// One line of a block's log.
#[derive(Debug, Clone)]
pub(crate) struct LogLine {
    pub(crate) level: String,
    pub(crate) message: String,
}

/// Reads the logs of a step as they are stored: a list of lines, or an object that has one.
pub(crate) fn logs(logs: &Value) -> Vec<LogLine> {
    let lines = logs.as_array().or_else(|| logs["lines"].as_array());
    let line = |line: &Value| LogLine {
        level: text(line["level"].as_str().unwrap_or("info")),
        message: text(line["message"].as_str().or(line.as_str()).unwrap_or_default()),
    };
    lines.map_or_else(Vec::new, |lines| lines.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_at_most_two_units() {
        for (ms, expected) in [
            (-5, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (59_999, "59 s"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
            (3 * 86_400_000 + 7_200_000, "3 d 2 h"),
        ] {
            assert_eq!(length(&ms), expected);
        }
    }

    #[test]
    fn every_state_has_a_word_a_shape_and_a_tone() {
        use counterfoil_domain::receipt::ReceiptState;
        use counterfoil_store::run::RunState;
        let names = ReceiptState::ALL.iter().map(|state| state.name());
        let names = names.chain(RunState::ALL.iter().map(|state| state.name()));
        for name in names {
            assert_eq!(badge(name).word, name, "{name}");
        }
    }
}
