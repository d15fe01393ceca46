//! Names of processes and threads.
//!
//! The reader of samples calls it with process trees, descriptors and kernel events, and formats ask it for names. The memory is bounded: of more than
//! [`MAX_NAMES`] processes or threads, later ones stay without a name.

use std::collections::HashMap;

use ferretto_proto::write::{
    FtraceEvent, FtraceEventBundle, ProcessDescriptor, ProcessTree, ThreadDescriptor, TrackDescriptor,
    process_tree,
};
use ferretto_wire::{Reader, Value};

use super::Thread;
use crate::packet::{bytes, varint};

/// The most processes, and the most threads.
const MAX_NAMES: usize = 1 << 20;
/// The most bytes of a name.
const MAX_NAME: usize = 256;

/// The source of a thread's name. A later source in this list takes precedence, as by upstream's trace processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Witness {
    KernelEvent,
    ProcessTree,
    Program,
}

/// Names of processes and threads, as last mentioned in the trace.
#[derive(Debug, Default)]
pub(crate) struct Names {
    processes: HashMap<u32, String>,
    threads: HashMap<u32, (Witness, String)>,
}

impl Names {
    /// Returns the name of a process: the last part of the path of its program, or else the name of its main thread.
    pub(crate) fn process(&self, pid: u32) -> Option<&str> {
        let own = self.processes.get(&pid).map(|name| last_part(name));
        own.filter(|name| !name.is_empty())
            .or_else(|| self.thread_name(pid))
    }

    /// Returns the name of a thread; that of its process stands in for a main thread without one.
    pub(crate) fn thread(&self, thread: Thread) -> Option<&str> {
        let own = self.thread_name(thread.tid);
        own.or_else(|| self.process(thread.pid).filter(|_| thread.pid == thread.tid))
    }

    fn thread_name(&self, tid: u32) -> Option<&str> {
        self.threads.get(&tid).map(|(_, name)| name.as_str())
    }

    /// Names a process that the trace does not name.
    pub(crate) fn suggest_process(&mut self, pid: u32, name: &str) {
        if self.process(pid).is_none() {
            self.name_process(pid, name.as_bytes());
        }
    }

    fn name_process(&mut self, pid: u32, name: &[u8]) {
        if let Some(name) = usable(name, self.processes.len(), self.processes.contains_key(&pid)) {
            self.processes.insert(pid, name);
        }
    }

    /// Takes in a name from a kernel event, such as the switch to a thread.
    pub(crate) fn name_by_kernel(&mut self, tid: u32, name: &[u8]) {
        self.name_thread(Witness::KernelEvent, tid, name);
    }

    fn name_thread(&mut self, witness: Witness, tid: u32, name: &[u8]) {
        let known = self.threads.get(&tid);
        // Most events repeat a name.
        if known.is_some_and(|(by, known)| *by > witness || (*by == witness && known.as_bytes() == name)) {
            return;
        }
        if let Some(name) = usable(name, self.threads.len(), known.is_some()) {
            self.threads.insert(tid, (witness, name));
        }
    }

    /// Takes in a `ProcessTree`.
    pub(crate) fn process_tree(&mut self, content: &[u8]) {
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (ProcessTree::PROCESSES, Value::Bytes(process)) => {
                    let pid = varint(process, process_tree::Process::PID);
                    let name = bytes(process, process_tree::Process::CMDLINE);
                    let is_comm = varint(process, process_tree::Process::CMDLINE_IS_COMM) == Some(1);
                    match (pid, name) {
                        (Some(pid), Some(name)) if is_comm => {
                            self.name_thread(Witness::ProcessTree, pid as u32, name)
                        }
                        (Some(pid), Some(name)) => self.name_process(pid as u32, name),
                        _ => {}
                    }
                }
                (ProcessTree::THREADS, Value::Bytes(thread)) => {
                    let tid = varint(thread, process_tree::Thread::TID);
                    let name = bytes(thread, process_tree::Thread::NAME);
                    if let (Some(tid), Some(name)) = (tid, name) {
                        self.name_thread(Witness::ProcessTree, tid as u32, name);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes in a `TrackDescriptor`.
    pub(crate) fn track_descriptor(&mut self, content: &[u8]) {
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (TrackDescriptor::PROCESS, Value::Bytes(process)) => {
                    let pid = varint(process, ProcessDescriptor::PID);
                    let name = bytes(process, ProcessDescriptor::PROCESS_NAME);
                    if let (Some(pid), Some(name)) = (pid, name) {
                        self.name_process(pid as u32, name);
                    }
                }
                (TrackDescriptor::THREAD, Value::Bytes(thread)) => {
                    let tid = varint(thread, ThreadDescriptor::TID);
                    let name = bytes(thread, ThreadDescriptor::THREAD_NAME);
                    if let (Some(tid), Some(name)) = (tid, name) {
                        self.name_thread(Witness::Program, tid as u32, name);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the names of threads from the `sched_switch` and `task_rename` events of a bundle.
    pub(crate) fn kernel_events(&mut self, bundle: &[u8]) {
        /// Field numbers of `SchedSwitchFtraceEvent` and `TaskRenameFtraceEvent`.
        const NEXT_COMM: u32 = 5;
        const NEXT_PID: u32 = 6;
        const RENAMED_PID: u32 = 1;
        const NEW_COMM: u32 = 3;
        for field in Reader::new(bundle).map_while(Result::ok) {
            let (FtraceEventBundle::EVENT, Value::Bytes(event)) = (field.number, field.value) else {
                continue;
            };
            for field in Reader::new(event).map_while(Result::ok) {
                let Value::Bytes(event) = field.value else {
                    continue;
                };
                let (pid, name) = match field.number {
                    FtraceEvent::SCHED_SWITCH => (NEXT_PID, NEXT_COMM),
                    FtraceEvent::TASK_RENAME => (RENAMED_PID, NEW_COMM),
                    _ => continue,
                };
                if let (Some(pid), Some(name)) = (varint(event, pid), bytes(event, name)) {
                    self.name_by_kernel(pid as u32, name);
                }
            }
        }
    }
}

/// Returns a name to be stored, if there is room among so many others.
fn usable(name: &[u8], others: usize, is_known: bool) -> Option<String> {
    if name.is_empty() || (others >= MAX_NAMES && !is_known) {
        return None;
    }
    Some(String::from_utf8_lossy(name.get(..MAX_NAME).unwrap_or(name)).into_owned())
}

/// Returns the last part of a path. Names of threads of the kernel have slashes too, and no path.
fn last_part(name: &str) -> &str {
    match name.starts_with('/') {
        true => name.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default(),
        false => name,
    }
}
