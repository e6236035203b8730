//! Bars of a timeline: where each span and effect falls, in per cent of the width.

use std::fmt;

use chrono::{DateTime, Utc};
use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_domain::timeline::{Axis, Span};

use super::show;
use crate::api::effects::Effect;
use crate::api::timeline::{Entry, Timeline};

/// The narrowest bar that can be seen, in per cent.
const WIDTH_MIN: f64 = 0.5;

/// Of a step's row, in pixels.
const ROW_HEIGHT: u32 = 20;

/// A share of the width, in per cent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}%", self.0)
    }
}

/// One bar.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) left: Percent,
    pub(super) width: Percent,
    /// What it stands for; also its style.
    pub(super) class: &'static str,
    /// In words.
    pub(super) title: String,
}

impl Bar {
    /// In pixels. Executions fill their row; waits are thinner, so that shape tells them apart as well as colour.
    pub(super) fn height(&self) -> u32 {
        match self.class {
            "waiting" => 4,
            "retrying" => 8,
            _ => 14,
        }
    }

    /// In pixels, from the upper edge of its row.
    pub(super) fn top(&self) -> u32 {
        (ROW_HEIGHT - self.height()) / 2
    }
}

/// A moment written on the axis.
#[derive(Debug)]
pub(super) struct Tick {
    pub(super) left: Percent,
    pub(super) text: String,
    /// It stands at the right edge, and is written to the left of its mark.
    pub(super) is_last: bool,
}

fn bar(axis: &Axis, from: DateTime<Utc>, to: DateTime<Utc>, class: &'static str, title: String) -> Bar {
    let left = axis.position(from) * 100.0;
    let width = (axis.position(to) * 100.0 - left).max(WIDTH_MIN);
    // A bar at the right edge is drawn inside it.
    let left = left.min(100.0 - width).max(0.0);
    Bar { left: Percent(left), width: Percent(width), class, title }
}

/// What a step did; of one that settled without being run, the moment.
pub(super) fn step_bars(timeline: &Timeline, entry: &Entry) -> Vec<Bar> {
    match entry.ended_at {
        Some(at) if entry.spans.is_empty() => {
            vec![bar(&timeline.axis, at, at, "instant", format!("{} at once", entry.state))]
        }
        _ => entry.spans.iter().map(|span| span_bar(timeline, span)).collect(),
    }
}

fn span_bar(timeline: &Timeline, span: &Span) -> Bar {
    let ended = span.ended.map_or_else(String::new, |ended| format!(", {}", show::words(ended.name())));
    let length = show::length(&span.ms);
    let title = format!("{} {length}, attempt {}{ended}", span.phase.name(), span.attempt);
    bar(&timeline.axis, span.from, span.to.unwrap_or(timeline.now), span.phase.name(), title)
}

/// An effect, from when it was sent until its answer was recorded, or it was resolved.
pub(super) fn effect_bar(timeline: &Timeline, effect: &Effect) -> Bar {
    let from = effect.dispatched_at.unwrap_or(effect.prepared_at);
    let is_open = matches!(effect.state, ReceiptState::Dispatched | ReceiptState::Unknown);
    let to = if is_open { timeline.now } else { effect.answered_at.or(effect.resolved_at).unwrap_or(from) };
    // Of a read, only its answer has a time.
    let length = match effect.dispatched_at {
        None if effect.safety == Safety::ReadOnly.name() => "a read".to_owned(),
        _ => show::length(&(to - from).num_milliseconds()),
    };
    let title = format!("{}: {}, {length}", effect.slot, effect.state);
    bar(&timeline.axis, from, to, effect_class(effect.state), title)
}

/// Folded silences.
pub(super) fn folds(timeline: &Timeline) -> Vec<Bar> {
    timeline
        .axis
        .segments()
        .iter()
        .filter(|segment| segment.folded)
        .map(|segment| {
            let ms = (segment.to - segment.from).num_milliseconds();
            bar(
                &timeline.axis,
                segment.from,
                segment.to,
                "fold",
                format!("{} of silence, folded", show::length(&ms)),
            )
        })
        .collect()
}

/// The beginning, the end of each folded silence, and the end, as time since the beginning.
pub(super) fn ticks(timeline: &Timeline) -> Vec<Tick> {
    /// Ticks nearer than this would be written over each other, in per cent.
    const DISTANCE_MIN: f64 = 18.0;
    let segments = timeline.axis.segments();
    let Some(begin) = segments.first().map(|segment| segment.from) else { return Vec::new() };
    let text = |at: DateTime<Utc>| format!("+{}", show::length(&(at - begin).num_milliseconds()));
    let mut ticks = vec![Tick { left: Percent(0.0), text: "0".into(), is_last: false }];
    for segment in segments.iter().filter(|segment| segment.folded) {
        let left = segment.right * 100.0;
        let before = ticks.last().map_or(0.0, |tick| tick.left.0);
        if left - before >= DISTANCE_MIN && 100.0 - left >= DISTANCE_MIN {
            ticks.push(Tick { left: Percent(left), text: text(segment.to), is_last: false });
        }
    }
    if let Some(end) = segments.last() {
        ticks.push(Tick { left: Percent(100.0), text: text(end.to), is_last: true });
    }
    ticks
}

const fn effect_class(state: ReceiptState) -> &'static str {
    match state {
        ReceiptState::Committed | ReceiptState::Verified => "effect good",
        ReceiptState::Rejected => "effect bad",
        ReceiptState::Unknown => "effect ask",
        ReceiptState::Planned | ReceiptState::Prepared | ReceiptState::Dispatched => "effect busy",
        ReceiptState::Compensated | ReceiptState::Abandoned => "effect quiet",
    }
}
