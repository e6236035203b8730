//! What a host, the runners of its guests and its compilers have in memory, as the system counts it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What a host's children are told to be.
const COMPILER: &str = "__compile";
const RUNNER: &str = "__run";

/// The most that was seen.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Peaks {
    /// Of the host and its runners.
    pub(crate) host_kib: u64,
    /// Of any one compiler.
    pub(crate) child_kib: u64,
    /// Compilers that the host still had at the end.
    pub(crate) children_left: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Watch {
    host: u32,
}

pub(crate) struct Watching {
    watch: Watch,
    over: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<Peaks>>,
}

impl Watch {
    pub(crate) fn new(host: u32) -> anyhow::Result<Self> {
        let watch = Self { host };
        watch.host_kib().map(|_| watch)
    }

    /// Looks again and again, until it is stopped.
    pub(crate) fn start(host: u32) -> anyhow::Result<Watching> {
        let watch = Self::new(host)?;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let task = tokio::spawn(async move {
            let mut peaks = Peaks::default();
            while !told.load(Ordering::Relaxed) {
                peaks.host_kib = peaks.host_kib.max(watch.host_kib()?);
                for child in watch.children(COMPILER) {
                    // It may be gone by now.
                    peaks.child_kib = peaks.child_kib.max(status_kib(child, "VmHWM:").unwrap_or_default());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(peaks)
        });
        Ok(Watching { watch, over, task })
    }

    /// What the host holds in memory now, with those that run its guests.
    pub(crate) fn host_kib(self) -> anyhow::Result<u64> {
        let host = status_kib(self.host, "VmRSS:").context("the host is gone")?;
        // One may have ended since it was listed.
        let runners = self.children(RUNNER).into_iter().filter_map(|runner| status_kib(runner, "VmRSS:"));
        Ok(host + runners.sum::<u64>())
    }

    fn children(self, command: &str) -> Vec<u32> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
        ids.filter(|id| {
            let is_child = status_kib(*id, "PPid:") == Some(u64::from(self.host));
            let said = || fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            is_child && said().split('\0').nth(1) == Some(command)
        })
        .collect()
    }
}

impl Watching {
    pub(crate) async fn stop(self) -> anyhow::Result<Peaks> {
        self.over.store(true, Ordering::Relaxed);
        let peaks = self.task.await??;
        Ok(Peaks { children_left: self.watch.children(COMPILER).len(), ..peaks })
    }
}

/// A number in what the system says of a process; `None` once it is gone.
fn status_kib(process: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
