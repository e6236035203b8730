//! The bounded log of one step.

use counterfoil_domain::limits::{StepLimits, bounded_text};
use counterfoil_domain::ports::{LogLevel, LogLine};

/// What stands at the end of a line that was cut. It comes on top of the limit.
const MARK_BYTES: usize = '…'.len_utf8();

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
        let message = bounded_text(message, self.bytes_left.saturating_add(MARK_BYTES));
        self.truncated = message.len() > self.bytes_left;
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

    fn logged(bytes_max: u64, lines_max: u64, messages: &[&str]) -> (Vec<String>, bool) {
        let mut log = StepLog::new(&StepLimits {
            log_bytes_max: bytes_max,
            log_lines_max: lines_max,
            ..StepLimits::DEFAULT
        });
        for message in messages {
            log.push(LogLevel::Info, message);
        }
        let (lines, truncated) = log.into_lines();
        (lines.into_iter().map(|line| line.message).collect(), truncated)
    }

    #[test]
    fn a_log_is_whole_at_its_limits_and_cut_one_over() {
        let cases: [(u64, u64, &[&str], &[&str], bool); 7] = [
            (6, 2, &["abc", "def"], &["abc", "def"], false),
            (6, 2, &["abc", "def", ""], &["abc", "def"], true),
            (6, 9, &["abc", "defg"], &["abc", "def…"], true),
            (6, 9, &["abc", "defg", "h"], &["abc", "def…"], true),
            (6, 9, &["abcdef", ""], &["abcdef", ""], false),
            (0, 0, &["a"], &[], true),
            (20, 9, &["\u{1b}[1m"], &["\\u{1b}[1m"], false),
        ];
        for (bytes_max, lines_max, messages, lines, truncated) in cases {
            let expected = (lines.iter().map(ToString::to_string).collect(), truncated);
            assert_eq!(logged(bytes_max, lines_max, messages), expected, "{messages:?}");
        }
    }
}
