//! The horizontal axis: busy time to scale, long silences folded to a sliver, so that three days of waiting do not hide
//! the three seconds of work around them.

use chrono::{DateTime, TimeDelta, Utc};

/// A silence shorter than this is part of the picture.
const FOLD_MS_MIN: i64 = 1_000;
/// A silence is folded if it would take more than a fifth of the width beside the work.
const FOLD_BUSY_SHARE: i64 = 4;
/// Width of one folded silence, as a share of the whole.
const FOLD_WIDTH: f64 = 0.06;
/// Width of all folded silences together, as a share of the whole.
const FOLDS_WIDTH_MAX: f64 = 0.4;

/// A stretch of the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Begin.
    pub from: DateTime<Utc>,
    /// End.
    pub to: DateTime<Utc>,
    /// Left edge, from 0 to 1.
    pub left: f64,
    /// Right edge, from 0 to 1.
    pub right: f64,
    /// Whether it is a silence that is not drawn to scale.
    pub folded: bool,
}

/// Where moments fall between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    segments: Vec<Segment>,
}

impl Axis {
    /// An axis from `from` to `to`, on which time outside every interval of `busy` may be folded.
    pub(super) fn new(
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        mut busy: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    ) -> Self {
        busy.sort_unstable();
        let mut silences = Vec::new();
        let mut until = from;
        for (begin, end) in busy {
            if begin > until {
                silences.push((until, begin.min(to)));
            }
            until = until.max(end);
        }
        if to > until {
            silences.push((until, to));
        }
        let length = |(from, to): &(DateTime<Utc>, DateTime<Utc>)| (*to - *from).max(TimeDelta::zero());
        let busy_length = (to - from) - silences.iter().map(length).sum::<TimeDelta>();
        let is_long = |silence: &(DateTime<Utc>, DateTime<Utc>)| {
            let ms = length(silence).num_milliseconds();
            ms > FOLD_MS_MIN && ms.saturating_mul(FOLD_BUSY_SHARE) > busy_length.num_milliseconds()
        };
        silences.retain(is_long);
        Self { segments: lay_out(from, to, &silences) }
    }

    /// Its stretches, from left to right.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Where `at` falls, from 0 to 1; what lies outside falls on the nearer edge.
    pub fn position(&self, at: DateTime<Utc>) -> f64 {
        let Some(segment) = self.segments.iter().find(|segment| at <= segment.to).or(self.segments.last())
        else {
            return 0.0;
        };
        let share = ratio(at - segment.from, segment.to - segment.from).clamp(0.0, 1.0);
        segment.left + share * (segment.right - segment.left)
    }
}

fn lay_out(from: DateTime<Utc>, to: DateTime<Utc>, folds: &[(DateTime<Utc>, DateTime<Utc>)]) -> Vec<Segment> {
    let folded: TimeDelta = folds.iter().map(|(from, to)| *to - *from).sum();
    let scaled = (to - from) - folded;
    let count = f64::from(u32::try_from(folds.len()).unwrap_or(u32::MAX)).max(1.0);
    let fold_width =
        if scaled > TimeDelta::zero() { FOLD_WIDTH.min(FOLDS_WIDTH_MAX / count) } else { 1.0 / count };
    let scale_width = if folds.is_empty() { 1.0 } else { 1.0 - fold_width * count };
    let mut segments: Vec<Segment> = Vec::new();
    let mut push = |from: DateTime<Utc>, to: DateTime<Utc>, width: f64, folded: bool| {
        let left = segments.last().map_or(0.0, |segment| segment.right);
        segments.push(Segment { from, to, left, right: (left + width).min(1.0), folded });
    };
    let mut cursor = from;
    for &(begin, end) in folds {
        if begin > cursor {
            push(cursor, begin, scale_width * ratio(begin - cursor, scaled), false);
        }
        push(begin, end, fold_width, true);
        cursor = end;
    }
    if to > cursor {
        push(cursor, to, scale_width * ratio(to - cursor, scaled), false);
    }
    segments
}

/// `part` of `whole`; 0 of nothing is 0.
fn ratio(part: TimeDelta, whole: TimeDelta) -> f64 {
    let seconds = whole.as_seconds_f64();
    if seconds > 0.0 { part.as_seconds_f64() / seconds } else { 0.0 }
}
