//! Writes of others that no look has explained yet: what they were to may have changed, or may have been another in between.
//!
//! The order in [`crate::ftrace::data_source`] is: take the writes, look, and if the look found something take them again.
//! The kernel reports a write after it has had its effect, so there are these cases:
//! - The write is taken before a look that shows its effect, or between the two: the change that was found names the writer.
//! - It is taken before a look that shows none: it is told by itself. It waits for a look at what it was to.
//! - It is taken after the look: it waits for the next, which explains it if its effect shows.
//! - A change that has been told is under way: the write changes nothing that is known.
//! - The report comes after the second taking of a look that shows its effect: a change then has no writer, but as it is
//!   under way the late report is dropped. If the effect was to end a change, the write is told too: one sentence too many.
//! - Between the look that shows the end of a change and the taking after it, a write is not told: microseconds.

use std::collections::{BTreeMap, BTreeSet};

use super::look::FileUser;
use super::{Finding, Window};
use crate::ftrace::tracefs::{EventName, Setting};

/// So many writers to the same are told of; others, and writes that come later, are only counted.
const MOST_WRITERS: usize = 4;
/// So many writes to the same are kept until a look.
const MOST_HELD: usize = 64;

/// What was written to.
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
    /// What `file` is about.
    fn of(file: &str) -> Option<Target> {
        match Setting::from_file(file) {
            // Shows in the size of all.
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

    /// These are explained.
    pub(super) fn take(&mut self, target: &Target) -> Vec<FileUser> {
        let held = self.held.remove(target);
        held.into_iter().flatten().collect()
    }

    /// Those to switches of these events are explained.
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

    /// A look at events has explained all but writes to switches of those that are `on`, and does not tell of `explained`
    /// ones by [`Unexplained::take_switching`].
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

    /// A look at `target` has explained none of these. `shown` is what it showed.
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

    /// How often there was something that was not told, if that grew.
    pub(super) fn sum_up(&mut self) -> Option<u64> {
        let grew = self.not_told > self.summed_up;
        self.summed_up = self.not_told;
        grew.then_some(self.not_told)
    }

    /// There is somebody new to tell.
    pub(super) fn tell_anew(&mut self) {
        self.told.clear();
    }
}
