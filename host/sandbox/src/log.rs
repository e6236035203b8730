//! The bounded log of one step.

use counterfoil_domain::limits::{StepLimits, cut_text};
use counterfoil_domain::ports::{LogLevel, LogLine};

/// A stream that a guest writes text to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

impl Source {
    const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    const fn level(self) -> LogLevel {
        match self {
            Self::Stdout => LogLevel::Info,
            Self::Stderr => LogLevel::Warn,
        }
    }
}

/// Keeps lines until their count or their bytes are used up; what comes after is dropped, and that is noted.
#[derive(Debug)]
pub(crate) struct StepLog {
    lines: Vec<LogLine>,
    lines_max: usize,
    bytes_left: usize,
    truncated: bool,
    /// What was written to each source since its last line end.
    unfinished: [Vec<u8>; Source::ALL.len()],
}

impl StepLog {
    pub(crate) fn new(limits: &StepLimits) -> Self {
        let size = |max: u64| usize::try_from(max).unwrap_or(usize::MAX);
        Self {
            lines: Vec::new(),
            lines_max: size(limits.log_lines_max),
            bytes_left: size(limits.log_bytes_max),
            truncated: false,
            unfinished: Default::default(),
        }
    }

    /// Takes what a guest writes to a stream; each line of it becomes one of the log. Bytes that are no UTF-8 are replaced.
    pub(crate) fn write(&mut self, source: Source, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.truncated {
                return;
            }
            // One byte more than there is room for says that there is none.
            let room = (self.bytes_left + 1).saturating_sub(self.unfinished[source as usize].len());
            let (line, is_end) = match piece.split_last() {
                Some((b'\n', line)) => (line, true),
                _ => (piece, false),
            };
            self.unfinished[source as usize].extend_from_slice(&line[..line.len().min(room)]);
            if is_end || line.len() >= room {
                self.end_line(source);
            }
        }
    }

    fn end_line(&mut self, source: Source) {
        let line = std::mem::take(&mut self.unfinished[source as usize]);
        let line = String::from_utf8_lossy(&line);
        self.push(source.level(), line.strip_suffix('\r').unwrap_or(&line));
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
    pub(crate) fn into_lines(mut self) -> (Vec<LogLine>, bool) {
        for source in Source::ALL {
            if !self.unfinished[source as usize].is_empty() {
                self.end_line(source);
            }
        }
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

    #[test]
    fn what_is_written_to_a_stream_becomes_lines_however_it_is_cut() {
        use LogLevel::{Info, Warn};
        use Source::{Stderr, Stdout};
        type Written = &'static [(Source, &'static [u8])];
        type Kept = &'static [(LogLevel, &'static str)];
        let cases: [(Written, Kept, bool); 7] = [
            (&[(Stdout, b"one\ntwo")], &[(Info, "one"), (Info, "two")], false),
            (&[(Stdout, b"on"), (Stderr, b"x\n"), (Stdout, b"e\r\n")], &[(Warn, "x"), (Info, "one")], false),
            (&[(Stdout, b"\n\n")], &[(Info, ""), (Info, "")], false),
            (&[(Stdout, b"\xc3"), (Stdout, b"\xa4\xff")], &[(Info, "ä\u{fffd}")], false),
            (&[(Stdout, b"0123456789abcdef")], &[(Info, "0123456789abcdef")], false),
            (
                &[(Stdout, b"0123456789abcdef"), (Stdout, b"gh"), (Stderr, b"x\n")],
                &[(Info, "0123456789abc…")],
                true,
            ),
            (&[(Stdout, b"1\n2\n3\n4\n5\n")], &[(Info, "1"), (Info, "2"), (Info, "3"), (Info, "4")], true),
        ];
        for (written, kept, truncated) in cases {
            let limits = StepLimits { log_bytes_max: 16, log_lines_max: 4, ..StepLimits::DEFAULT };
            let mut log = StepLog::new(&limits);
            for (source, bytes) in written {
                log.write(*source, bytes);
            }
            let lines: Vec<_> =
                kept.iter().map(|(level, line)| LogLine { level: *level, message: (*line).into() }).collect();
            assert_eq!(log.into_lines(), (lines, truncated), "{written:?}");
        }
    }

    #[test]
    fn a_flood_is_not_kept() {
        let (mut log, chunk) = (StepLog::new(&StepLimits::DEFAULT), vec![b'x'; 64 << 10]);
        for _ in 0..1_000 {
            log.write(Source::Stdout, &chunk);
        }
        assert!(log.unfinished.iter().all(Vec::is_empty));
        let (lines, truncated) = log.into_lines();
        assert!(truncated && lines.len() == 1 && lines[0].message.len() <= 64 << 10);
    }
}
