//! Finds the process that owns a socket or has a file open.
//!
//! The checks call it, and `ferretto open` does when its port is taken. Only root can see the descriptors of other users' processes.

use std::fmt;

use super::Machine;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) pid: i32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Returns all visible processes.
pub(crate) fn all_processes(machine: &dyn Machine) -> Vec<i32> {
    let names = machine.list("/proc").unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// Returns a process with its name. For a binary with several programs, that is the name of the applet.
pub(crate) fn process_named(machine: &dyn Machine, pid: i32) -> Option<Holder> {
    let comm = machine.read(&format!("/proc/{pid}/comm")).ok()?;
    let comm = comm.trim_end();
    let name = match comm {
        "ferretto" | "tracebox" => {
            let words = machine.read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let applet = words.split('\0').nth(1).filter(|word| {
                !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            });
            applet.unwrap_or(comm).to_owned()
        }
        _ => comm.to_owned(),
    };
    Some(Holder { name, pid })
}

/// Returns the processes with an open descriptor whose target in `/proc/PID/fd` is `wanted`, together with the result of `wanted`. A process appears
/// once for each such descriptor.
pub(crate) fn opened<T>(
    machine: &dyn Machine,
    wanted: impl Fn(&str) -> Option<T>,
) -> impl Iterator<Item = (Holder, T)> {
    all_processes(machine).into_iter().flat_map(move |pid| {
        let folder = format!("/proc/{pid}/fd");
        let fds = machine.list(&folder).unwrap_or_default();
        let links = fds
            .iter()
            .filter_map(|fd| machine.link(&format!("{folder}/{fd}")).ok());
        let found: Vec<T> = links.filter_map(|to| wanted(&to)).collect();
        let holder = (!found.is_empty()).then(|| process_named(machine, pid)).flatten();
        found
            .into_iter()
            .filter_map(move |what| Some((holder.clone()?, what)))
    })
}

/// Returns the process that has the socket of this inode.
pub(crate) fn with_socket(machine: &dyn Machine, inode: u64) -> Option<Holder> {
    let name = format!("socket:[{inode}]");
    opened(machine, |open| (open == name).then_some(()))
        .map(|(holder, ())| holder)
        .next()
}
