//! The bounded log of one step.

use counterfoil_domain::limits::{StepLimits, cut_text};
use counterfoil_domain::ports::{LogLevel, LogLine};

/// Keeps lines until their count or their bytes are used up; what comes after is dropped, and that is noted.
#[derive(Debug)]
pub(crate) struct StepLog {
    lines: Vec<LogLine>,
    lines_max: usize,
    bytes_left: usize,
    truncated: bool,
}

impl StepLog {
    pub(crate) fn new(limits: &StepLimits) -> Self {
        let size = |max: u64| usize::try_from(max).unwrap_or(usize::MAX);
        Self {
            lines: Vec::new(),
            lines_max: size(limits.log_lines_max),
            bytes_left: size(limits.log_bytes_max),
            truncated: false,
        }
    }

    pub(crate) fn push(&mut self, level: LogLevel, message: &str) {
        if self.truncated || self.lines.len() == self.lines_max {
            self.truncated = true;
            return;
        }
        let (message, cut) = cut_text(message, self.bytes_left);
        self.truncated = cut;
        self.bytes_left = self.bytes_left.saturating_sub(message.len());
        self.lines.push(LogLine { level, message });
    }

    /// The lines, and whether some were dropped or cut.
    pub(crate) fn into_lines(self) -> (Vec<LogLine>, bool) {
        (self.lines, self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of `messages`, and whether something was dropped or cut.
    fn check(bytes_max: u64, lines_max: u64, messages: &[&str], kept: &[&str], truncated: bool) {
        let limits = StepLimits { log_bytes_max: bytes_max, log_lines_max: lines_max, ..StepLimits::DEFAULT };
        let mut log = StepLog::new(&limits);
        for message in messages {
            log.push(LogLevel::Info, message);
        }
        let expected: Vec<_> =
            kept.iter().map(|line| LogLine { level: LogLevel::Info, message: (*line).into() }).collect();
        assert_eq!(log.into_lines(), (expected, truncated), "{messages:?}");
    }

    #[test]
    fn a_log_is_whole_at_its_limits_and_cut_one_over() {
        check(6, 2, &["abc", "def"], &["abc", "def"], false);
        check(6, 2, &["abc", "def", ""], &["abc", "def"], true);
        check(7, 9, &["abc", "defgh"], &["abc", "d…"], true);
        check(7, 9, &["abc", "defgh", "i"], &["abc", "d…"], true);
        check(6, 9, &["abcdef", ""], &["abcdef", ""], false);
        check(0, 0, &["a"], &[], true);
        check(20, 9, &["\u{1b}[1m"], &["\\u{1b}[1m"], false);
    }
}
