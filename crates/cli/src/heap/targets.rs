//! Running processes: those that the flags name, checked before anything is recorded, and those that a command leaves behind.
//!
//! [`run`](super::run) calls it.

use std::collections::HashSet;
use std::ffi::OsStr;

use ferretto_heap_client::LIBRARY_FILE;
use ferretto_heap_client::handshake::{HEAP_SOCK_NAME, MARK};

/// A process that cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("-p {0}: there is no such process")]
    NoProcess(i32),
    #[error("-p {pid}: cannot look at this process: {source}; profile it as its user or as root")]
    Forbidden { pid: i32, source: std::io::Error },
    #[error(
        "-p {0}: this process does not carry the client, which must be there from its start; start it with LD_PRELOAD={LIBRARY_FILE}, or with `ferretto heap -- COMMAND`"
    )]
    NoClient(i32),
}

/// Checks processes.
///
/// # Errors
/// If one is not there, or cannot be profiled.
pub(super) fn check(pids: &[i32]) -> Result<(), TargetError> {
    for pid in pids {
        let maps = std::fs::read(format!("/proc/{pid}/maps"));
        match maps {
            Ok(maps) if carries_client(&maps) => {}
            Ok(_) => return Err(TargetError::NoClient(*pid)),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(TargetError::NoProcess(*pid));
            }
            Err(source) => return Err(TargetError::Forbidden { pid: *pid, source }),
        }
    }
    Ok(())
}

/// A process that goes on though its recording has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Survivor {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// Returns the processes that still carry the client, of those that were profiled or were to look for the profiler at this `socket`.
pub(super) fn survivors(profiled: &HashSet<u32>, socket: Option<&OsStr>) -> Vec<Survivor> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |pid: u32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let variable = socket.map(|socket| [HEAP_SOCK_NAME.as_bytes(), b"=", socket.as_encoded_bytes()].concat());
    let looks_there = |pid| {
        let wanted = variable.as_deref();
        wanted.is_some_and(|wanted| {
            read(pid, "environ")
                .split(|byte| *byte == 0)
                .any(|it| it == wanted)
        })
    };
    let mut survivors: Vec<Survivor> = pids
        .filter(|pid| profiled.contains(pid) || looks_there(*pid))
        .filter(|pid| carries_client(&read(*pid, "maps")))
        .map(|pid| Survivor {
            pid,
            name: String::from_utf8_lossy(read(pid, "comm").trim_ascii()).into_owned(),
        })
        .collect();
    survivors.sort_by_key(|survivor| survivor.pid);
    survivors
}

/// Whether a process has the client's mark among its mappings.
fn carries_client(maps: &[u8]) -> bool {
    let mark = format!("/memfd:{MARK}");
    let mut lines = maps.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let path = words.nth(5).map(<[u8]>::trim_ascii);
        let path = path.map(|path| path.strip_suffix(b" (deleted)").unwrap_or(path));
        path == Some(mark.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_the_mark_of_the_client() {
        let with = b"7f00-7f01 rw-p 00000000 00:01 1234    /memfd:ferretto_heap (deleted)\n";
        let without =
            b"7f00-7f01 r-xp 00000000 00:01 1234    /usr/lib/libferretto_heap.so\n7f02-7f03 rw-p 0 00:00 0\n";
        assert!(carries_client(with));
        assert!(!carries_client(without));
        assert!(!carries_client(b""));
    }

    #[test]
    fn processes_that_are_not_there_or_lack_the_client_are_named() {
        let own = std::process::id() as i32;
        let error = check(&[own]).unwrap_err().to_string();
        assert!(error.contains("LD_PRELOAD"), "{error}");
        let error = check(&[i32::MAX]).unwrap_err().to_string();
        assert!(error.contains("no such process"), "{error}");
    }
}
