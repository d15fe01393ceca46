//! Marks that programs write into the kernel's trace, as Android's `atrace` does: `B|12|name` begins a slice of process 12, `E|12` ends it, and so on.
//!
//! They come as `print` events. Text of other forms is counted.

use std::collections::BTreeMap;

use super::Trackers;
use super::args::{Pending, Value};
use super::descriptors::thread_track;
use super::groups::{Use, track_in};
use super::kernel_slices::At;
use super::processes::{Upid, Utid};
use super::slices::Named;
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::bytes_of;
use crate::strings::StringId;

/// The field of `PrintFtraceEvent` with the text.
const TEXT: u32 = 2;
const COUNTER: Has = Has::Counter { unit: None };

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark<'a> {
    Begin(&'a [u8]),
    End,
    Moment(&'a [u8]),
    /// Slices of a process have a number to tell them apart.
    BeginOfProcess {
        name: &'a [u8],
        number: i64,
    },
    EndOfProcess {
        name: &'a [u8],
        number: i64,
    },
    BeginOn {
        track: &'a [u8],
        name: &'a [u8],
        number: i64,
    },
    EndOn {
        track: &'a [u8],
        number: i64,
    },
    MomentOn {
        track: &'a [u8],
        name: &'a [u8],
    },
    Counter {
        name: &'a [u8],
        value: i64,
    },
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parsed<'a> {
    /// A mark, and the process that it names; 0 if it names none.
    Mark(u32, Mark<'a>),
    /// Text that the recording itself writes.
    OfRecording,
    Other,
}

/// Reads a text. Words end at a bar or at a zero byte.
fn parse(text: &[u8]) -> Parsed<'_> {
    let len = text.iter().rposition(|byte| !matches!(byte, b'\n' | 0));
    let text = &text[..len.map_or(0, |last| last + 1)];
    let mut rest = text;
    let kind = word(&mut rest).first();
    let process: Option<u32> = integer(word(&mut rest));
    let mark = match kind {
        Some(b'E') => Some(Mark::End),
        Some(kind) if process.is_some() => of_process(*kind, rest),
        _ => None,
    };
    match mark {
        Some(mark) => Parsed::Mark(process.unwrap_or(0), mark),
        None if text.starts_with(b"trace_event_clock_sync:") => Parsed::OfRecording,
        None => Parsed::Other,
    }
}

/// Reads what follows the process. `None` if it is no mark.
fn of_process(kind: u8, mut rest: &[u8]) -> Option<Mark<'_>> {
    if kind == b'B' {
        return Some(Mark::Begin(match rest {
            [] => b"[empty slice name]",
            name => name,
        }));
    }
    let first = Some(word(&mut rest)).filter(|word| !word.is_empty())?;
    let second = word(&mut rest);
    let third = word(&mut rest);
    Some(match kind {
        b'I' => Mark::Moment(first),
        b'S' => Mark::BeginOfProcess {
            name: first,
            number: integer(second)?,
        },
        b'F' => Mark::EndOfProcess {
            name: first,
            number: integer(second)?,
        },
        b'C' => Mark::Counter {
            name: first,
            value: integer(second)?,
        },
        b'N' if !second.is_empty() => Mark::MomentOn {
            track: first,
            name: second,
        },
        b'G' if !second.is_empty() => Mark::BeginOn {
            track: first,
            name: second,
            number: integer(third)?,
        },
        b'H' => Mark::EndOn {
            track: first,
            number: integer(if third.is_empty() { second } else { third })?,
        },
        _ => return None,
    })
}

/// Takes a word off.
fn word<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let end = rest.iter().position(|byte| matches!(byte, b'|' | 0));
    let (word, after) = match end {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (*rest, &[][..]),
    };
    *rest = after;
    word
}

/// Reads a number as C does, which skips white space before it.
fn integer<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.trim_start().parse().ok()
}

/// What is known about marks so far.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// How often slices of processes began, and when last, by their tracks. Begins within a slice only count.
    begun: BTreeMap<TrackId, (i64, i64)>,
}

impl Trackers {
    /// A `print` event.
    pub(crate) fn print(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        let utid = self.processes.thread(at.pid);
        self.end_write(at.ts, utid, context);
        match parse(bytes_of(message, TEXT).unwrap_or(&[])) {
            Parsed::Mark(process, mark) => self.mark(at, process, mark, context),
            Parsed::OfRecording => {}
            Parsed::Other => context.stats.add("systrace_parse_failure", None, 1),
        }
    }

