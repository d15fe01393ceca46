//! The kernel's information about a process, and a way to stop one for a while.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::PATIENCE;

fn proc_file(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

/// Returns the time that a process has been on a processor, which does not depend on other load.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let text = proc_file(pid, "schedstat");
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Returns how often a process was put on a processor.
pub(crate) fn turns(pid: u32) -> u64 {
    let text = proc_file(pid, "schedstat");
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Returns a value in KB from `/proc/pid/status`.
pub(crate) fn status_kb(pid: u32, name: &str) -> u64 {
    let status = proc_file(pid, "status");
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the resident memory of a process, in KB.
pub(crate) fn resident_kb(pid: u32) -> u64 {
    let status = proc_file(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Returns the anonymous memory of a process, in KB.
pub(crate) fn anonymous_kb(pid: u32) -> u64 {
    let rollup = proc_file(pid, "smaps_rollup");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    line.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// A process that is stopped while this lives.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(pid: u32) -> Stopped {
        let stopped = Stopped(Pid::from_raw(pid as i32).unwrap());
        rustix::process::kill_process(stopped.0, Signal::STOP).unwrap();
        let until = Instant::now() + PATIENCE;
        while !proc_file(pid, "stat").contains(") T ") {
            assert!(Instant::now() < until, "it does not stop");
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        rustix::process::kill_process(self.0, Signal::CONT).unwrap();
    }
}
