//! The targets of sampling: the processes, threads and CPUs that the flags name, checked before anything is recorded.
//!
//! The [flags](super::args) make it. The [config](super::config) chooses processes and CPUs by it. The profiler knows no single threads: it samples their
//! whole processes, and the reader of the trace leaves the other threads out of the list and of formats other than the trace.

use std::collections::BTreeSet;
use std::str::FromStr;

use ferretto_probes::cpu_ranges;

use crate::samples::Thread;

/// The CPUs that the kernel runs.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A process, thread or CPU that is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("-p {0}: there is no such process")]
    NoProcess(i32),
    #[error("-t {0}: there is no such thread")]
    NoThread(i32),
    #[error("-C {asked}: CPU {cpu} is not online; use CPUs of {online}")]
    Offline { asked: String, cpu: u32, online: String },
}

/// The targets of sampling.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Targets {
    /// All processes if it is empty.
    pub(super) processes: Vec<i32>,
    /// All threads of these processes if it is empty.
    threads: Vec<i32>,
    /// All CPUs if it is empty.
    pub(super) cpus: Vec<u32>,
}

impl Targets {
    /// Takes the ids of the flags; of threads, their processes as well.
    ///
    /// # Errors
    /// If a process, thread or CPU is not there.
    pub(super) fn of(
        processes: &[i32],
        threads: &[i32],
        cpus: Option<&CpuList>,
    ) -> Result<Targets, TargetError> {
        let mut processes = processes.to_vec();
        let is_gone = |pid: &&i32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        if let Some(gone) = processes.iter().find(is_gone) {
            return Err(TargetError::NoProcess(*gone));
        }
        for tid in threads {
            let process = process_of(*tid).ok_or(TargetError::NoThread(*tid))?;
            if !processes.contains(&process) {
                processes.push(process);
            }
        }
        if let Some(asked) = cpus {
            check_online(asked)?;
        }
        Ok(Targets {
            processes,
            threads: threads.to_vec(),
            cpus: cpus.iter().flat_map(|list| &list.cpus).copied().collect(),
        })
    }

    /// Whether a thread was asked for, if threads were.
    pub(super) fn has(&self, thread: Thread) -> bool {
        self.threads.is_empty() || self.threads.contains(&(thread.tid as i32))
    }

    /// Completes "no samples".
    pub(super) fn described(&self) -> &'static str {
        match (self.processes.len(), self.threads.len()) {
            (0, _) => "",
            (1, 0) => " of that process",
            (_, 0) => " of these processes",
            (_, 1) => " of that thread",
            (_, _) => " of these threads",
        }
    }
}

/// Returns the process of a thread, if there is such a thread.
fn process_of(tid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// CPUs as `perf -C` names them: `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CpuList {
    typed: String,
    cpus: BTreeSet<u32>,
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(typed: &str) -> Result<CpuList, String> {
        match cpu_ranges::parse(typed) {
            Some(cpus) if !cpus.is_empty() => Ok(CpuList {
                typed: typed.to_owned(),
                cpus: cpus.into_iter().collect(),
            }),
            _ => Err("write CPUs as in 0,2-3".to_owned()),
        }
    }
}

/// A kernel that does not say which CPUs are online leaves it to the profiler to find out.
fn check_online(asked: &CpuList) -> Result<(), TargetError> {
    let online = std::fs::read_to_string(ONLINE).unwrap_or_default();
    let online: Option<CpuList> = online.trim().parse().ok();
    let Some(online) = online else { return Ok(()) };
    match asked.cpus.difference(&online.cpus).next() {
        None => Ok(()),
        Some(cpu) => Err(TargetError::Offline {
            asked: asked.typed.clone(),
            cpu: *cpu,
            online: online.typed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_as_for_perf() {
        for (typed, cpus) in [("0", &[0][..]), ("0-1", &[0, 1]), ("2,0-1,1", &[0, 1, 2])] {
            let list: CpuList = typed.parse().unwrap();
            assert_eq!(list.cpus.into_iter().collect::<Vec<_>>(), cpus, "{typed}");
        }
        for typed in ["", "1-", "a", "2-1", "0,,1", "-1", "0-4294967295"] {
            assert!(typed.parse::<CpuList>().is_err(), "{typed}");
        }
    }
}
