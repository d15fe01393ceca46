//! Processes and threads as `/proc` lists them.

use ferretto_proto::write::ProcessTree;
use ferretto_proto::write::process_tree::{Process, Thread};

use super::Trackers;
use super::args::Value;
use super::processes::Worth;
use crate::clocks::BOOTTIME;
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, number_of};

/// The kernel's thread that begins all others of its threads.
const KTHREADD: u32 = 2;
const WORKER: &[u8] = b"kworker/";

impl Trackers {
    pub(crate) fn process_tree(&mut self, tree: &[u8], context: &mut Context<'_>) {
        for process in all_bytes(tree, ProcessTree::PROCESSES) {
            self.listed_process(process, context);
        }
        for thread in all_bytes(tree, ProcessTree::THREADS) {
            let get = |field| i64::from(number_of(thread, field).unwrap_or(0) as u32);
            let (tid, tgid) = (get(Thread::TID), get(Thread::TGID));
            self.processes.thread_of(tid, tgid);
            if let Some(name) = bytes_of(thread, Thread::NAME) {
                let name = context.strings.intern_bytes(name);
                let utid = self.processes.thread(tid);
                self.processes.name_thread(utid, name, Worth::ProcessTree);
            }
        }
    }

    fn listed_process(&mut self, process: &[u8], context: &mut Context<'_>) {
        let words: Vec<&[u8]> = all_bytes(process, Process::CMDLINE).collect();
        let Some(mut name) = words.first().copied() else {
            return;
        };
        let get = |field| number_of(process, field).unwrap_or(0);
        let (pid, parent) = (get(Process::PID) as u32, get(Process::PPID) as u32);
        let mut cmdline = words.join(&b' ');
        if parent == KTHREADD && name.starts_with(WORKER) {
            // The kernel adds the queue that the worker served last, which is another one soon.
            let queue = name[WORKER.len()..]
                .iter()
                .position(|byte| matches!(byte, b'+' | b'-'));
            if let Some(at) = queue {
                name = &name[..WORKER.len() + at];
                cmdline = name.to_vec();
            }
        }
        if let [_] = words[..] {
            // Programs that rewrite their command line put spaces between the words.
            name = name.split(|byte| *byte == b' ').next().unwrap_or(name);
        }
        let parent = self.processes.process(parent.into());
        let upid = self.processes.process(pid.into());
        let upid = self.processes.set_parent(upid, parent);
        let (name, cmdline) = (
            context.strings.intern_bytes(name),
            context.strings.intern_bytes(&cmdline),
        );
        self.processes.describe(upid, name, cmdline);
        if let Some(uid) = number_of(process, Process::UID) {
            self.processes.set_uid(upid, uid as u32);
        }
        if let Some(start) = number_of(process, Process::PROCESS_START_FROM_BOOT)
            && let Some(ts) = context.clocks.trace_time(BOOTTIME, start as i64)
        {
            self.processes.start_if_unknown(upid, ts);
        }
        if let Some(is) = number_of(process, Process::IS_KTHREAD) {
            let key = context.strings.intern("is_kthread");
            let arguments = self.processes.arguments(upid);
            arguments.set(key, key, Value::Bool(is != 0));
        }
    }
}
