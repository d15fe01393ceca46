//! Whether others leave ftrace alone while sessions record.
//!
//! Everybody with the right to it can switch recording or events off, resize or empty the buffers, or read events out of
//! them, and the kernel tells nobody. A [`Watch`] knows what one tracefs directory should show; it is given what the
//! directory does show ([`look`](mod@look)) and answers with [`Finding`]s, which are sentences for the trace. It knows no
//! files and no clock. Nothing is ever set right again: two programs that each want their way would go on for ever.
//!
//! Used by [`super::data_source`], for as long as a directory has a started session.

pub mod look;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::tracefs::{EventName, Setting};
use crate::data_source::BootTime;

/// So many events are named in a sentence.
const MOST_NAMES: usize = 4;
/// So many event filters are read in one regular look, each group in turn.
const FILTERS_PER_LOOK: usize = 16;
/// An uncertainty of less than this is not worth telling.
const MOMENT: u64 = 150_000_000;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What decides whether, and by which clock, anything is recorded: with each read of the buffers.
    Quick,
    /// The rest as well, but only some of the filters.
    Regular,
    /// Everything.
    Whole,
}

/// What a tracefs directory shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Settings that could be read.
    pub settings: BTreeMap<Setting, String>,
    /// All events that are recorded, if they were looked at.
    pub events: Option<BTreeSet<EventName>>,
}

/// When something happened: after the first time, at which all was well, and no later than the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// All was well.
    pub after: BootTime,
    /// It was noticed.
    pub by: BootTime,
}

/// Something that others did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// They changed a setting.
    Changed {
        /// Which.
        setting: Setting,
        /// What it was before.
        from: String,
        /// What it is now.
        to: String,
        /// When.
        when: Window,
    },
    /// They changed it back.
    ChangedBack {
        /// Which.
        setting: Setting,
        /// When it was first seen to be another.
        changed: BootTime,
        /// When it was seen to be the same again.
        by: BootTime,
    },
    /// They switched events off.
    EventsOff {
        /// Which.
        events: BTreeSet<EventName>,
        /// When.
        when: Window,
    },
    /// They switched them on again.
    EventsBack {
        /// Which.
        events: BTreeSet<EventName>,
        /// When the first of them was seen to be off.
        off: BootTime,
        /// When they were seen to be on.
        by: BootTime,
    },
    /// They emptied buffers.
    Emptied {
        /// When.
        when: Window,
    },
    /// They read events out of buffers.
    Taken {
        /// How many.
        events: u64,
        /// When.
        when: Window,
    },
    /// They went on doing so.
    TakenInAll {
        /// How many, from the start on.
        events: u64,
        /// Until then.
        by: BootTime,
    },
}

impl Finding {
    /// The sentence about it, without its end, for a session that `started` then and records these events from the
    /// directory `root`. `None` if it does not concern that session.
    pub fn sentence(&self, started: BootTime, recorded: &BTreeSet<EventName>, root: &Path) -> Option<String> {
        let when = |when: &Window| since_start(started, when);
        let at = |by: BootTime| format!("{} s after the start", seconds(by, started));
        let concerned = |events: &BTreeSet<EventName>| -> BTreeSet<EventName> {
            events.intersection(recorded).cloned().collect()
        };
        Some(match self {
            Finding::Changed {
                setting: Setting::EventFilter(event),
                ..
            } if !recorded.contains(event) => return None,
            Finding::Changed {
                setting: Setting::TracingOn,
                to,
                when: window,
                ..
            } => format!(
                "Somebody switched recording off {}: {} is {to}, and nothing is recorded until it is 1",
                when(window),
                root.join("tracing_on").display()
            ),
            Finding::Changed {
                setting,
                from,
                to,
                when: window,
            } => format!(
                "Somebody changed {} from `{}` to `{}` {}: {}",
                root.join(setting.file()).display(),
                short(from),
                short(to),
                when(window),
                consequence(setting)
            ),
            Finding::ChangedBack {
                setting: Setting::TracingOn,
                changed,
                by,
            } => format!(
                "Recording is on again {}: the events of about {} s are missing",
                at(*by),
                seconds(*by, *changed)
            ),
            Finding::ChangedBack {
                setting: Setting::EventFilter(event),
                ..
            } if !recorded.contains(event) => return None,
            Finding::ChangedBack { setting, changed, by } => format!(
                "{} is what it was again {}, after about {} s",
                root.join(setting.file()).display(),
                at(*by),
                seconds(*by, *changed)
            ),
            Finding::EventsOff { events, when: window } => {
                let events = Some(concerned(events)).filter(|events| !events.is_empty())?;
                format!(
                    "Somebody switched events off {} ({}): they are not recorded until they are on again",
                    when(window),
                    names(&events)
                )
            }
            Finding::EventsBack { events, off, by } => {
                let events = Some(concerned(events)).filter(|events| !events.is_empty())?;
                format!(
                    "Events are on again {} ({}): those of about {} s are missing",
                    at(*by),
                    names(&events),
                    seconds(*by, *off)
                )
            }
            Finding::Emptied { when: window } => format!(
                "Somebody emptied the kernel's buffers in {} {}: what had not been read yet is lost",
                root.display(),
                when(window)
            ),
            Finding::Taken { events, when: window } => format!(
                "Somebody else read {events} events out of the kernel's buffers in {} {}: they are missing here",
                root.display(),
                when(window)
            ),
            Finding::TakenInAll { events, by } => format!(
                "By {} somebody else had read {events} events out of the kernel's buffers in {}: they are missing here",
                at(*by),
                root.display()
            ),
        })
    }

