//! Notices other programs' changes to ftrace while sessions record.
//!
//! Every program with the right to do so can switch recording or events off, resize or empty the buffers, or read events
//! out of them. A `Watch` knows the values that one tracefs directory should show. It gets the values that the directory
//! does show (`look`) and, where the kernel tells, the programs that wrote to its files ([`writers`]). It
//! answers with [`Finding`]s, which become sentences for the trace. It accesses no files and no clock. Nothing is ever set
//! right again: two programs that each want their way would go on for ever.
//!
//! Used by [`super::data_source`], for as long as a directory has a started session.

mod finding;
pub(crate) mod look;
#[cfg(test)]
mod tests;
mod unexplained;
pub mod writers;

use std::collections::{BTreeMap, BTreeSet};

pub use finding::{Finding, Window};
use look::FileUser;
pub use unexplained::Target;
use unexplained::{Unexplained, cpu_of_trace};

use super::tracefs::{EventName, Setting};
use ferretto_client::runtime::probe::BootTime;

/// Event filters that one regular look reads; the looks take turns over all of them.
const FILTERS_PER_LOOK: usize = 16;

/// How much a look covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The settings that decide whether, and by which clock, events are recorded. Looked at whenever a drain of the buffers begins.
    Quick,
    /// The other settings as well, but only some of the filters.
    Regular,
    /// Everything.
    Whole,
}

/// The present state of a tracefs directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Settings that could be read.
    pub settings: BTreeMap<Setting, String>,
    /// All events that are recorded; `None` if this look did not read them.
    pub events: Option<BTreeSet<EventName>>,
    /// The events that should be recorded and that the kernel no longer has.
    pub gone: BTreeSet<EventName>,
}

/// One setting.
#[derive(Clone, Debug)]
struct Watched {
    expected: String,
    shown: String,
    checked: BootTime,
    /// When the setting was first seen to differ from the expected value.
    changed: Option<BootTime>,
    /// Whether the present change is as somebody configured it, so that its end is not reported.
    excused: bool,
}

/// One CPU's buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// The number of events that the kernel counted as read at the last look.
    counted: u64,
    /// The number of events that this program has read since; `None` if that is not known.
    read_here: Option<u64>,
}

/// The expected state of one tracefs directory, and the state that the last look showed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    settings: BTreeMap<Setting, Watched>,
    /// Events that should be recorded, each with the time when it was first seen not to be.
    events: BTreeMap<EventName, Option<BootTime>>,
    events_checked: BootTime,
    buffers: BTreeMap<u32, Buffer>,
    buffers_checked: BootTime,
    /// Whether a finding that was reported explains that the buffers are empty.
    emptying_told: bool,
    taken: u64,
    taken_told: u64,
    /// The index of the filter with which the next regular look begins.
    next_filter: usize,
    unexplained: Unexplained,
}

impl Watch {
    /// Expects `setting` to have this value: this program has set it, or found it and left it.
    pub(crate) fn expect(&mut self, setting: Setting, value: String, now: BootTime) {
        let watched = Watched {
            expected: value.clone(),
            shown: value,
            checked: now,
            changed: None,
            excused: false,
        };
        self.settings.insert(setting, watched);
    }

    /// The expected value of `setting`; `None` if it is not watched.
    pub(crate) fn expected(&self, setting: &Setting) -> Option<&str> {
        Some(self.settings.get(setting)?.expected.as_str())
    }

    /// Whether `event` should be recorded.
    pub(crate) fn expects_event(&self, event: &EventName) -> bool {
        self.events.contains_key(event)
    }

    /// Expects exactly these events to be recorded from now on. Filters of other events are no longer watched.
    pub(crate) fn expect_events(&mut self, events: BTreeSet<EventName>, now: BootTime) {
        if self.events.is_empty() {
            self.events_checked = now;
        }
        self.settings.retain(|setting, _| match setting {
            Setting::EventFilter(event) => events.contains(event),
            _ => true,
        });
        let known = std::mem::take(&mut self.events);
        let with_state = |event: EventName| {
            let off = known.get(&event).copied().flatten();
            (event, off)
        };
        self.events = events.into_iter().map(with_state).collect();
    }

    /// Takes the kernel's counts of events read from each buffer as the starting point.
    pub(crate) fn expect_buffers(&mut self, counted: &BTreeMap<u32, u64>, now: BootTime) {
        self.buffers_checked = now;
        self.buffers = counted
            .iter()
            .map(|(&cpu, &counted)| {
                let read_here = Some(0);
                (cpu, Buffer { counted, read_here })
            })
            .collect();
    }

