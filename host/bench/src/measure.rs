//! Samples and what is said of them.

use std::time::Duration;

/// Times of the same thing.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The value that this share of the samples does not exceed, in milliseconds; zero without samples.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index of a few thousand samples"
        )]
        let index = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
        sorted.get(index).map_or(0.0, |sample| rounded(sample.as_secs_f64() * 1_000.0))
    }
}

/// Three digits after the point: more would be noise.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// A count as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub(crate) fn number(count: usize) -> f64 {
    count as f64
}
