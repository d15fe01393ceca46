//! Reads the state of a tracefs directory from its files, for [`super::Shown`], and finds hints at the programs behind a
//! change.
//!
//! Each look reads a few files of one line; [`super::Depth::Quick`] reads two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Depth, Shown};
use crate::ftrace::stats::CpuStats;
use crate::ftrace::tracefs::{Setting, Tracefs};

/// Programs that a sentence names, at most.
const MOST_PROGRAMS: usize = 3;
/// Descriptors that are examined to find the programs that have a file open, at most: some tens of milliseconds.
const MOST_DESCRIPTORS: usize = 20_000;

/// Settings that matter to every recording, whether or not it has changed them.
pub(crate) fn watched_settings() -> Vec<Setting> {
    vec![
        Setting::TracingOn,
        Setting::TraceClock,
        Setting::BufferSizeKb,
        Setting::SubBufferSizeKb,
        Setting::CurrentTracer,
        Setting::EventPids,
        Setting::UnwantedPids,
        Setting::CpuMask,
        Setting::Option("overwrite".to_owned()),
    ]
}

/// Files whose writers may change what is recorded, apart from those in `events`: the files of the watched settings and
/// of `more`, the switch of all events, and the buffers. The tracer's file is left out: the kernel refuses another
/// tracer as long as raw buffers are open, but a refused write still looks like a write to fanotify if it begins with a
/// truncation.
pub(crate) fn watched_files(tracefs: &Tracefs, more: &[Setting]) -> Vec<String> {
    let mut settings = watched_settings();
    settings.extend_from_slice(more);
    settings.retain(|setting| *setting != Setting::CurrentTracer);
    let mut files: Vec<String> = settings.iter().map(Setting::file).collect();
    files.extend(["set_event", "trace"].map(str::to_owned));
    for cpu in tracefs.cpus().unwrap_or_default() {
        files.push(Setting::CpuBufferSizeKb(cpu).file());
        files.push(format!("per_cpu/cpu{cpu}/trace"));
    }
    files
}

/// Reads `settings` and, unless the look is quick, the list of recorded events. Leaves out values that cannot be read.
pub(crate) fn look(tracefs: &Tracefs, settings: &[Setting], depth: Depth) -> Shown {
    let read = |setting: &Setting| Some((setting.clone(), tracefs.get(setting).ok()?));
    Shown {
        settings: settings.iter().filter_map(read).collect(),
        events: match depth {
            Depth::Quick => None,
            Depth::Regular | Depth::Whole => tracefs.listed_events().ok(),
        },
        gone: BTreeSet::new(),
    }
}

/// The kernel's count of events read out of each buffer.
pub(crate) fn events_read(tracefs: &Tracefs, cpus: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u64> {
    cpus.into_iter()
        .filter_map(|cpu| Some((cpu, CpuStats::read(tracefs, cpu).ok()?.read_events)))
        .collect()
}

/// The file of a trigger, on an event or a function, that switches recording off as its owner intends.
pub(crate) fn traceoff_trigger(tracefs: &Tracefs) -> Option<String> {
    let is_command = |line: &str| !line.starts_with('#') && line.contains("traceoff");
    for event in tracefs.listed_events().ok()? {
        let file = format!("events/{event}/trigger");
        if tracefs.read(&file).is_ok_and(|text| text.lines().any(is_command)) {
            return Some(file);
        }
    }
    let functions = "set_ftrace_filter";
    let text = tracefs.read(functions).unwrap_or_default();
    text.lines().any(is_command).then(|| functions.to_owned())
}

/// A program that has a file of a tracefs directory open or wrote to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileUser {
    /// Its process; 0 if the kernel does not tell.
    pub pid: u32,
    /// The process's name; empty if it has ended.
    pub name: String,
    /// The file, below the directory.
    pub file: String,
}

impl FileUser {
    /// Whether the program has a file open from which it may take events.
    pub(crate) fn takes_events(&self) -> bool {
        self.file.contains("trace_pipe")
    }

    /// The program as a phrase in a sentence.
    pub(crate) fn who(&self) -> String {
        match (self.pid, self.name.as_str()) {
            (0, _) => "a process (the kernel tells only root which)".to_owned(),
            (pid, "") => format!("process {pid} (which has ended)"),
            (pid, name) => format!("process {pid} ({name})"),
        }
    }
}

/// The name of a process that may have ended. A name can contain any bytes, and it becomes part of a line.
pub(crate) fn name_of_process(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().replace(char::is_control, "?")
}

/// Other programs that have files of the directory open, as far as this user may see them. They are a hint at the author
/// of a change where the kernel does not tell. Reads much of `/proc`, so not every look calls it.
pub(crate) fn openers(root: &Path) -> Vec<FileUser> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut openers = Vec::new();
    let mut left = MOST_DESCRIPTORS;
    for pid in pids.filter(|pid| *pid != own) {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
            .take(left)
            .inspect(|_| left -= 1);
        let below_root = files.filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            let below = target.strip_prefix(root).ok()?.to_str()?.to_owned();
            (!below.is_empty() && !below.starts_with("instances/")).then_some(below)
        });
        // A program that takes events is the more interesting one.
        let Some(file) = below_root.max_by_key(|file| file.contains("trace_pipe")) else {
            continue;
        };
        let name = name_of_process(pid);
        openers.push(FileUser { pid, name, file });
    }
    openers
}

/// A clause about the programs that had a file open; empty if there are none.
pub(crate) fn describe_openers(openers: &[FileUser]) -> String {
    clause(openers, |opener| {
        format!("{} had {} open", opener.who(), opener.file)
    })
}

/// A clause about the programs that wrote to a file; empty if none is known.
pub(crate) fn describe_writers(writers: &[FileUser]) -> String {
    let known: Vec<FileUser> = writers.iter().filter(|writer| writer.pid != 0).cloned().collect();
    clause(&known, |writer| {
        format!("{} wrote to {}", writer.who(), writer.file)
    })
}

fn clause(programs: &[FileUser], describe: impl Fn(&FileUser) -> String) -> String {
    let described: Vec<String> = programs.iter().take(MOST_PROGRAMS).map(describe).collect();
    match (described.len(), programs.len() - described.len()) {
        (0, _) => String::new(),
        (_, 0) => format!("; {} then", described.join(", ")),
        (_, more) => format!("; {} and {more} more then", described.join(", ")),
    }
}
