//! Crash points, armed from the environment: the process kills itself there, as a power cut would, or the processes that
//! run its blocks, as one of these might.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use counterfoil_domain::ports::{Faults, NoFaults, Site};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;

/// Where, at which passing of the place, counted from 1, and who.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CrashAt {
    pub(crate) site: Site,
    pub(crate) nth: u32,
    pub(crate) whom: Whom,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Host,
    Runners,
}

/// What follows a site at which the host goes on and its runners do not.
const RUNNERS: &str = "@runners";

/// A text that names no crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCrashAt;

impl FromStr for CrashAt {
    type Err = InvalidCrashAt;

    fn from_str(text: &str) -> Result<Self, InvalidCrashAt> {
        let (text, whom) = match text.strip_suffix(RUNNERS) {
            Some(text) => (text, Whom::Runners),
            None => (text, Whom::Host),
        };
        let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
        let site = Site::from_name(name).ok_or(InvalidCrashAt)?;
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or(InvalidCrashAt)?;
        Ok(Self { site, nth, whom })
    }
}

/// The port for `crash_at`.
pub(crate) fn faults(crash_at: Option<CrashAt>) -> Arc<dyn Faults> {
    match crash_at {
        None => Arc::new(NoFaults),
        Some(CrashAt { site, nth, whom }) => {
            tracing::warn!(
                site = site.name(),
                nth,
                ?whom,
                "something will be killed: a crash point is armed"
            );
            Arc::new(Armed { site, left: AtomicU32::new(nth), whom })
        }
    }
}

struct Armed {
    site: Site,
    left: AtomicU32,
    whom: Whom,
}

impl Faults for Armed {
    fn reach(&self, site: Site) {
        if site != self.site || self.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        // The signal ends every thread before this one goes on; if it cannot be sent, the test sees a live host.
        let killed = match self.whom {
            Whom::Host => raise(Signal::SIGKILL),
            Whom::Runners => runners().into_iter().try_for_each(|runner| {
                tracing::info!(%runner, "the crash point kills a runner");
                kill(runner, Signal::SIGKILL)
            }),
        };
        if let Err(errno) = killed {
            tracing::error!(%errno, "the crash point could not kill");
        }
    }
}

/// The processes that run blocks for this one.
fn runners() -> Vec<Pid> {
    let this = std::process::id().to_string();
    let process = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let process: i32 = entry.file_name().to_str()?.parse().ok()?;
        let said = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        // Each is told who its host is.
        said.ends_with(&format!("\0__run\0{this}\0")).then(|| Pid::from_raw(process))
    };
    std::fs::read_dir("/proc").into_iter().flatten().filter_map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_point_is_a_site_and_a_passing() {
        for (text, expected) in [
            ("before-claim", Ok(CrashAt { site: Site::BeforeClaim, nth: 1, whom: Whom::Host })),
            ("in-settle:3", Ok(CrashAt { site: Site::InSettle, nth: 3, whom: Whom::Host })),
            ("mid-answer:2@runners", Ok(CrashAt { site: Site::MidAnswer, nth: 2, whom: Whom::Runners })),
            ("mid-answer@hosts", Err(InvalidCrashAt)),
            ("in-settle:0", Err(InvalidCrashAt)),
            ("in-settle:", Err(InvalidCrashAt)),
            ("nowhere", Err(InvalidCrashAt)),
            ("", Err(InvalidCrashAt)),
        ] {
            assert_eq!(text.parse(), expected, "{text:?}");
        }
    }
}
