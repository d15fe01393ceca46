//! Which CPU runs what, and the time it takes there.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
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

/// Waits until all other threads of this process, and all of another, have nothing to do: they sleep each time one looks.
pub fn await_idle(other: Option<Pid>, at_most: Duration) -> io::Result<()> {
    const LOOKS: u32 = 3;
    let begin = Instant::now();
    let mut idle = 0;
    while idle < LOOKS {
        if begin.elapsed() > at_most {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(1));
        let is_idle = is_idle(getpid())? && other.map_or(Ok(true), is_idle)?;
        idle = if is_idle { idle + 1 } else { 0 };
    }
    Ok(())
}

/// Whether all threads of a process sleep, but for the calling one.
fn is_idle(process: Pid) -> io::Result<bool> {
    let this = gettid().to_string();
    for thread in fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))? {
        let thread = thread?;
        if thread.file_name().to_str() == Some(&this) {
            continue;
        }
        // A thread may end meanwhile.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state comes after the name, which may hold anything.
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        if !matches!(state, Some('S' | 'I') | None) {
            return Ok(false);
        }
    }
    Ok(true)
}
