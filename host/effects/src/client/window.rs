//! The time within which a first byte may leave.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A span of time that begins when it is opened, shorter than the lease that it is opened under. It is read off a
/// clock that counts suspended time: a host that was frozen past its lease finds the window closed when it thaws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWindow {
    /// On that clock. `None` if it could not be read: then nothing may leave.
    closes_at: Option<Duration>,
}

impl SendWindow {
    /// Opens a window now.
    pub fn open(length: Duration) -> Self {
        Self { closes_at: now().and_then(|now| now.checked_add(length)) }
    }

    /// Whether a first byte may still leave.
    pub fn is_open(&self) -> bool {
        self.closes_at.zip(now()).is_some_and(|(closes_at, now)| now < closes_at)
    }
}

fn now() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_closes_after_its_length() {
        assert!(!SendWindow::open(Duration::ZERO).is_open());
        assert!(SendWindow::open(Duration::from_mins(1)).is_open());
        assert!(
            !SendWindow::open(Duration::MAX).is_open(),
            "a length that the clock cannot hold opens nothing"
        );

        let window = SendWindow::open(Duration::from_millis(5));
        let begun = std::time::Instant::now();
        while window.is_open() {
            assert!(begun.elapsed() < Duration::from_secs(10), "a window of five milliseconds stays open");
            std::thread::yield_now();
        }
    }
}
