//! What the figures were taken on, and what else was going on.

use serde_json::{Value, json};

/// Cores and load, for whoever reads the figures later.
pub(crate) fn describe() -> Value {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    json!({ "cores": cores, "profile": profile, "load_before": load() })
}

/// Processes that wanted a core in the last minute, where the system says so.
pub(crate) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// CPU seconds that a process has used, where the system says so; with those of everything that it started, if asked for.
pub(crate) fn cpu_seconds(pid: u32, with_descendants: bool) -> Option<f64> {
    /// Linux counts in hundredths for every program, whatever its own tick.
    const TICKS_PER_SECOND: f64 = 100.0;
    let ticks = |fields: &[String]| -> f64 {
        // Those of children that have ended come behind its own.
        let numbers = fields.get(if with_descendants { 11..15 } else { 11..13 }).unwrap_or_default().iter();
        numbers.filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
    };
    let own = ticks(&stat(pid)?) / TICKS_PER_SECOND;
    let below = |pid| children(pid).into_iter().filter_map(|child| cpu_seconds(child, true)).sum::<f64>();
    Some(if with_descendants { own + below(pid) } else { own })
}

/// The most memory that a process ever had at once, in KiB.
pub(crate) fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

/// Memory that this process and its children have in KiB; what they share counts once.
pub(crate) fn resident_kib() -> usize {
    let this = std::process::id();
    let share = |pid: u32| -> Option<usize> {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()
    };
    children(this).into_iter().chain([this]).filter_map(share).sum()
}

fn children(pid: u32) -> Vec<u32> {
    let child = |entry: std::io::Result<std::fs::DirEntry>| {
        let child: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (stat(child)?.get(1)? == &pid.to_string()).then_some(child)
    };
    std::fs::read_dir("/proc").into_iter().flatten().filter_map(child).collect()
}

/// What `/proc` says of a process, from its state on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; the fields begin behind its closing parenthesis, with the third.
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}