    fn mark(&mut self, at: At, process: u32, mark: Mark<'_>, context: &mut Context<'_>) {
        let ts = at.ts;
        match mark {
            Mark::Begin(name) => {
                let track = self.marked_thread(at, process, context);
                let named = named(Some(name), context);
                self.slices.begin(ts, track, named, None, context);
                self.killed_by_name(ts, name, context);
            }
            Mark::End => {
                let track = self.marked_thread(at, process, context);
                self.slices
                    .end(ts, track, named(None, context), context, |_, _| {});
            }
            Mark::Moment(name) => {
                let track = self.marked_thread(at, process, context);
                let named = named(Some(name), context);
                self.slices.begin(ts, track, named, Some(0), context);
            }
            Mark::BeginOfProcess { name, number } => {
                self.begin_of_process(ts, process, name, number, context)
            }
            Mark::EndOfProcess { name, number } => self.end_of_process(ts, process, name, number, context),
            Mark::BeginOn { track, name, number } => {
                let track = self.on_track(process, track, Use::Begin(number as u64), context);
                let named = named(Some(name), context);
                let (key, utid) = self.writer(at, "utid", context);
                if let Some(slice) = self.slices.begin(ts, track, named, None, context) {
                    slice.args.add_if_missing(key, key, utid);
                }
            }
            Mark::EndOn { track, number } => {
                let track = self.on_track(process, track, Use::End(number as u64), context);
                let (key, utid) = self.writer(at, "end_utid", context);
                self.slices
                    .end(ts, track, named(None, context), context, |slice, _| {
                        slice.args.add_if_missing(key, key, utid);
                    });
            }
            Mark::MomentOn { track, name } => self.moment_on(at, process, track, name, context),
            Mark::Counter { name, value } => self.marked_counter(at, process, name, value, context),
        }
    }

    /// The track of the thread that made a mark.
    fn marked_thread(&mut self, at: At, process: u32, context: &mut Context<'_>) -> TrackId {
        let utid = match process {
            0 => self.processes.thread(at.pid),
            process => self.processes.thread_of(at.pid, process.into()),
        };
        thread_track(utid, &mut self.tracks, context)
    }

    fn writer(&mut self, at: At, key: &str, context: &mut Context<'_>) -> (StringId, Value) {
        let utid: Utid = self.processes.thread(at.pid);
        (context.strings.intern(key), Value::Uint(utid.into()))
    }

    fn begin_of_process(
        &mut self,
        ts: i64,
        process: u32,
        name: &[u8],
        number: i64,
        context: &mut Context<'_>,
    ) {
        let track = self.marked_track(
            "atrace_async_slice",
            process,
            name,
            Use::BeginOnce(number as u64),
            context,
        );
        let begun = self.marks.begun.entry(track).or_default();
        *begun = (begun.0 + 1, ts);
        if !self.slices.is_empty(track) {
            return;
        }
        let named = named(Some(name), context);
        let key = context.strings.intern("cookie");
        if let Some(slice) = self.slices.begin(ts, track, named, None, context) {
            slice.args.add(key, key, Value::Int(number));
        }
    }

    fn end_of_process(&mut self, ts: i64, process: u32, name: &[u8], number: i64, context: &mut Context<'_>) {
        let track = self.marked_track(
            "atrace_async_slice",
            process,
            name,
            Use::End(number as u64),
            context,
        );
        let (count, last) = self.marks.begun.get(&track).copied().unwrap_or_default();
        self.slices
            .end(ts, track, named(None, context), context, |slice, strings| {
                for (key, value) in [
                    ("legacy_unnestable_begin_count", count),
                    ("legacy_unnestable_last_begin_ts", last),
                ] {
                    let key = strings.intern(key);
                    slice.args.add(key, key, Value::Int(value));
                }
            });
    }

    fn moment_on(&mut self, at: At, process: u32, track: &[u8], name: &[u8], context: &mut Context<'_>) {
        const OF_DEVICE: &str = "DeviceStateChanged";
        let named = named(Some(name), context);
        if track == OF_DEVICE.as_bytes() {
            let key = Key::new("android_device_state", &[]);
            let name = |strings: &mut crate::strings::Strings| Some(strings.intern(OF_DEVICE));
            let track = self.tracks.intern(&key, Has::Slices, name, context);
            self.slices.begin(at.ts, track, named, Some(0), context);
            return;
        }
        let track = self.on_track(process, track, Use::Moment, context);
        let (key, utid) = self.writer(at, "utid", context);
        if let Some(slice) = self.slices.begin(at.ts, track, named, Some(0), context) {
            slice.args.add_if_missing(key, key, utid);
        }
    }

    fn on_track(&mut self, process: u32, track: &[u8], used: Use, context: &mut Context<'_>) -> TrackId {
        self.marked_track("atrace_async_slice_for_track", process, track, used, context)
    }

    /// The track of a group that a process has by a name.
    fn marked_track(
        &mut self,
        kind: &'static str,
        process: u32,
        name: &[u8],
        used: Use,
        context: &mut Context<'_>,
    ) -> TrackId {
        let name = context.strings.intern_bytes(name);
        let upid = self.processes.process(process.into());
        let key = Key::new(kind, &[of(upid), ("name", Dimension::Text(name))]);
        track_in(&key, Some(name), used, &mut self.tracks, context).track
    }

