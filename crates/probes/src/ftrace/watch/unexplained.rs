//! Other programs' writes that no look has explained yet. The value of the file may have changed since, or may have been
//! another in between.
//!
//! [`crate::ftrace::data_source`] takes the writes, looks, and takes the writes again if the look found something. The
//! kernel reports a write after its effect, so there are these cases:
//! - The write is taken before a look that shows its effect, or right after that look: the reported change names the writer.
//! - The write is taken before a look at its target that shows no effect: the write is reported by itself.
//! - The write is taken after the look: it waits for the next look, which explains it if its effect shows.
//! - A change that has been reported is under way: the write changes nothing that is known.
//! - The report comes after the second taking of a look that shows its effect: the change then has no writer. As the change
//!   is under way, the late report is dropped. If the effect was to end a change, the write is reported too: one sentence too
//!   many.
//! - The write happens between the look that shows the end of a change and the taking after it: it is not reported. That
//!   window lasts microseconds.

use std::collections::{BTreeMap, BTreeSet};

use super::look::FileUser;
use super::{Finding, Window};
use crate::ftrace::tracefs::{EventName, Setting};

/// Processes whose writes to one target are reported, at most. Other and later writes are only counted.
const MOST_WRITERS: usize = 4;
/// Writes to one target that are kept until a look, at most.
const MOST_HELD: usize = 64;

/// The target of a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A setting.
    Setting(Setting),
    /// Switches of events.
    Events,
    /// The buffers.
    Buffers,
}

impl Target {
    /// The target that `file` belongs to.
    fn of(file: &str) -> Option<Target> {
        match Setting::from_file(file) {
            // A change of one CPU's size shows in the size of all.
            Some(Setting::CpuBufferSizeKb(_)) => Some(Target::Setting(Setting::BufferSizeKb)),
            Some(setting) => Some(Target::Setting(setting)),
            None if file == "set_event" || file.ends_with("/enable") => Some(Target::Events),
            None if file == "trace" || cpu_of_trace(file).is_some() => Some(Target::Buffers),
            None => None,
        }
    }
}

/// The CPU whose buffer the file is.
pub(super) fn cpu_of_trace(file: &str) -> Option<u32> {
    let cpu = file.strip_prefix("per_cpu/cpu")?.strip_suffix("/trace")?;
    cpu.parse().ok()
}

/// Whether a write to this file, one of [`Target::Events`], can switch `event`.
pub(super) fn switches(file: &str, event: &EventName) -> bool {
    let path = file
        .strip_prefix("events/")
        .and_then(|path| path.strip_suffix("/enable"));
    match path {
        Some(path) => path == event.group || path == event.to_string(),
        // `set_event` or `events/enable`. Events of the group `ftrace` have no switch.
        None => event.group != "ftrace",
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Unexplained {
    held: BTreeMap<Target, BTreeSet<FileUser>>,
    told: BTreeMap<Target, BTreeSet<u32>>,
    not_told: u64,
    summed_up: u64,
}

impl Unexplained {
    pub(super) fn add(&mut self, programs: BTreeSet<FileUser>) {
        for program in programs {
            let Some(target) = Target::of(&program.file) else {
                continue;
            };
            let held = self.held.entry(target).or_default();
            if held.len() < MOST_HELD {
                held.insert(program);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the writes to `target`, because they are explained.
    pub(super) fn take(&mut self, target: &Target) -> Vec<FileUser> {
        let held = self.held.remove(target);
        held.into_iter().flatten().collect()
    }

    /// Takes the writes to switches of these events, because they are explained.
    pub(super) fn take_switching(&mut self, events: &BTreeSet<EventName>) -> Vec<FileUser> {
        let (taken, left): (BTreeSet<FileUser>, BTreeSet<FileUser>) = self
            .take(&Target::Events)
            .into_iter()
            .partition(|program| events.iter().any(|event| switches(&program.file, event)));
        if !left.is_empty() {
            self.held.insert(Target::Events, left);
        }
        taken.into_iter().collect()
    }

    /// Handles all writes to switches after a look at events. Reports writes to switches of events that are `on`, keeps
    /// writes to switches of `explained` events for [`Unexplained::take_switching`], and drops the others.
    pub(super) fn tell_switching(
        &mut self,
        on: &BTreeSet<EventName>,
        explained: &BTreeSet<EventName>,
        when: Window,
    ) -> Vec<Finding> {
        let explained = self.take_switching(explained);
        let writes = self.take_switching(on);
        self.take(&Target::Events);
        if !explained.is_empty() {
            self.held.insert(Target::Events, explained.into_iter().collect());
        }
        self.tell(&Target::Events, writes, None, when)
    }

    /// Reports these writes to `target`, which a look has not explained. `shown` is the value that the look showed.
    pub(super) fn tell(
        &mut self,
        target: &Target,
        programs: Vec<FileUser>,
        shown: Option<&str>,
        when: Window,
    ) -> Vec<Finding> {
        let mut by_process: BTreeMap<u32, Vec<FileUser>> = BTreeMap::new();
        for program in programs {
            by_process.entry(program.pid).or_default().push(program);
        }
        let told = self.told.entry(target.clone()).or_default();
        let mut findings = Vec::new();
        for (pid, by) in by_process {
            if told.contains(&pid) || told.len() >= MOST_WRITERS {
                self.not_told += 1;
                continue;
            }
            told.insert(pid);
            findings.push(Finding::Wrote {
                target: target.clone(),
                by,
                shown: shown.map(str::to_owned),
                when,
            });
        }
        findings
    }

    /// The number of writes that were not reported, if it has grown.
    pub(super) fn sum_up(&mut self) -> Option<u64> {
        let grew = self.not_told > self.summed_up;
        self.summed_up = self.not_told;
        grew.then_some(self.not_told)
    }

    /// Forgets which writers were reported, because a new session has not been told.
    pub(super) fn tell_anew(&mut self) {
        self.told.clear();
    }
}
