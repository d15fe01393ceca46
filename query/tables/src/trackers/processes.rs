//! Threads and processes, with numbers that are distinct over time.
//!
//! All trackers ask it whom a `tid` or `pid` means at a time. The numbers (`utid`, `upid`) are those of the trace processor, so they depend on the order of
//! questions. All of them stay in memory until the end.

use hashbrown::HashMap;

use super::args::{Args, Pending};
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{PROCESS, THREAD};
use crate::strings::{StringId, Strings};

/// The number of a thread.
pub(crate) type Utid = u32;
/// The number of a process.
pub(crate) type Upid = u32;

/// How much a source of thread names is worth. A name gives way to one that is worth as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    None,
    Ftrace,
    ProcessTree,
    /// A description of a track says of what type the thread is.
    TypeOfThread,
    TrackDescriptor,
    Constant,
}

#[derive(Debug)]
struct Thread {
    tid: i64,
    name: Option<StringId>,
    worth: Worth,
    start: Option<i64>,
    end: Option<i64>,
    upid: Option<Upid>,
    is_main: Option<bool>,
}

#[derive(Debug)]
struct Process {
    pid: i64,
    name: Option<StringId>,
    start: Option<i64>,
    end: Option<i64>,
    parent: Option<Upid>,
    uid: Option<u32>,
    cmdline: Option<StringId>,
    args: Pending,
}

/// All threads and processes so far.
#[derive(Debug)]
pub(crate) struct Processes {
    threads: Vec<Thread>,
    processes: Vec<Process>,
    /// The threads that have a `tid`, the latest last.
    tids: HashMap<i64, Vec<Utid>>,
    pids: HashMap<i64, Upid>,
    /// Threads that belong to one process, which is not known yet.
    together: Vec<(Utid, Utid)>,
    /// Processes that were begun by a thread whose process is not known yet.
    begun_by: Vec<(Utid, Upid)>,
    /// Associations that contradict each other.
    pub(crate) errors: u64,
    /// Threads that [`thread`](Processes::thread) found, at the lowest bits of their `tid`, and the age in which it did.
    found: Vec<(i64, u64, Utid)>,
    /// Grows with whatever may change what is found.
    age: u64,
}

/// The threads that are remembered.
const REMEMBERED: usize = 1 << 12;

/// The idle thread, and its process.
pub(crate) const IDLE: u32 = 0;

impl Processes {
    pub(crate) fn new(strings: &mut Strings) -> Processes {
        let mut processes = Processes {
            threads: Vec::new(),
            processes: Vec::new(),
            tids: HashMap::new(),
            pids: HashMap::new(),
            together: Vec::new(),
            begun_by: Vec::new(),
            errors: 0,
            found: vec![(0, 0, 0); REMEMBERED],
            age: 1,
        };
        processes.add_process(0);
        let utid = processes.start_thread(None, 0);
        let idle = &mut processes.threads[utid as usize];
        (idle.upid, idle.is_main) = (Some(IDLE), Some(true));
        processes.pids.insert(0, IDLE);
        processes.name_thread(utid, strings.intern("swapper"), Worth::Constant);
        processes
    }

    fn add_process(&mut self, pid: i64) -> Upid {
        self.processes.push(Process {
            pid,
            name: None,
            start: None,
            end: None,
            parent: None,
            uid: None,
            cmdline: None,
            args: Pending::default(),
        });
        (self.processes.len() - 1) as Upid
    }

    /// Returns a new thread.
    pub(crate) fn start_thread(&mut self, ts: Option<i64>, tid: i64) -> Utid {
        self.threads.push(Thread {
            tid,
            name: None,
            worth: Worth::None,
            start: ts,
            end: None,
            upid: None,
            is_main: None,
        });
        let utid = (self.threads.len() - 1) as Utid;
        self.tids.entry(tid).or_default().push(utid);
        self.age += 1;
        utid
    }

    /// Ends the thread that has this `tid`, and its process if it is the main one.
    pub(crate) fn end_thread(&mut self, ts: i64, tid: i64) {
        let Some(utid) = self.find_thread(tid, None) else {
            return;
        };
        let thread = &mut self.threads[utid as usize];
        thread.end = Some(ts);
        self.age += 1;
        let upid = thread.upid;
        if let Some(utids) = self.tids.get_mut(&tid) {
            utids.retain(|other| *other != utid);
        }
        if let Some(upid) = upid
            && self.processes[upid as usize].pid == tid
        {
            self.processes[upid as usize].end = Some(ts);
            self.pids.remove(&tid);
        }
    }

