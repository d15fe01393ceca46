//! The actions of other programs that a [`Watch`](super::Watch) finds, and the sentences about them.

use std::collections::BTreeSet;
use std::path::Path;

use ferretto_client::runtime::probe::BootTime;

use super::super::tracefs::{EventName, Setting};
use super::look::FileUser;
use super::unexplained::{Target, switches};

/// Events that a sentence names, at most.
const MOST_NAMES: usize = 4;

/// Sentences do not mention an uncertainty of less than this.
const MOMENT: u64 = 150_000_000;

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

pub(super) fn names(events: &BTreeSet<EventName>) -> String {
    let named: Vec<String> = events.iter().take(MOST_NAMES).map(EventName::to_string).collect();
    match events.len().saturating_sub(MOST_NAMES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Shortens a value, which can be a list of thousands.
pub(super) fn short(value: &str) -> String {
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
