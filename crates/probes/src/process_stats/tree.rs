//! Describes processes and threads: fills `ProcessTree` messages, each process and thread once.
//!
//! Called for all processes when a recording starts, and for processes that the counters or `linux.ftrace` find later.
//! It describes everything again when readers of the trace may have lost it. A process is always described before its
//! other threads.

use std::collections::HashMap;

use ferretto_proto::write;

use super::config::TreeOptions;
use super::proc_dir::{ProcDir, TaskFile};
use super::status::{StatTimes, Status};
use crate::time::nanos_per_clock_tick;

/// The descriptions written so far, and the buffers for making new ones.
#[derive(Debug)]
pub(crate) struct Tree {
    register: Register,
    /// Status of the thread being looked at, and of its process if that is another one.
    status: Vec<u8>,
    process_status: Vec<u8>,
    tids: Vec<i32>,
}

impl Tree {
    pub(crate) fn new(options: TreeOptions) -> Self {
        let register = Register {
            options,
            described: HashMap::new(),
            nanos_per_tick: nanos_per_clock_tick(),
            text: Vec::new(),
        };
        Self {
            register,
            status: Vec::new(),
            process_status: Vec::new(),
            tids: Vec::new(),
        }
    }

    /// The process of thread `tid` in the description that was written.
    pub(crate) fn process_of(&self, tid: i32) -> Option<i32> {
        self.register.described.get(&tid).copied()
    }

    /// Forgets `tid`, whose name or command line changed, so that it is described again when it is next seen.
    pub(crate) fn forget(&mut self, tid: i32) {
        self.register.described.remove(&tid);
    }

    /// Forgets all descriptions, so that everything is described again when it is next seen.
    pub(crate) fn forget_all(&mut self) {
        self.register.described.clear();
    }

    /// Describes process `pid` and all its threads, whether or not they were described before. Returns whether there
    /// was anything to describe.
    pub(crate) fn describe_with_threads(
        &mut self,
        procfs: &ProcDir,
        pid: i32,
        tree: &mut write::ProcessTree<'_>,
    ) -> bool {
        let status = Status::parse(procfs.read(pid, TaskFile::Status, &mut self.status));
        if status.tgid != Some(pid) {
            return false; // It ended meanwhile, and a thread may even have got its id.
        }
        self.register.describe_process(procfs, pid, &status, tree);

        // Only a thread's own status file has its name and its ids in namespaces.
        let in_detail = self.register.options.thread_names || status.is_namespaced();
        procfs.threads(pid, &mut self.tids);
        for &tid in self.tids.iter().filter(|&&tid| tid != pid) {
            let text: &[u8] = if in_detail {
                procfs.read(tid, TaskFile::Status, &mut self.status)
            } else {
                b""
            };
            self.register
                .describe_thread(tid, pid, &Status::parse(text), tree);
        }
        true
    }

    /// Describes thread `tid`, and before it its process, unless they were described. Returns whether it described
    /// anything.
    pub(crate) fn describe_if_new(
        &mut self,
        procfs: &ProcDir,
        tid: i32,
        tree: &mut write::ProcessTree<'_>,
    ) -> bool {
        // Thread 0 is the idle thread of each CPU. Procfs does not have it.
        if tid <= 0 || self.register.described.contains_key(&tid) {
            return false;
        }
        let status = Status::parse(procfs.read(tid, TaskFile::Status, &mut self.status));
        let Some(tgid) = status.tgid else { return false };
        if tgid == tid {
            self.register.describe_process(procfs, tid, &status, tree);
            return true;
        }
        if !self.register.described.contains_key(&tgid) {
            let process = Status::parse(procfs.read(tgid, TaskFile::Status, &mut self.process_status));
            if process.tgid == Some(tgid) {
                self.register.describe_process(procfs, tgid, &process, tree);
            }
        }
        self.register.describe_thread(tid, tgid, &status, tree);
        true
    }
}

/// Writes entries of the tree and remembers the process of each.
#[derive(Debug)]
struct Register {
    options: TreeOptions,
    /// The process of each described thread. Holds at most as many entries as the kernel has thread ids.
    described: HashMap<i32, i32>,
    nanos_per_tick: u64,
    text: Vec<u8>,
}

impl Register {
    fn describe_process(
        &mut self,
        procfs: &ProcDir,
        pid: i32,
        status: &Status<'_>,
        tree: &mut write::ProcessTree<'_>,
    ) {
        let start = self.options.process_age.then(|| {
            StatTimes::parse(procfs.read(pid, TaskFile::Stat, &mut self.text)).map(|times| times.start)
        });
        let cmdline = procfs.read(pid, TaskFile::Cmdline, &mut self.text);
        tree.processes(|process| {
            process.pid(pid).ppid(status.ppid).uid(status.uid);
            for id in status.namespaced_ids() {
                process.nspid(id);
            }
            // Each argument ends with a NUL. Some kernels leave out the last NUL. Empty arguments are left out.
            let mut arguments = cmdline
                .split(|&byte| byte == 0)
                .filter(|word| !word.is_empty())
                .peekable();
            if arguments.peek().is_some() {
                for argument in arguments {
                    process.cmdline(argument);
                }
            } else {
                // Kernel threads and zombies have no command line.
                process.cmdline(status.name).cmdline_is_comm(true);
            }
            if let Some(Some(ticks)) = start {
                process.process_start_from_boot(ticks.saturating_mul(self.nanos_per_tick));
            }
            if let Some(kthread) = status.kthread {
                process.is_kthread(kthread);
            }
        });
        self.described.insert(pid, pid);
        if self.options.main_thread {
            self.describe_thread(pid, pid, status, tree);
        }
    }

    fn describe_thread(
        &mut self,
        tid: i32,
        tgid: i32,
        status: &Status<'_>,
        tree: &mut write::ProcessTree<'_>,
    ) {
        tree.threads(|thread| {
            thread.tid(tid).tgid(tgid);
            for id in status.namespaced_ids() {
                thread.nstid(id);
            }
            if self.options.thread_names && !status.name.is_empty() {
                thread.name(status.name);
            }
        });
        self.described.insert(tid, tgid);
    }
}
