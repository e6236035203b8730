//! Bars of a timeline: where each span and effect falls, in per cent of the width.

use std::fmt;

use chrono::{DateTime, Utc};
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_domain::timeline::{Axis, Phase, Span};

use super::show;
use crate::api::effects::Effect;
use crate::api::timeline::Timeline;

/// The narrowest bar that can be seen, in per cent.
const WIDTH_MIN: f64 = 0.5;

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

/// A step's spans.
pub(super) fn span_bars(timeline: &Timeline, spans: &[Span]) -> Vec<Bar> {
    spans
        .iter()
        .map(|span| {
            let ended = span.ended.map_or_else(String::new, |ended| format!(", {}", ended.name().replace('_', " ")));
            let length = show::length(&span.ms);
            let title = format!("{} {length}, attempt {}{ended}", span.phase.name(), span.attempt);
            bar(&timeline.axis, span.from, span.to.unwrap_or(timeline.now), phase_class(span.phase), title)
        })
        .collect()
}

/// An effect, from when it was sent until its answer was recorded.
pub(super) fn effect_bar(timeline: &Timeline, effect: &Effect) -> Bar {
    let from = effect.dispatched_at.unwrap_or(effect.prepared_at);
    let is_open = matches!(effect.state, ReceiptState::Dispatched | ReceiptState::Unknown);
    let to = if is_open { timeline.now } else { effect.answered_at.unwrap_or(from) };
    let ms = (to - from).num_milliseconds();
    let title = format!("{}: {}, {}", effect.slot, effect.state, show::length(&ms));
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
            bar(&timeline.axis, segment.from, segment.to, "fold", format!("{} of silence, folded", show::length(&ms)))
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

const fn phase_class(phase: Phase) -> &'static str {
    phase.name()
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