    /// Notes that this program has read this many events, or an unknown number, out of the buffer of `cpu`.
    pub(crate) fn read_here(&mut self, cpu: u32, events: Option<u64>) {
        if let Some(buffer) = self.buffers.get_mut(&cpu) {
            buffer.read_here = buffer.read_here.zip(events).map(|(sum, events)| sum + events);
        }
    }

    /// The settings that a look of this depth reads.
    pub(crate) fn settings_to_look_at(&mut self, depth: Depth) -> Vec<Setting> {
        if depth == Depth::Quick {
            return [Setting::TracingOn, Setting::TraceClock]
                .into_iter()
                .filter(|setting| self.settings.contains_key(setting))
                .collect();
        }
        let is_filter = |setting: &&Setting| matches!(setting, Setting::EventFilter(_));
        let (filters, mut settings): (Vec<&Setting>, Vec<&Setting>) =
            self.settings.keys().partition(is_filter);
        if depth == Depth::Whole || filters.len() <= FILTERS_PER_LOOK {
            settings.extend(filters);
        } else {
            let turn = filters.iter().cycle().skip(self.next_filter % filters.len());
            settings.extend(turn.take(FILTERS_PER_LOOK));
            self.next_filter = (self.next_filter + FILTERS_PER_LOOK) % filters.len();
        }
        settings.into_iter().cloned().collect()
    }

    /// Notes that others wrote to files of the directory. To be called before each [`Watch::see`], and again if that found
    /// something.
    pub(crate) fn wrote(&mut self, programs: BTreeSet<FileUser>) {
        self.unexplained.add(programs);
    }

    /// The programs behind a finding, if they wrote to a file. Returns them once.
    pub(crate) fn writers(&mut self, finding: &Finding) -> Vec<FileUser> {
        match finding {
            Finding::Changed { setting, .. } | Finding::ChangedBack { setting, .. } => {
                self.unexplained.take(&Target::Setting(setting.clone()))
            }
            Finding::EventsOff { events, .. }
            | Finding::EventsGone { events, .. }
            | Finding::EventsBack { events, .. } => self.unexplained.take_switching(events),
            Finding::Emptied { .. } => self.unexplained.take(&Target::Buffers),
            _ => Vec::new(),
        }
    }

    /// Reports writes anew, because a session has started that was told of none.
    pub(crate) fn tell_anew(&mut self) {
        self.unexplained.tell_anew();
    }

    /// The events that were on until now and are missing in `recorded`.
    pub(crate) fn newly_off(&self, recorded: &BTreeSet<EventName>) -> BTreeSet<EventName> {
        let on = self.events.iter().filter(|(_, off)| off.is_none());
        let off = on
            .map(|(event, _)| event)
            .filter(|event| !recorded.contains(event));
        off.cloned().collect()
    }

