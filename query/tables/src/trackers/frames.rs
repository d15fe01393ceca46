//! Frames on Android: when they were expected, and when and how they came.
//!
//! A frame is a slice on a track of its process, and a row of one of two tables when that slice is complete.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::Trackers;
use super::args::Value;
use super::groups::{Use, track_in};
use super::processes::Upid;
use super::slices::{Named, SliceId};
use super::tracks::{Dimension, Key};
use crate::context::Context;
use crate::fields::{bytes_of, number_of};
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{ACTUAL_FRAME_TIMELINE_SLICE, EXPECTED_FRAME_TIMELINE_SLICE};
use crate::strings::{StringId, Strings};

/// The most frames that have begun and not ended, that are remembered by their numbers, and that wait for the display's.
const MOST: usize = 1 << 20;
/// Times as large as these are mistakes.
const TOO_LATE: i64 = i64::MAX - 10_000_000_000;
const PRESENT_TYPES: [&str; 6] = [
    "Unspecified Present",
    "On-time Present",
    "Late Present",
    "Early Present",
    "Dropped Frame",
    "Unknown Present",
];
const PREDICTION_TYPES: [&str; 4] = [
    "Unspecified Prediction",
    "Valid Prediction",
    "Expired Prediction",
    "Unknown Prediction",
];
const SEVERITIES: [&str; 4] = ["Unknown", "None", "Partial", "Full"];
/// Reasons for jank, from the bit 1 on.
const REASONS: [&str; 10] = [
    "SurfaceFlinger Scheduling",
    "Prediction Error",
    "Display HAL",
    "SurfaceFlinger CPU Deadline Missed",
    "SurfaceFlinger GPU Deadline Missed",
    "App Deadline Missed",
    "Buffer Stuffing",
    "Unknown Jank",
    "SurfaceFlinger Stuffing",
    "Dropped Frame",
];
const JANK_NONE: u64 = 1;
/// The reasons that are those of the display, and those of the program.
const OF_DISPLAY: u64 = 2 | 4 | 8 | 16 | 32;
const OF_SURFACE: u64 = 64 | 256;
const BUFFER_STUFFING: u64 = 128;
const DISPLAY_STUFFING: u64 = 512;
const DROPPED: u64 = 1024;
const PRESENT_DROPPED: u64 = 4;

/// Whether a frame was foreseen or came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timeline {
    Expected,
    Actual,
}

/// How a frame came, as texts and truth values.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    present_type: StringId,
    on_time: i64,
    gpu_composition: i64,
    jank_type: StringId,
    severity: StringId,
    prediction: StringId,
    tag: StringId,
}

/// What the row of a frame has besides its slice.
#[derive(Debug)]
pub(super) struct Frame {
    display_token: i64,
    surface_token: Option<i64>,
    upid: Upid,
    layer: Option<StringId>,
    outcome: Option<Outcome>,
}

impl Frame {
    /// Writes the row. `slice` has the columns of the slice.
    pub(super) fn write(&self, slice: [Cell; 9], strings: &Strings, output: &mut Output<'_>) {
        let [id, ts, dur, track, category, name, depth, parent, set] = slice;
        let of_frame = [
            Cell::from(self.display_token),
            Cell::from(self.surface_token),
            Cell::from(self.upid),
            Cell::from(self.layer),
        ];
        let [display, surface, upid, layer] = of_frame;
        let Some(outcome) = self.outcome else {
            let row = [
                id, ts, dur, track, category, name, depth, parent, set, display, surface, upid, layer,
            ];
            output.push(&EXPECTED_FRAME_TIMELINE_SLICE, &row, strings);
            return;
        };
        let row = [
            id,
            ts,
            dur,
            track,
            category,
            name,
            depth,
            parent,
            set,
            display,
            surface,
            upid,
            layer,
            Cell::from(outcome.present_type),
            Cell::from(outcome.on_time),
            Cell::from(outcome.gpu_composition),
            Cell::from(outcome.jank_type),
            Cell::from(outcome.severity),
            Cell::from(outcome.prediction),
            Cell::from(outcome.tag),
        ];
        output.push(&ACTUAL_FRAME_TIMELINE_SLICE, &row, strings);
    }
}

/// What is known of frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Whose the frames are that have not ended, by the numbers that their ends have.
    open: HashMap<u64, (Upid, Timeline)>,
    /// Frames of programs that were expected: all that have one number are one.
    expected: BTreeSet<(Upid, i64)>,
    /// Slices of programs' frames that wait for the frame of the display.
    waiting: HashMap<i64, Vec<SliceId>>,
    /// How many of them there are.
    waiting_slices: usize,
}

