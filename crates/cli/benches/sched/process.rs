//! What the kernel says of a running process.

use std::time::Duration;

/// CPU time of all threads of a process so far, from `/proc/PID/task/*/schedstat`, which counts nanoseconds. Threads that have
/// ended are not in it; the daemons' live as long as they.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let nanoseconds = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|line| line.split(' ').next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanoseconds)
}

/// Memory of a process, in KB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident, shared pages counted in full.
    pub(crate) rss: u64,
    /// Resident, shared pages divided by those who share them.
    pub(crate) pss: u64,
}

impl Memory {
    /// Nothing if the process has ended.
    pub(crate) fn of(pid: u32) -> Option<Memory> {
        Some(Memory {
            rss: kilobytes(&format!("/proc/{pid}/status"), "VmRSS:")?,
            pss: kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")?,
        })
    }
}

fn kilobytes(file: &str, label: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