    fn marked_counter(&mut self, at: At, process: u32, name: &[u8], value: i64, context: &mut Context<'_>) {
        let name = context.strings.intern_bytes(name);
        let text = context.strings.get(name).to_owned();
        let promoted = match text.as_str() {
            "ScreenState" => Some(Key::new("screen_state", &[])),
            text if text.starts_with("battery_stats.") => Some(Key::new(
                "battery_stats",
                &[("counter_key", Dimension::Text(name))],
            )),
            _ => None,
        };
        if let Some(key) = promoted {
            self.count(at.ts, value as f64, &key, || text, COUNTER, context);
            return;
        }
        // Android's killer of processes counts with the numbers of what it kills, and with 0 when that is done.
        if text == "kill_one_process" && value as u32 != 0 {
            let killed = self.processes.process(i64::from(value as u32));
            self.killed(at.ts, killed, context);
        }
        let upid = self.processes.process(process.into());
        let (utid_key, utid) = self.writer(at, "utid", context);
        let key = Key::new("atrace_counter", &[of(upid), ("name", Dimension::Text(name))]);
        let track = self.tracks.intern(&key, COUNTER, |_| Some(name), context);
        let mut pending = Pending::default();
        pending.add_if_missing(utid_key, utid_key, utid);
        let Context {
            strings,
            output,
            args,
            ..
        } = context;
        let set = args.finish_with(&mut pending, strings, output);
        self.tracks
            .count(at.ts, track, value as f64, set, strings, output);
    }

    /// Slices named `lmk,pid,reason,score,…` say which process Android kills.
    fn killed_by_name(&mut self, ts: i64, name: &[u8], context: &mut Context<'_>) {
        if !name.starts_with(b"lmk,") {
            return;
        }
        let mut words = name.split(|byte| *byte == b',').filter(|word| !word.is_empty());
        let pid = words.nth(1).and_then(integer::<u32>);
        let score = words.nth(1).and_then(integer::<i32>);
        let (Some(pid), Some(score)) = (pid, score) else {
            return;
        };
        let upid = self.processes.process(pid.into());
        let key = Key::new("oom_score_adj", &[of(upid)]);
        self.count(
            ts,
            score.into(),
            &key,
            || "oom_score_adj".to_owned(),
            COUNTER,
            context,
        );
        self.killed(ts, upid, context);
    }

    fn killed(&mut self, ts: i64, upid: Upid, context: &mut Context<'_>) {
        let key = Key::new("android_lmk", &[of(upid)]);
        let name = |strings: &mut crate::strings::Strings| Some(strings.intern("LMK"));
        let track = self.tracks.intern(&key, Has::Slices, name, context);
        let named = named(Some(b"mem.lmk"), context);
        self.slices.begin(ts, track, named, Some(0), context);
    }
}

fn of(upid: Upid) -> (&'static str, Dimension) {
    ("upid", Dimension::Int(upid.into()))
}

fn named(name: Option<&[u8]>, context: &mut Context<'_>) -> Named {
    Named {
        category: None,
        name: name.map(|name| context.strings.intern_bytes(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_marks_or_are_counted() {
        let mark = |process, mark| Parsed::Mark(process, mark);
        for (text, parsed) in [
            ("B|12|a|b\n", mark(12, Mark::Begin(b"a|b"))),
            ("B|12|", mark(12, Mark::Begin(b"[empty slice name]"))),
            ("B|12", mark(12, Mark::Begin(b"[empty slice name]"))),
            ("E|12\n\0", mark(12, Mark::End)),
            ("E", mark(0, Mark::End)),
            ("I|1|a|b", mark(1, Mark::Moment(b"a"))),
            (
                "S|1|a|-2",
                mark(
                    1,
                    Mark::BeginOfProcess {
                        name: b"a",
                        number: -2,
                    },
                ),
            ),
            ("C|1|a| 7|group", mark(1, Mark::Counter { name: b"a", value: 7 })),
            (
                "H|1|t|n|3",
                mark(
                    1,
                    Mark::EndOn {
                        track: b"t",
                        number: 3,
                    },
                ),
            ),
            (
                "H|1|t|3",
                mark(
                    1,
                    Mark::EndOn {
                        track: b"t",
                        number: 3,
                    },
                ),
            ),
            ("trace_event_clock_sync: parent_ts=1", Parsed::OfRecording),
            ("", Parsed::Other),
            ("B|x|a", Parsed::Other),
            ("S|1|a", Parsed::Other),
            ("S|1|a|x", Parsed::Other),
            ("N|1|t", Parsed::Other),
            ("Z|1|a|2", Parsed::Other),
        ] {
            assert_eq!(parse(text.as_bytes()), parsed, "{text:?}");
        }
    }
}
