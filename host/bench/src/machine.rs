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

/// CPU seconds that a process has used, its threads and its ended children included, where the system says so.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    /// Linux counts in hundredths for every program, whatever its own tick.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; the fields begin behind its closing parenthesis, with the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11..15)?.iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Some(ticks / TICKS_PER_SECOND)
}
