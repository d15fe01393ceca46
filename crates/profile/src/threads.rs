//! The threads of the processes that are counted alone, each with an event on one CPU.
//!
//! [`cpu`](crate::cpu) opens them, and a thread that starts later gets the events of the one that starts it. So each thread is counted once if it had
//! an event opened, or began when its starter had one, but not both. A process may start threads all the time, so its threads are listed again once all
//! have events: if that is another list, nobody knows who started whom, and all begins anew. A thread that the kernel has begun to make before the first
//! list and does not show in the second is not counted.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Events of all CPUs together: each is a descriptor. There may be half as many as the daemon may have.
const MOST_EVENTS: u64 = 1 << 14;

/// How often a process is tried that starts and ends threads meanwhile.
const MOST_TRIES: u32 = 8;

/// Why the threads of some processes cannot be counted alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThreadsError {
    #[error(transparent)]
    Open(io::Error),
    #[error("they have {threads} threads, and with {cpus} CPUs at most {most} can be")]
    TooMany {
        threads: usize,
        cpus: usize,
        most: usize,
    },
    #[error("process {0} starts and ends threads all the time")]
    Restless(i32),
}

/// Opens an event on one of so many CPUs for each thread of these processes. Those that have ended have none.
///
/// # Errors
/// If one cannot be opened, or there would be too many.
pub(crate) fn open_all<E>(
    pids: &BTreeSet<i32>,
    cpus: usize,
    mut open: impl FnMut(i32) -> io::Result<E>,
) -> Result<Vec<E>, ThreadsError> {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = (MOST_EVENTS.min(descriptors / 2) / cpus.max(1) as u64) as usize;
    let mut events = Vec::new();
    for &pid in pids {
        let list = || {
            let threads = of(pid);
            match events.len() + threads.len() <= most {
                true => Ok(threads),
                false => Err(ThreadsError::TooMany {
                    threads: events.len() + threads.len(),
                    cpus,
                    most,
                }),
            }
        };
        let opened = settle(list, &mut open)?.ok_or(ThreadsError::Restless(pid))?;
        events.extend(opened);
    }
    Ok(events)
}

/// Opens an event for each thread in the list. `None` if the list never stays the same.
fn settle<E>(
    mut list: impl FnMut() -> Result<BTreeSet<i32>, ThreadsError>,
    mut open: impl FnMut(i32) -> io::Result<E>,
) -> Result<Option<Vec<E>>, ThreadsError> {
    let mut threads = list()?;
    for _ in 0..MOST_TRIES {
        let mut events = Vec::with_capacity(threads.len());
        for &tid in &threads {
            match open(tid) {
                Ok(event) => events.push(event),
                // It has ended.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                Err(error) => return Err(ThreadsError::Open(error)),
            }
        }
        let after = list()?;
        if after == threads {
            return Ok(Some(events));
        }
        threads = after;
    }
    Ok(None)
}

/// The threads of a process; none if it has ended.
fn of(pid: i32) -> BTreeSet<i32> {
    let Ok(listed) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeSet::new();
    };
    let id = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    listed.filter_map(id).collect()
}

#[cfg(test)]
mod tests;
