//! The kernel's measurements of a running process.

use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::CpuSet;

/// Returns the CPU time of a process so far, as the scheduler counts it, including threads that have ended.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let pid = libc::pid_t::try_from(pid).expect("a process id");
    let mut clock = 0;
    // SAFETY: `clock` is a valid place for the answer.
    let found = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    assert_eq!(found, 0, "process {pid} has ended");
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer.
    let told = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(told, 0, "process {pid} has ended");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Pins all threads of a process, and threads that they start, to one CPU.
pub(crate) fn pin(pid: u32, cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    for thread in threads.flatten() {
        let id = thread.file_name().to_string_lossy().parse().ok();
        rustix::thread::sched_setaffinity(id.and_then(Pid::from_raw), &one).expect("a CPU of ours");
    }
}

/// Memory of a process, in KB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident, shared pages counted in full.
    pub(crate) rss: u64,
    /// Resident; shared pages are divided by the number of processes that share them.
    pub(crate) pss: u64,
    /// Resident memory without a file: heap and stacks, but not the program or shared memory.
    pub(crate) anonymous: u64,
}

impl Memory {
    /// Reads the memory of a process; `None` if it has ended.
    pub(crate) fn of(pid: u32) -> Option<Memory> {
        let rollup = format!("/proc/{pid}/smaps_rollup");
        Some(Memory {
            rss: kilobytes(&rollup, "Rss:")?,
            pss: kilobytes(&rollup, "Pss:")?,
            anonymous: kilobytes(&rollup, "Anonymous:")?,
        })
    }
}

fn kilobytes(file: &str, label: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
