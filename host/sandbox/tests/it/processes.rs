//! What `/proc` says of the processes that a test has started.

use std::fs;
use std::time::{Duration, Instant};

/// A process as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) niceness: i32,
    pub(crate) threads: i32,
    /// Ended, and not yet waited for.
    pub(crate) is_zombie: bool,
}

impl Process {
    pub(crate) fn find(id: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // Its name, in parentheses, may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            id,
            parent: number(1)?,
            group: number(2)?,
            niceness: number(16)?,
            threads: number(17)?,
            is_zombie: fields[0] == "Z",
        })
    }

    /// A file about it; empty once it is gone.
    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.id)).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> String {
        self.read("status")
    }
}

fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").expect("listed");
    entries.filter_map(|entry| Process::find(entry.ok()?.file_name().to_str()?.parse().ok()?))
}

/// Those of this process, the ended that nobody has waited for among them.
pub(crate) fn children() -> Vec<Process> {
    let this = i32::try_from(std::process::id()).expect("a process id");
    all().filter(|process| process.parent == this).collect()
}

/// Those of a group that have not ended.
pub(crate) fn grouped(group: i32) -> Vec<Process> {
    all().filter(|process| process.group == group && !process.is_zombie).collect()
}

/// Whether it has ended, and what was left of it was collected.
pub(crate) fn ended(id: i32) -> bool {
    Process::find(id).is_none()
}

/// Looks until there is something.
pub(crate) async fn until<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < patience, "nothing came of it");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