/// The fields of a message that says that a frame begins.
struct Fields {
    timeline: Timeline,
    /// The fields of a program's frame: `display_frame_token` and `layer_name`.
    of_surface: Option<(u32, u32)>,
    pid: u32,
    /// The first of those that say how it came: type of presentation, punctuality, composition, jank, prediction.
    outcome: u32,
    severity: u32,
}

impl Trackers {
    /// An event of a frame.
    pub(super) fn frame(&mut self, ts: i64, event: &[u8], context: &mut Context<'_>) {
        const DISPLAY: u32 = 3;
        const SURFACE: u32 = 4;
        let layouts = [
            (1, Timeline::Expected, DISPLAY, 0),
            (2, Timeline::Actual, DISPLAY, 9),
        ]
        .into_iter()
        .chain([
            (3, Timeline::Expected, SURFACE, 0),
            (4, Timeline::Actual, SURFACE, 12),
        ]);
        const END: u32 = 5;
        let is_bad = !(0..TOO_LATE).contains(&ts);
        for (field, timeline, pid, severity) in layouts.filter(|_| !is_bad) {
            let Some(message) = bytes_of(event, field) else {
                continue;
            };
            let fields = Fields {
                timeline,
                of_surface: (pid == SURFACE).then_some((3, 5)),
                pid,
                outcome: if pid == SURFACE { 6 } else { 4 },
                severity,
            };
            if self.begin_frame(ts, message, &fields, context).is_none() {
                context.stats.add("frame_timeline_event_parser_errors", None, 1);
            }
            return;
        }
        match bytes_of(event, END)
            .filter(|_| !is_bad)
            .and_then(|end| number_of(end, 1))
        {
            Some(cookie) => self.end_frame(ts, cookie, context),
            None => context.stats.add("frame_timeline_event_parser_errors", None, 1),
        }
    }

    fn begin_frame(
        &mut self,
        ts: i64,
        message: &[u8],
        fields: &Fields,
        context: &mut Context<'_>,
    ) -> Option<()> {
        let cookie = number_of(message, 1)?;
        let token = number_of(message, 2)? as i64;
        let display = match fields.of_surface {
            Some((field, _)) => number_of(message, field)? as i64,
            None => token,
        };
        let pid = number_of(message, fields.pid)? as u32;
        let upid = self.processes.process(pid.into());
        if self.frames.open.len() < MOST {
            self.frames.open.insert(cookie, (upid, fields.timeline));
        }
        if fields.timeline == Timeline::Expected && fields.of_surface.is_some() {
            let known = &mut self.frames.expected;
            if known.len() >= MOST || !known.insert((upid, token)) {
                return Some(());
            }
        }
        let layer = fields.of_surface.and_then(|(_, field)| bytes_of(message, field));
        let layer = layer.map(|layer| context.strings.intern_bytes(layer));
        let outcome = match fields.timeline {
            Timeline::Expected => None,
            Timeline::Actual => Some(outcome(message, fields, context)),
        };
        let key = key_of(upid, fields.timeline);
        let name = context.strings.intern(name_of(fields.timeline));
        let track = track_in(&key, Some(name), Use::Begin(cookie), &mut self.tracks, context).track;
        let named = Named {
            category: None,
            name: Some(context.strings.intern(&token.to_string())),
        };
        let empty = context.strings.intern("");
        let surface_token = fields.of_surface.map(|_| token);
        let mut args: Vec<(&str, Value)> = Vec::new();
        args.extend(surface_token.map(|token| ("Surface frame token", Value::Int(token))));
        args.push(("Display frame token", Value::Int(display)));
        if fields.of_surface.is_some() {
            args.push(("Layer name", Value::Text(layer.unwrap_or(empty))));
        }
        if let Some(outcome) = &outcome {
            args.extend([
                ("Present type", Value::Text(outcome.present_type)),
                ("On time finish", Value::Int(outcome.on_time)),
                ("GPU composition", Value::Int(outcome.gpu_composition)),
                ("Jank type", Value::Text(outcome.jank_type)),
                ("Jank severity type", Value::Text(outcome.severity)),
                ("Prediction type", Value::Text(outcome.prediction)),
                ("Jank tag", Value::Text(outcome.tag)),
            ]);
            if fields.of_surface.is_some() {
                const IS_BUFFER: u32 = 11;
                let word = match number_of(message, IS_BUFFER) {
                    None => "Unspecified",
                    Some(0) => "No",
                    Some(_) => "Yes",
                };
                args.push(("Is Buffer?", Value::Text(context.strings.intern(word))));
            }
        }
        let args: Vec<(StringId, Value)> = args
            .into_iter()
            .map(|(key, value)| (context.strings.intern(key), value))
            .collect();
        let slice = self.slices.begin(ts, track, named, None, context)?;
        for (key, value) in args {
            slice.args.add(key, key, value);
        }
        let (id, is_actual) = (slice.id, outcome.is_some());
        slice.frame = Some(Box::new(Frame {
            display_token: display,
            surface_token,
            upid,
            layer,
            outcome,
        }));
        if is_actual && surface_token.is_some() {
            if self.frames.waiting_slices < MOST {
                self.frames.waiting.entry(display).or_default().push(id);
                self.frames.waiting_slices += 1;
            }
        } else if is_actual {
            let surfaces = self.frames.waiting.remove(&token).unwrap_or_default();
            self.frames.waiting_slices -= surfaces.len();
            for surface in surfaces {
                self.flows.between(surface, id, context);
            }
        }
        Some(())
    }

