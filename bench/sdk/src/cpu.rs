//! Which CPU runs what, and the time it takes there.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Lets the calling thread, and those that it starts from now on, run on one CPU only.
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("pinning to CPU {cpu}: {error}"))
}

/// CPU time of the calling thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// CPU time of all threads that a process has now.
pub fn process_time(pid: Pid) -> io::Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
        let schedstat = fs::read_to_string(thread?.path().join("schedstat"))?;
        let on_cpu = schedstat.split_whitespace().next().unwrap_or_default();
        nanoseconds += on_cpu.parse::<u64>().map_err(io::Error::other)?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
