//! What is going on, on the standard error while a person watches it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the elapsed time moves.
const TICK: Duration = Duration::from_millis(120);

/// A line that shows what is being done, and for how long; it is gone when this is dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins to show. Where the standard error is no terminal, nothing is shown.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
            bar.set_style(style);
        }
        bar.set_message(message.into());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Shows something else from now on.
    pub(crate) fn say(&self, message: impl Into<String>) {
        self.0.set_message(message.into());
    }

    /// What another program says of its progress: each line in the place of the one before, or one after the other where
    /// the standard error is no terminal.
    pub(crate) fn follow(&self, line: &str) {
        if self.0.is_hidden() {
            anstream::eprintln!("{line}");
        } else {
            self.0.set_message(line.to_owned());
        }
    }

    /// A line that stays, also where nobody watches.
    pub(crate) fn note(&self, line: &str) {
        self.0.suspend(|| anstream::eprintln!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
