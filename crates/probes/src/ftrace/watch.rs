//! Notices other programs' changes to ftrace while sessions record.
//!
//! Every program with the right to do so can switch recording or events off, resize or empty the buffers, or read events
//! out of them. A `Watch` knows the values that one tracefs directory should show. It gets the values that the directory
//! does show (`look`) and, where the kernel tells, the programs that wrote to its files ([`writers`]). It
//! answers with [`Finding`]s, which become sentences for the trace. It accesses no files and no clock. Nothing is ever set
//! right again: two programs that each want their way would go on for ever.
//!
//! Used by [`super::data_source`], for as long as a directory has a started session.

pub(crate) mod look;
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

/// Events that a sentence names, at most.
const MOST_NAMES: usize = 4;
/// Event filters that one regular look reads; the looks take turns over all of them.
const FILTERS_PER_LOOK: usize = 16;
/// Sentences do not mention an uncertainty of less than this.
const MOMENT: u64 = 150_000_000;

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
    /// Those events that should be recorded and that the kernel no longer has.
    pub gone: BTreeSet<EventName>,
}

/// The time of a change: later than `after` and no later than `by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The last time when there was no change.
    pub after: BootTime,
    /// The time when the change was noticed.
    pub by: BootTime,
}

/// An action of other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A setting was changed.
    Changed {
        /// Which.
        setting: Setting,
        /// The value before.
        from: String,
        /// The value now.
        to: String,
        /// When.
        when: Window,
    },
    /// A setting was changed back.
    ChangedBack {
        /// Which.
        setting: Setting,
        /// When the change was first seen.
        changed: BootTime,
        /// When the setting was seen to be the same again.
        by: BootTime,
    },
    /// Events were switched off.
    EventsOff {
        /// Which.
        events: BTreeSet<EventName>,
        /// When.
        when: Window,
    },
    /// Events were removed from the kernel.
    EventsGone {
        /// Which.
        events: BTreeSet<EventName>,
        /// When.
        when: Window,
    },
    /// Events were switched on again.
    EventsBack {
        /// Which.
        events: BTreeSet<EventName>,
        /// When the first of them was seen to be off.
        off: BootTime,
        /// When they were seen to be on.
        by: BootTime,
    },
    /// Buffers were emptied.
    Emptied {
        /// When.
        when: Window,
    },
    /// Events were read out of buffers.
    Taken {
        /// How many.
        events: u64,
        /// When.
        when: Window,
    },
    /// The sum of all events that were read out of buffers, after the first finding.
    TakenInAll {
        /// How many since the start.
        events: u64,
        /// The end of the count.
        by: BootTime,
    },
    /// A program wrote to files that show no change.
    Wrote {
        /// The target of the writes.
        target: Target,
        /// The process, once for each file.
        by: Vec<FileUser>,
        /// The value that a setting shows.
        shown: Option<String>,
        /// When.
        when: Window,
    },
    /// More writes happened than findings were reported.
    WroteInAll {
        /// How many writes were not reported.
        times: u64,
        /// The end of the count.
        by: BootTime,
    },
}

impl Finding {
    /// The sentence about the finding, without its end, for a session that started at `started` and records the events
    /// `recorded` from the directory `root`. `None` if the finding does not concern that session.
    pub(crate) fn sentence(
        &self,
        started: BootTime,
        recorded: &BTreeSet<EventName>,
        root: &Path,
    ) -> Option<String> {
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
                    // The kernel does that even if the same clock is written again.
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

    /// Whether the sentence needs no clause about the program that did it.
    pub(crate) fn is_complete(&self) -> bool {
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

/// The consequence of a change of `setting` for a recording.
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

/// Shortens a value, which can be a list of thousands.
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
