//! Whether others leave ftrace alone while sessions record.
//!
//! Everybody with the right to it can switch recording or events off, resize or empty the buffers, or read events out of
//! them. A [`Watch`] knows what one tracefs directory should show; it is given what the directory does show
//! ([`look`](mod@look)) and, where the kernel tells, who wrote to its files ([`writers`]). It answers with [`Finding`]s,
//! which are sentences for the trace. It knows no files and no clock. Nothing is ever set right again: two programs that
//! each want their way would go on for ever.
//!
//! Used by [`super::data_source`], for as long as a directory has a started session.

pub mod look;
#[cfg(test)]
mod tests;
mod unexplained;
pub mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use look::FileUser;
pub use unexplained::Target;
use unexplained::{Unexplained, cpu_of_trace, switches};

use super::tracefs::{EventName, Setting};
use ferretto_client::runtime::probe::BootTime;

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
    /// Of those that should be recorded and are not, the ones that the kernel does not have any more.
    pub gone: BTreeSet<EventName>,
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
    /// They took events away from the kernel.
    EventsGone {
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
    /// One of them wrote to what shows nothing of it.
    Wrote {
        /// What that is.
        target: Target,
        /// The process, with each file.
        by: Vec<FileUser>,
        /// What a setting shows.
        shown: Option<String>,
        /// When.
        when: Window,
    },
    /// They did so more often than was told.
    WroteInAll {
        /// How often that was seen.
        times: u64,
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
                consequence(setting, from, to)
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
            Finding::EventsGone { events, when: window } => {
                let events = Some(concerned(events)).filter(|events| !events.is_empty())?;
                format!(
                    "Events are not there any more {} ({}): the module that had them was unloaded, or their probe removed. \
                     They are not recorded from then on, and the kernel empties its buffers when that happens",
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
            Finding::Wrote {
                target: Target::Setting(Setting::EventFilter(event)),
                ..
            } if !recorded.contains(event) => return None,
            Finding::Wrote {
                target,
                by,
                shown,
                when: window,
            } => {
                let concerns = |program: &&FileUser| {
                    *target != Target::Events || recorded.iter().any(|event| switches(&program.file, event))
                };
                let concerning: Vec<&FileUser> = by.iter().filter(concerns).collect();
                let first = concerning.first()?;
                let more = match concerning.len() - 1 {
                    0 => String::new(),
                    more => format!(" and to {more} more"),
                };
                let (file, when) = (root.join(&first.file), when(window));
                let wrote = format!(
                    "{} wrote to {}{more} {when}",
                    capitalized(&first.who()),
                    file.display()
                );
                match (target, shown.as_deref()) {
                    (Target::Buffers, _) => format!(
                        "{wrote}: whoever truncates it empties the kernel's buffers, and what had not been read yet is lost"
                    ),
                    (Target::Events, _) => {
                        format!("{wrote}: the events are on now, but those in between may be missing")
                    }
                    // The kernel does that whichever clock is written.
                    (Target::Setting(Setting::TraceClock), _) => {
                        format!(
                            "{wrote}, which empties the kernel's buffers: what had not been read yet is lost"
                        )
                    }
                    (Target::Setting(_), None | Some("")) => {
                        format!("{wrote}: it is empty now, but events in between may be missing")
                    }
                    (Target::Setting(_), Some(shown)) => format!(
                        "{wrote}: it is {} now, but events in between may be missing",
                        short(shown)
                    ),
                }
            }
            Finding::WroteInAll { times, by } => format!(
                "By {} others had written to files in {} that decide what is recorded, at {times} times that are not told \
                 one by one: events in between may be missing",
                at(*by),
                root.display()
            ),
        })
    }

    /// Whether there is nothing to add of who did it.
    pub fn is_complete(&self) -> bool {
        matches!(
            self,
            Finding::ChangedBack { .. }
                | Finding::EventsBack { .. }
                | Finding::EventsGone { .. }
                | Finding::TakenInAll { .. }
                | Finding::Wrote { .. }
                | Finding::WroteInAll { .. }
        )
    }
}

/// What a change of `setting` means for who records.
fn consequence(setting: &Setting, from: &str, to: &str) -> &'static str {
    match setting {
        Setting::TraceClock => {
            "what had not been read yet is lost, and later events have times of another clock"
        }
        // `ring_buffer_subbuf_order_set` replaces all pages.
        Setting::SubBufferSizeKb => "what had not been read yet is lost",
        // A buffer that grows keeps what is in it, and one that shrinks drops full pages, which count as overrun
        // (`rb_remove_pages`). But since Linux 6.7 and in the stable series of that time, `__tracing_resize_ring_buffer`
        // stops recording while it allocates and frees, which takes 10 ms for 4 MiB. That is counted nowhere.
        Setting::BufferSizeKb | Setting::CpuBufferSizeKb(_) => {
            match from.parse::<u64>().ok().zip(to.parse::<u64>().ok()) {
                Some((from, to)) if to > from => {
                    "what was in the buffers stays, but Linux since 6.7 does not record while it changes that"
                }
                _ => "what no longer fits is lost, and Linux since 6.7 does not record while it changes that",
            }
        }
        Setting::CurrentTracer => "what that tracer records takes room in the buffers",
        Setting::EventPids | Setting::UnwantedPids | Setting::CpuMask | Setting::EventFilter(_) => {
            "what the new value leaves out is not recorded"
        }
        _ => "what is recorded may not be what was asked for",
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
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
    unexplained: Unexplained,
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

    /// Others wrote to files of the directory. To be called before each [`Watch::see`], and again if that found something.
    pub fn wrote(&mut self, programs: BTreeSet<FileUser>) {
        self.unexplained.add(programs);
    }

    /// Who did what was found, as far as they wrote to a file. To be asked once.
    pub fn writers(&mut self, finding: &Finding) -> Vec<FileUser> {
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

    /// A session has started, which was not told of anything yet.
    pub fn tell_anew(&mut self) {
        self.unexplained.tell_anew();
    }

    /// The events that were on until now and are not among these.
    pub fn newly_off(&self, recorded: &BTreeSet<EventName>) -> BTreeSet<EventName> {
        let on = self.events.iter().filter(|(_, off)| off.is_none());
        let off = on
            .map(|(event, _)| event)
            .filter(|event| !recorded.contains(event));
        off.cloned().collect()
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
            // What switches none that is on now, and was before, has to do with a change that is told.
            let on = |event: &EventName| self.events.get(event) == Some(&None) && !back.contains(event);
            let on = recorded.iter().filter(|event| on(event)).cloned().collect();
            let explained: BTreeSet<EventName> = gone.iter().chain(&off).chain(&back).cloned().collect();
            findings = self.unexplained.tell_switching(&on, &explained, when);
        }
        // The kernel does that with the buffers of whoever recorded them.
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
        let mut not_emptied = BTreeSet::new();
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
            // A buffer of which nothing had been read shows nothing of it.
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
        // Who reads along does so all the time: one sentence at first, and one with the sum.
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

/// Whether what the buffers hold is lost when this changes.
fn clears_buffers(setting: &Setting) -> bool {
    matches!(setting, Setting::TraceClock | Setting::SubBufferSizeKb)
}
