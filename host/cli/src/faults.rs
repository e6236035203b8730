//! Crash points, armed from the environment: the process kills itself there, as a power cut would.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use counterfoil_domain::ports::{Faults, NoFaults, Site};
use nix::sys::signal::{Signal, raise};

/// Where, and at which passing of the place, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CrashAt {
    pub(crate) site: Site,
    pub(crate) nth: u32,
}

/// A text that names no crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCrashAt;

impl FromStr for CrashAt {
    type Err = InvalidCrashAt;

    fn from_str(text: &str) -> Result<Self, InvalidCrashAt> {
        let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
        let site = Site::from_name(name).ok_or(InvalidCrashAt)?;
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or(InvalidCrashAt)?;
        Ok(Self { site, nth })
    }
}

/// The port for `crash_at`.
pub(crate) fn faults(crash_at: Option<CrashAt>) -> Arc<dyn Faults> {
    match crash_at {
        None => Arc::new(NoFaults),
        Some(CrashAt { site, nth }) => {
            tracing::warn!(site = site.name(), nth, "this process will kill itself: a crash point is armed");
            Arc::new(Armed { site, left: AtomicU32::new(nth) })
        }
    }
}

struct Armed {
    site: Site,
    left: AtomicU32,
}

impl Faults for Armed {
    fn reach(&self, site: Site) {
        if site != self.site || self.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        // The signal ends every thread before this one goes on; if it cannot be sent, the test sees a live host.
        if let Err(errno) = raise(Signal::SIGKILL) {
            tracing::error!(%errno, "the crash point could not kill the process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_point_is_a_site_and_a_passing() {
        for (text, expected) in [
            ("before-claim", Ok(CrashAt { site: Site::BeforeClaim, nth: 1 })),
            ("in-settle:3", Ok(CrashAt { site: Site::InSettle, nth: 3 })),
            ("in-settle:0", Err(InvalidCrashAt)),
            ("in-settle:", Err(InvalidCrashAt)),
            ("nowhere", Err(InvalidCrashAt)),
            ("", Err(InvalidCrashAt)),
        ] {
            assert_eq!(text.parse(), expected, "{text:?}");
        }
    }
}