    fn is_alive(&self, utid: Utid) -> bool {
        let thread = &self.threads[utid as usize];
        if thread.end.is_some() {
            return false;
        }
        let Some(upid) = thread.upid else { return true };
        let process = &self.processes[upid as usize];
        process.end.is_none() && self.pids.get(&process.pid).is_none_or(|current| *current == upid)
    }

    fn find_thread(&self, tid: i64, pid: Option<i64>) -> Option<Utid> {
        let mut utids = self.tids.get(&tid)?.iter().rev().copied();
        utids.find(|utid| {
            self.is_alive(*utid)
                && self.threads[*utid as usize]
                    .upid
                    .is_none_or(|upid| pid.is_none_or(|pid| self.processes[upid as usize].pid == pid))
        })
    }

    /// Returns the thread that has this `tid` now.
    #[inline]
    pub(crate) fn thread(&mut self, tid: i64) -> Utid {
        let place = tid as usize % REMEMBERED;
        let (known, age, utid) = self.found[place];
        if (known, age) == (tid, self.age) {
            return utid;
        }
        let utid = match self.find_thread(tid, None) {
            Some(utid) => utid,
            None => self.start_thread(None, tid),
        };
        self.found[place] = (tid, self.age, utid);
        utid
    }

    /// Returns the thread that has this `tid` in the process that has this `pid`.
    pub(crate) fn thread_of(&mut self, tid: i64, pid: i64) -> Utid {
        let upid = self.process(pid);
        let pid = self.processes[upid as usize].pid;
        let utid = match self.find_thread(tid, Some(pid)) {
            Some(utid) => utid,
            None => self.start_thread(None, tid),
        };
        if self.threads[utid as usize].upid.is_none() {
            self.put_into(utid, upid, tid == pid);
        }
        if let Some(upid) = self.threads[utid as usize].upid {
            self.resolve(utid, upid);
        }
        utid
    }

    /// Returns the process that has this `pid` now.
    pub(crate) fn process(&mut self, pid: i64) -> Upid {
        if let Some(upid) = self.pids.get(&pid) {
            return *upid;
        }
        let upid = self.add_process(pid);
        self.pids.insert(pid, upid);
        self.age += 1;
        self.thread_of(pid, pid);
        upid
    }

    /// Returns a new process with its main thread.
    pub(crate) fn start_process(
        &mut self,
        ts: Option<i64>,
        parent: Option<Upid>,
        pid: i64,
        name: Option<StringId>,
        worth: Worth,
    ) -> Upid {
        self.pids.remove(&pid);
        self.tids.remove(&pid);
        self.age += 1;
        let utid = self.start_thread(ts, pid);
        if let Some(name) = name {
            self.name_thread(utid, name, worth);
        }
        let upid = self.process(pid);
        let process = &mut self.processes[upid as usize];
        process.start = ts.or(process.start);
        process.name = name;
        process.parent = parent.or(process.parent);
        upid
    }

    /// Says that the thread `by` has begun this process.
    pub(crate) fn set_begun_by(&mut self, upid: Upid, by: Utid) {
        match self.threads[by as usize].upid {
            Some(parent) => self.processes[upid as usize].parent = Some(parent),
            None => self.begun_by.push((by, upid)),
        }
    }

    /// Sets the parent of a process. If it had another one, its `pid` was used again: returns a new process then.
    pub(crate) fn set_parent(&mut self, upid: Upid, parent: Upid) -> Upid {
        let process = &mut self.processes[upid as usize];
        if process.parent.is_some_and(|known| known != parent) {
            let pid = process.pid;
            return self.start_process(None, Some(parent), pid, None, Worth::None);
        }
        process.parent = Some(parent);
        upid
    }

    /// Returns the name of a thread.
    pub(crate) fn name_of(&self, utid: Utid) -> Option<StringId> {
        self.threads[utid as usize].name
    }

    /// Names a thread.
    #[inline]
    pub(crate) fn name_thread(&mut self, utid: Utid, name: StringId, worth: Worth) {
        let thread = &mut self.threads[utid as usize];
        if worth >= thread.worth {
            (thread.name, thread.worth) = (Some(name), worth);
        }
    }

    /// Names a thread, and its process if it is the main thread.
    pub(crate) fn name_thread_and_process(&mut self, utid: Utid, name: StringId, worth: Worth) {
        self.name_thread(utid, name, worth);
        let thread = &self.threads[utid as usize];
        if let Some(upid) = thread.upid
            && self.processes[upid as usize].pid == thread.tid
        {
            self.processes[upid as usize].name = Some(name);
        }
    }