    /// Compares the shown state with the expected one.
    pub(crate) fn see(&mut self, shown: &Shown, now: BootTime) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (setting, value) in &shown.settings {
            let Some(watched) = self.settings.get_mut(setting) else {
                continue;
            };
            let when = Window {
                after: watched.checked,
                by: now,
            };
            watched.checked = now;
            if *value == watched.shown {
                if !self.unexplained.is_empty() {
                    let target = Target::Setting(setting.clone());
                    let writes = self.unexplained.take(&target);
                    if watched.changed.is_none() {
                        let told = self.unexplained.tell(&target, writes, Some(value), when);
                        self.emptying_told |= !told.is_empty() && *setting == Setting::TraceClock;
                        findings.extend(told);
                    }
                }
                continue;
            }
            let from = std::mem::replace(&mut watched.shown, value.clone());
            if clears_buffers(setting) {
                self.emptying_told = true;
            }
            if *value == watched.expected {
                let changed = watched.changed.take().unwrap_or(when.after);
                if std::mem::take(&mut watched.excused) {
                    self.unexplained.take(&Target::Setting(setting.clone()));
                } else {
                    findings.push(Finding::ChangedBack {
                        setting: setting.clone(),
                        changed,
                        by: now,
                    });
                }
            } else {
                watched.changed.get_or_insert(now);
                findings.push(Finding::Changed {
                    setting: setting.clone(),
                    from,
                    to: value.clone(),
                    when,
                });
            }
        }
        if let Some(recorded) = &shown.events {
            findings.extend(self.see_events(recorded, &shown.gone, now));
        }
        findings
    }

    fn see_events(
        &mut self,
        recorded: &BTreeSet<EventName>,
        gone: &BTreeSet<EventName>,
        now: BootTime,
    ) -> Vec<Finding> {
        let when = Window {
            after: self.events_checked,
            by: now,
        };
        self.events_checked = now;
        let (gone, off): (BTreeSet<EventName>, BTreeSet<EventName>) = self
            .newly_off(recorded)
            .into_iter()
            .partition(|event| gone.contains(event));
        let mut back = BTreeSet::new();
        let mut first_off = now;
        for (event, off) in &mut self.events {
            match (recorded.contains(event), *off) {
                (false, None) => *off = Some(now),
                (true, Some(since)) => {
                    *off = None;
                    first_off = first_off.min(since);
                    back.insert(event.clone());
                }
                _ => {}
            }
        }
        let mut findings = Vec::new();
        if !self.unexplained.is_empty() {
            // A write explains a reported change unless it switches an event that is on now and was on before.
            let on = |event: &EventName| self.events.get(event) == Some(&None) && !back.contains(event);
            let on = recorded.iter().filter(|event| on(event)).cloned().collect();
            let explained: BTreeSet<EventName> = gone.iter().chain(&off).chain(&back).cloned().collect();
            findings = self.unexplained.tell_switching(&on, &explained, when);
        }
        // When an event goes away, the kernel empties the buffers that recorded it.
        self.emptying_told |= !gone.is_empty();
        let some = |events: BTreeSet<EventName>| Some(events).filter(|events| !events.is_empty());
        let (gone, off, back) = (some(gone), some(off), some(back));
        findings.extend(gone.map(|events| Finding::EventsGone { events, when }));
        findings.extend(off.map(|events| Finding::EventsOff { events, when }));
        findings.extend(back.map(|events| Finding::EventsBack {
            events,
            off: first_off,
            by: now,
        }));
        findings
    }

    /// Marks the last change of `setting` as intended, so that its end is not reported.
    pub(crate) fn excuse(&mut self, setting: &Setting) {
        if let Some(watched) = self.settings.get_mut(setting) {
            watched.excused = true;
        }
    }

    /// Compares the kernel's count of events read with the count of events read here. Call it when both counts are from
    /// the same moment. [`Depth::Whole`] marks the last call.
    pub(crate) fn see_buffers(
        &mut self,
        counted: &BTreeMap<u32, u64>,
        depth: Depth,
        now: BootTime,
    ) -> Vec<Finding> {
        let when = Window {
            after: self.buffers_checked,
            by: now,
        };
        let (mut taken, mut emptied) = (0, false);
        let mut not_emptied = BTreeSet::new();
        for (cpu, buffer) in &mut self.buffers {
            let Some(&counted) = counted.get(cpu) else {
                continue;
            };
            let here = buffer.read_here.map(|read_here| buffer.counted + read_here);
            match here {
                // If a page could not be read to its end, nothing is known about the time since the last look.
                None => {}
                // The kernel's count has started from zero again.
                Some(here) if counted < here => emptied = true,
                Some(here) => {
                    taken += counted - here;
                    if buffer.counted > 0 {
                        not_emptied.insert(*cpu);
                    }
                }
            }
            *buffer = Buffer {
                counted,
                read_here: Some(0),
            };
        }
        self.buffers_checked = now;
        let mut findings = Vec::new();
        if emptied && !self.emptying_told {
            findings.push(Finding::Emptied { when });
        } else {
            // The count of a buffer from which nothing was read does not show that the buffer was emptied.
            let mut writes = self.unexplained.take(&Target::Buffers);
            writes.retain(|write| match cpu_of_trace(&write.file) {
                Some(cpu) => !not_emptied.contains(&cpu),
                None => not_emptied.is_empty(),
            });
            findings.extend(self.unexplained.tell(&Target::Buffers, writes, None, when));
        }
        self.emptying_told = false;
        if taken > 0 && self.taken == 0 {
            findings.push(Finding::Taken { events: taken, when });
            self.taken_told = taken;
        }
        self.taken += taken;
        // A program that reads along does so all the time. So there is one sentence at first and one with the sum at the
        // end.
        if depth == Depth::Whole && self.taken > self.taken_told {
            findings.push(Finding::TakenInAll {
                events: self.taken,
                by: now,
            });
            self.taken_told = self.taken;
        }
        if depth == Depth::Whole
            && let Some(times) = self.unexplained.sum_up()
        {
            findings.push(Finding::WroteInAll { times, by: now });
        }
        findings
    }
}

/// Whether a change of `setting` empties the buffers.
fn clears_buffers(setting: &Setting) -> bool {
    matches!(setting, Setting::TraceClock | Setting::SubBufferSizeKb)
}