    fn end_frame(&mut self, ts: i64, cookie: u64, context: &mut Context<'_>) {
        let Some((upid, timeline)) = self.frames.open.remove(&cookie) else {
            context.stats.add("frame_timeline_unpaired_end_event", None, 1);
            return;
        };
        let key = key_of(upid, timeline);
        let name = context.strings.intern(name_of(timeline));
        let track = track_in(&key, Some(name), Use::End(cookie), &mut self.tracks, context).track;
        let any = Named {
            category: None,
            name: None,
        };
        self.slices.end(ts, track, any, context, |_, _| {});
    }
}

fn key_of(upid: Upid, timeline: Timeline) -> Key {
    let kind = match timeline {
        Timeline::Expected => "android_expected_frame_timeline",
        Timeline::Actual => "android_actual_frame_timeline",
    };
    Key::new(kind, &[("upid", Dimension::Int(upid.into()))])
}

fn name_of(timeline: Timeline) -> &'static str {
    match timeline {
        Timeline::Expected => "Expected Timeline",
        Timeline::Actual => "Actual Timeline",
    }
}

fn outcome(message: &[u8], fields: &Fields, context: &mut Context<'_>) -> Outcome {
    let get = |at: u32| number_of(message, fields.outcome + at);
    // Numbers that mean nothing are errors, and count as 0.
    let mut valid = |value: Option<u64>, most: usize| match value {
        Some(value) if (1..=most as u64).contains(&value) => value,
        Some(_) => {
            context.stats.add("frame_timeline_event_parser_errors", None, 1);
            0
        }
        None => 0,
    };
    let present = valid(get(0), PRESENT_TYPES.len() - 1);
    let prediction = valid(get(4), PREDICTION_TYPES.len() - 1);
    let jank = get(3).unwrap_or(0);
    let severity = number_of(message, fields.severity).unwrap_or(u64::from(jank == JANK_NONE));
    let jank_type = match jank {
        0 => "Unspecified".to_owned(),
        JANK_NONE => "None".to_owned(),
        _ => {
            let reasons = REASONS.iter().enumerate();
            let has = reasons.filter(|(at, _)| jank >> (at + 1) & 1 != 0);
            has.map(|(_, reason)| *reason).collect::<Vec<_>>().join(", ")
        }
    };
    let is_surface = fields.of_surface.is_some();
    let has = |reasons| jank != JANK_NONE && jank & reasons != 0;
    let tag = match is_surface {
        true if has(OF_SURFACE) => "Self Jank",
        true if has(OF_DISPLAY) => "Other Jank",
        true if jank == BUFFER_STUFFING => "Buffer Stuffing",
        true if present == PRESENT_DROPPED => "Dropped Frame",
        false if has(OF_DISPLAY) => "Self Jank",
        false if jank == DISPLAY_STUFFING => "SurfaceFlinger Stuffing",
        false if jank == DROPPED => "Dropped Frame",
        _ => "No Jank",
    };
    let of = |texts: &[&'static str], number: u64| texts.get(number as usize).copied().unwrap_or(texts[0]);
    let mut intern = |text: &str| context.strings.intern(text);
    Outcome {
        present_type: intern(of(&PRESENT_TYPES, present)),
        on_time: get(1).is_some_and(|value| value != 0).into(),
        gpu_composition: get(2).is_some_and(|value| value != 0).into(),
        jank_type: intern(&jank_type),
        severity: intern(of(&SEVERITIES, severity)),
        prediction: intern(of(&PREDICTION_TYPES, prediction)),
        tag: intern(tag),
    }
}