    pub(crate) fn describe(&mut self, upid: Upid, name: StringId, cmdline: StringId) {
        let process = &mut self.processes[upid as usize];
        (process.name, process.cmdline) = (Some(name), Some(cmdline));
    }

    pub(crate) fn set_uid(&mut self, upid: Upid, uid: u32) {
        self.processes[upid as usize].uid = Some(uid);
    }

    /// Returns the arguments of a process.
    pub(crate) fn arguments(&mut self, upid: Upid) -> &mut Pending {
        &mut self.processes[upid as usize].args
    }

    pub(crate) fn name_if_unnamed(&mut self, upid: Upid, name: StringId) {
        self.processes[upid as usize].name.get_or_insert(name);
    }

    pub(crate) fn start_if_unknown(&mut self, upid: Upid, ts: i64) {
        self.processes[upid as usize].start.get_or_insert(ts);
    }

    pub(crate) fn process_of(&self, utid: Utid) -> Option<Upid> {
        self.threads[utid as usize].upid
    }

    /// Says that two threads belong to one process, whichever that is.
    pub(crate) fn associate(&mut self, one: Utid, other: Utid) {
        let upids = [one, other].map(|utid| self.threads[utid as usize].upid);
        let (utid, upid) = match upids {
            [Some(upid), None] => (other, upid),
            [None, Some(upid)] => (one, upid),
            [Some(one), Some(other)] if one != other => {
                self.errors += 1;
                return;
            }
            _ => {
                self.together.push((one, other));
                return;
            }
        };
        self.put_into(utid, upid, self.is_main(utid, upid));
        self.resolve(utid, upid);
    }

    fn is_main(&self, utid: Utid, upid: Upid) -> bool {
        self.threads[utid as usize].tid == self.processes[upid as usize].pid
    }

    fn put_into(&mut self, utid: Utid, upid: Upid, is_main: bool) {
        let thread = &mut self.threads[utid as usize];
        (thread.upid, thread.is_main) = (Some(upid), Some(is_main));
        self.age += 1;
    }

    /// Puts all threads that wait for this one into its process.
    fn resolve(&mut self, utid: Utid, upid: Upid) {
        if self.together.is_empty() && self.begun_by.is_empty() {
            return;
        }
        let mut resolved = vec![utid];
        while let Some(utid) = resolved.pop() {
            let processes = &mut self.processes;
            self.begun_by.retain(|(by, child)| {
                if *by == utid {
                    processes[*child as usize].parent = Some(upid);
                }
                *by != utid
            });
            let before = resolved.len();
            self.together.retain(|(one, other)| match utid {
                it if it == *one => {
                    resolved.push(*other);
                    false
                }
                it if it == *other => {
                    resolved.push(*one);
                    false
                }
                _ => true,
            });
            for other in resolved[before..].iter().copied() {
                self.put_into(other, upid, self.is_main(other, upid));
            }
        }
    }

    /// Writes the tables `process` and `thread`.
    pub(crate) fn write(&mut self, args: &mut Args, strings: &Strings, output: &mut Output<'_>) {
        for (upid, process) in self.processes.iter_mut().enumerate() {
            let uid = process.uid.map(i64::from);
            let set = args.finish_with(&mut process.args, strings, output);
            let row = [
                Cell::from(upid as i64),
                Cell::from(upid as i64),
                Cell::from(process.pid),
                Cell::from(process.name),
                Cell::from(process.start),
                Cell::from(process.end),
                Cell::from(process.parent),
                Cell::from(uid),
                Cell::from(uid.map(|uid| uid % 100_000)),
                Cell::from(uid.map(|uid| uid / 100_000)),
                Cell::from(process.cmdline),
                Cell::from(set),
                Cell::NULL,
            ];
            output.push(&PROCESS, &row, strings);
        }
        for (utid, thread) in self.threads.iter().enumerate() {
            let row = [
                Cell::from(utid as i64),
                Cell::from(utid as i64),
                Cell::from(thread.tid),
                Cell::from(thread.name),
                Cell::from(thread.start),
                Cell::from(thread.end),
                Cell::from(thread.upid),
                Cell::from(thread.is_main),
                Cell::from(i64::from(utid as Utid == IDLE)),
                Cell::NULL,
            ];
            output.push(&THREAD, &row, strings);
        }
    }
}
