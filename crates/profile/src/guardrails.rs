//! The daemon's own use of memory and CPU, for configs that limit it.
//!
//! The threads of instances look from time to time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// This process's anonymous memory, in memory and swapped out, in KiB.
pub fn daemon_memory_kb() -> Option<u64> {
    memory_kb(std::process::id())
}

/// Whether this process needs more memory than that.
pub fn daemon_exceeds(most_kb: u64) -> bool {
    daemon_memory_kb().is_some_and(|kb| kb > most_kb)
}

/// The same as [`daemon_memory_kb`] of another process; `None` if it is gone.
pub fn memory_kb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let figure = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(figure("RssAnon:")? + figure("VmSwap:").unwrap_or(0))
}

/// Time that processors have worked for this process.
pub fn daemon_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
