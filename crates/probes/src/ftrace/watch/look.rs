//! What a tracefs directory shows: the files behind [`super::Shown`], and hints at who is behind a change.
//!
//! Costs are per look: a few files of one line each time, [`super::Depth::Quick`] two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Depth, Shown};
use crate::ftrace::stats::CpuStats;
use crate::ftrace::tracefs::{EventName, Setting, Tracefs};

/// So many programs are named.
const MOST_PROGRAMS: usize = 3;

/// Settings that matter to every recording, whether it has changed them or not.
pub fn watched_settings() -> Vec<Setting> {
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

/// Reads `settings` and, unless it is to be quick, which events are recorded. What cannot be read is missing.
pub fn look(tracefs: &Tracefs, settings: &[Setting], depth: Depth) -> Shown {
    let read = |setting: &Setting| Some((setting.clone(), tracefs.get(setting).ok()?));
    Shown {
        settings: settings.iter().filter_map(read).collect(),
        events: match depth {
            Depth::Quick => None,
            Depth::Regular | Depth::Whole => listed_events(tracefs),
        },
    }
}

/// The events that are recorded, and those that are armed by a trigger.
pub fn listed_events(tracefs: &Tracefs) -> Option<BTreeSet<EventName>> {
    let listed = tracefs.read("set_event").ok()?;
    Some(listed.lines().filter_map(EventName::from_set_event).collect())
}

/// How many events the kernel counts as read out of each buffer.
pub fn events_read(tracefs: &Tracefs, cpus: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u64> {
    cpus.into_iter()
        .filter_map(|cpu| {
            let stats = CpuStats::parse(cpu, &tracefs.cpu_stats(cpu).ok()?);
            Some((cpu, stats.read_events))
        })
        .collect()
}

/// What switches recording off by itself, as its owner wants it: a trigger of an event or of a function.
pub fn traceoff_trigger(tracefs: &Tracefs) -> Option<String> {
    let is_command = |line: &str| !line.starts_with('#') && line.contains("traceoff");
    for event in listed_events(tracefs)? {
        let file = format!("events/{event}/trigger");
        if tracefs.read(&file).is_ok_and(|text| text.lines().any(is_command)) {
            return Some(file);
        }
    }
    let functions = "set_ftrace_filter";
    let text = tracefs.read(functions).unwrap_or_default();
    text.lines().any(is_command).then(|| functions.to_owned())
}

/// A program that has a file of a tracefs directory open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its process.
    pub pid: u32,
    /// That process's name.
    pub name: String,
    /// The file, below the directory.
    pub file: String,
}

impl Opener {
    /// Whether it is about to read, and so to take, events.
    pub fn takes_events(&self) -> bool {
        self.file.contains("trace_pipe")
    }
}

/// Which other programs have files of the directory open, as far as this user may know: a hint at who changed something,
/// since the kernel does not tell. Reads all of `/proc`, so not for every look.
pub fn openers(root: &Path) -> Vec<Opener> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut openers = Vec::new();
    for pid in pids.filter(|pid| *pid != own) {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let below_root = files.filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            let below = target.strip_prefix(root).ok()?.to_str()?.to_owned();
            (!below.is_empty() && !below.starts_with("instances/")).then_some(below)
        });
        // Whoever takes events is the more interesting.
        let Some(file) = below_root.max_by_key(|file| file.contains("trace_pipe")) else {
            continue;
        };
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        openers.push(Opener {
            pid,
            name: name.trim_end().to_owned(),
            file,
        });
    }
    openers
}

/// A clause about them; empty if there are none.
pub fn describe_openers(openers: &[Opener]) -> String {
    if openers.is_empty() {
        return String::new();
    }
    let described: Vec<String> = openers
        .iter()
        .take(MOST_PROGRAMS)
        .map(|opener| {
            format!(
                "process {} ({}) had {} open",
                opener.pid, opener.name, opener.file
            )
        })
        .collect();
    format!("; {} then", described.join(", "))
}