    /// Whether it is the end of something that was told before.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Finding::ChangedBack { .. } | Finding::EventsBack { .. } | Finding::TakenInAll { .. }
        )
    }
}

/// What a change of `setting` means for who records.
fn consequence(setting: &Setting) -> &'static str {
    match setting {
        Setting::TraceClock => {
            "what had not been read yet is lost, and later events have times of another clock"
        }
        Setting::BufferSizeKb | Setting::CpuBufferSizeKb(_) | Setting::SubBufferSizeKb => {
            "what had not been read yet may be lost"
        }
        Setting::CurrentTracer => "what that tracer records takes room in the buffers",
        Setting::EventPids | Setting::UnwantedPids | Setting::CpuMask | Setting::EventFilter(_) => {
            "what the new value leaves out is not recorded"
        }
        _ => "what is recorded may not be what was asked for",
    }
}

fn names(events: &BTreeSet<EventName>) -> String {
    let named: Vec<String> = events.iter().take(MOST_NAMES).map(EventName::to_string).collect();
    match events.len().saturating_sub(MOST_NAMES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Values can be lists of thousands.
fn short(value: &str) -> String {
    const MOST: usize = 60;
    let line = value.replace('\n', " ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn seconds(at: BootTime, since: BootTime) -> String {
    let tenths = at.saturating_sub(since) / 100_000_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn since_start(started: BootTime, when: &Window) -> String {
    let by = seconds(when.by, started);
    match when.by.saturating_sub(when.after.max(started)) {
        0..MOMENT => format!("{by} s after the start"),
        _ => format!(
            "between {} s and {by} s after the start",
            seconds(when.after, started)
        ),
    }
}

/// One setting.
#[derive(Clone, Debug)]
struct Watched {
    expected: String,
    shown: String,
    checked: BootTime,
    /// When it was first seen to be another than expected.
    changed: Option<BootTime>,
    /// The change that is under way is not held against anybody.
    excused: bool,
}

/// One CPU's buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// How many events the kernel counted as read at the last look.
    counted: u64,
    /// How many have been read here since; `None` if that is not known.
    read_here: Option<u64>,
}

/// What is expected of one tracefs directory, and what is known of it.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    settings: BTreeMap<Setting, Watched>,
    /// Events that should be recorded, with the time when they were first seen not to be.
    events: BTreeMap<EventName, Option<BootTime>>,
    events_checked: BootTime,
    buffers: BTreeMap<u32, Buffer>,
    buffers_checked: BootTime,
    /// Something else that was told has emptied the buffers.
    emptying_told: bool,
    taken: u64,
    taken_told: u64,
    /// The filter with which the next regular look begins.
    next_filter: usize,
}

impl Watch {
    /// This program has given `setting` the value, or leaves it at that.
    pub fn expect(&mut self, setting: Setting, value: String, now: BootTime) {
        let watched = Watched {
            expected: value.clone(),
            shown: value,
            checked: now,
            changed: None,
            excused: false,
        };
        self.settings.insert(setting, watched);
    }

    /// What `setting` should be, if it is watched.
    pub fn expected(&self, setting: &Setting) -> Option<&str> {
        Some(self.settings.get(setting)?.expected.as_str())
    }

    /// Whether `event` should be recorded.
    pub fn expects_event(&self, event: &EventName) -> bool {
        self.events.contains_key(event)
    }

    /// These events should be recorded from now on, and no others. Filters of others are not watched any more.
    pub fn expect_events(&mut self, events: BTreeSet<EventName>, now: BootTime) {
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

    /// The kernel says that so many events have been read out of the buffers until now.
    pub fn expect_buffers(&mut self, counted: &BTreeMap<u32, u64>, now: BootTime) {
        self.buffers_checked = now;
        self.buffers = counted
            .iter()
            .map(|(&cpu, &counted)| {
                let read_here = Some(0);
                (cpu, Buffer { counted, read_here })
            })
            .collect();
    }

    /// This program has read so many events, or an unknown number, out of the buffer of `cpu`.
    pub fn read_here(&mut self, cpu: u32, events: Option<u64>) {
        if let Some(buffer) = self.buffers.get_mut(&cpu) {
            buffer.read_here = buffer.read_here.zip(events).map(|(sum, events)| sum + events);
        }
    }

    /// The settings that a look of this depth is about.
    pub fn settings_to_look_at(&mut self, depth: Depth) -> Vec<Setting> {
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

    /// Compares what the directory shows with what is expected of it.
    pub fn see(&mut self, shown: &Shown, now: BootTime) -> Vec<Finding> {
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
                continue;
            }
            let from = std::mem::replace(&mut watched.shown, value.clone());
            if clears_buffers(setting) {
                self.emptying_told = true;
            }
            if *value == watched.expected {
                let changed = watched.changed.take().unwrap_or(when.after);
                if !std::mem::take(&mut watched.excused) {
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
            findings.extend(self.see_events(recorded, now));
        }
        findings
    }

    fn see_events(&mut self, recorded: &BTreeSet<EventName>, now: BootTime) -> Vec<Finding> {
        let when = Window {
            after: self.events_checked,
            by: now,
        };
        self.events_checked = now;
        let mut gone = BTreeSet::new();
        let mut back = BTreeSet::new();
        let mut first_off = now;
        for (event, off) in &mut self.events {
            match (recorded.contains(event), *off) {
                (false, None) => {
                    *off = Some(now);
                    gone.insert(event.clone());
                }
                (true, Some(since)) => {
                    *off = None;
                    first_off = first_off.min(since);
                    back.insert(event.clone());
                }
                _ => {}
            }
        }
        let gone = Some(gone).filter(|events| !events.is_empty());
        let back = Some(back).filter(|events| !events.is_empty());
        let mut findings = Vec::new();
        findings.extend(gone.map(|events| Finding::EventsOff { events, when }));
        findings.extend(back.map(|events| Finding::EventsBack {
            events,
            off: first_off,
            by: now,
        }));
        findings
    }

    /// The change of `setting` that was found last is as it should be; so will be its end.
    pub fn excuse(&mut self, setting: &Setting) {
        if let Some(watched) = self.settings.get_mut(setting) {
            watched.excused = true;
        }
    }

    /// Compares how many events the kernel says were read with how many were read here. To be called when both are of
    /// the same moment; with [`Depth::Whole`] it is the last time.
    pub fn see_buffers(&mut self, counted: &BTreeMap<u32, u64>, depth: Depth, now: BootTime) -> Vec<Finding> {
        let when = Window {
            after: self.buffers_checked,
            by: now,
        };
        let (mut taken, mut emptied) = (0, false);
        for (cpu, buffer) in &mut self.buffers {
            let Some(&counted) = counted.get(cpu) else {
                continue;
            };
            let here = buffer.read_here.map(|read_here| buffer.counted + read_here);
            match here {
                // Where a page could not be read to its end, nothing can be said of the time since the last look.
                None => {}
                // It counts from zero again.
                Some(here) if counted < here => emptied = true,
                Some(here) => taken += counted - here,
            }
            *buffer = Buffer {
                counted,
                read_here: Some(0),
            };
        }
        self.buffers_checked = now;
        let mut findings = Vec::new();
        if emptied && !std::mem::take(&mut self.emptying_told) {
            findings.push(Finding::Emptied { when });
        }
        self.emptying_told = false;
        if taken > 0 && self.taken == 0 {
            findings.push(Finding::Taken { events: taken, when });
            self.taken_told = taken;
        }
        self.taken += taken;
        // Who reads along does so all the time: one sentence at first, and one with the sum.
        if depth == Depth::Whole && self.taken > self.taken_told {
            findings.push(Finding::TakenInAll {
                events: self.taken,
                by: now,
            });
            self.taken_told = self.taken;
        }
        findings
    }
}

/// Whether what the buffers hold is lost when this changes.
fn clears_buffers(setting: &Setting) -> bool {
    matches!(
        setting,
        Setting::TraceClock | Setting::BufferSizeKb | Setting::CpuBufferSizeKb(_) | Setting::SubBufferSizeKb
    )
}
