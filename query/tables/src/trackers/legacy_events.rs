//! What events in the older form of track events say, as far as it is not what others say: tracks of their numbers, flows, names of threads and processes.
//!
//! Events that nothing follows from are rows of `__intrinsic_chrome_raw`.

use ferretto_wire::Value as Wire;
use hashbrown::HashMap;

use super::Trackers;
use super::args::{Pending, Value};
use super::groups::{Use, track_in};
use super::processes::{Upid, Utid, Worth};
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, fields};
use crate::rows::Cell;
use crate::schema::CHROME_RAW;
use crate::strings::StringId;
use crate::tokenizer::track_event::code::{self, Event, Extra};
use crate::tokenizer::track_event::legacy::{Direction, Id, InstantScope, Legacy};

/// The most numbers whose first name is remembered.
const MOST: usize = 1 << 20;

/// What is known of such events.
#[derive(Debug, Default)]
pub(crate) struct LegacyEvents {
    /// The first name that events of a number had, in its process if it is one of a process.
    roots: HashMap<(Option<Upid>, u64), Option<StringId>>,
    /// The rows of `__intrinsic_chrome_raw`.
    rows: i64,
}

/// What an event with a phase does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Begin,
    End,
    /// Begins and ends at a known time.
    Complete,
    Instant,
    /// Is a part of a flow, and nothing else.
    Flow,
    Metadata,
    /// Is kept as it is.
    Keep,
}

impl Act {
    pub(super) fn of_phase(phase: u8) -> Act {
        match phase {
            b'B' | b'b' | b'S' => Act::Begin,
            b'E' | b'e' | b'F' => Act::End,
            b'X' => Act::Complete,
            b'i' | b'I' | b'R' | b'n' | b'T' | b'p' => Act::Instant,
            b's' | b't' | b'f' => Act::Flow,
            b'M' => Act::Metadata,
            _ => Act::Keep,
        }
    }
}

/// Whether events of a phase have tracks of their own, by their numbers.
pub(super) fn is_async(phase: Option<u8>) -> bool {
    matches!(phase, Some(b'b' | b'e' | b'n' | b'S' | b'T' | b'p' | b'F'))
}

/// Whether the phase of an event belongs to its arguments, as nothing else tells it.
pub(super) fn is_told(phase: u8) -> bool {
    matches!(phase, b'S' | b'T' | b'p' | b'R')
}

/// Whether an event has flows.
pub(super) fn has_flows(phase: Option<u8>) -> bool {
    !matches!(phase, Some(b'T' | b'p'))
}

impl Trackers {
    /// Returns the track that the phase of an event leads to. `None` if it leads to none, or if that cannot be known.
    pub(super) fn phase_track(
        &mut self,
        event: &Event,
        legacy: &Legacy<'_>,
        upid: Option<Upid>,
        context: &mut Context<'_>,
    ) -> Result<Option<TrackId>, ()> {
        if is_async(legacy.phase) {
            return self.async_track(event, legacy, upid, context).map(Some).ok_or(());
        }
        if !matches!(legacy.phase, Some(b'i' | b'I')) {
            return Ok(None);
        }
        let key = match (legacy.instant_scope, upid) {
            (Some(InstantScope::Global), _) => Key::new("legacy_chrome_global_instants", &[]),
            (Some(InstantScope::Process), Some(upid)) => {
                Key::new("chrome_process_instant", &[("upid", Dimension::Int(upid.into()))])
            }
            (Some(InstantScope::Process), None) => return Err(()),
            _ => return Ok(None),
        };
        let track = self.tracks.intern(&key, Has::Slices, |_| None, context);
        if !self.tracks.is_described(track) {
            self.describe_chrome_track(track, &[], context);
        }
        Ok(Some(track))
    }

    fn async_track(
        &mut self,
        event: &Event,
        legacy: &Legacy<'_>,
        upid: Option<Upid>,
        context: &mut Context<'_>,
    ) -> Option<TrackId> {
        let phase = legacy.phase?;
        let (number, of) = match legacy.id? {
            Id::Unscoped(number) | Id::Global(number) => (number, None),
            Id::Local(number) => (number, Some(upid?)),
        };
        let is_oldest = matches!(phase, b'S' | b'T' | b'p' | b'F');
        let mut scope = if is_oldest { event.name } else { event.category };
        if let Some(id_scope) = legacy.id_scope {
            let category = event
                .category
                .map_or("", |category| context.strings.get(category));
            let whole = format!("{category}:{}", String::from_utf8_lossy(id_scope));
            scope = Some(context.strings.intern(&whole));
        }
        let empty = context.strings.intern("");
        let root = match self.legacy.roots.len() < MOST {
            true => *self.legacy.roots.entry((of, number)).or_insert(event.name),
            false => self
                .legacy
                .roots
                .get(&(of, number))
                .copied()
                .unwrap_or(event.name),
        };
        let names = [
            ("scope", Dimension::Text(scope.unwrap_or(empty))),
            ("name", Dimension::Text(root.unwrap_or(empty))),
        ];
        let key = match of {
            Some(upid) => {
                let of_process = ("upid", Dimension::Int(upid.into()));
                Key::new("legacy_async_process_slice", &[of_process, names[0], names[1]])
            }
            None => Key::new("legacy_async_global_slice", &names),
        };
        let used: &[Use] = match phase {
            b'b' | b'S' => &[Use::Begin(number)],
            b'e' | b'T' => &[Use::End(number)],
            _ => &[Use::Begin(number), Use::End(number)],
        };
        let mut track = None;
        for used in used {
            let got = track_in(&key, event.name, *used, &mut self.tracks, context);
            if got.is_new {
                let about = [
                    ("trace_id_is_process_scoped", Value::Bool(of.is_some())),
                    ("upid", Value::Uint(upid.unwrap_or(0).into())),
                    ("source_scope", Value::Text(scope.unwrap_or(empty))),
                ];
                self.describe_chrome_track(got.track, &about, context);
            }
            track = Some(got.track);
        }
        track
    }

    fn describe_chrome_track(&mut self, track: TrackId, about: &[(&str, Value)], context: &mut Context<'_>) {
        let Context {
            strings,
            output,
            args,
            ..
        } = context;
        let chrome = Value::Text(strings.intern("chrome"));
        for (key, value) in std::iter::once(&("source", chrome)).chain(about) {
            let key = strings.intern(key);
            args.add(key, key, value.clone());
        }
        let set = args.finish(strings, output);
        self.tracks.describe(track, set, None);
    }

    /// An event that is part of a flow: it is that of the innermost slice of its track.
    pub(super) fn flow_event(
        &mut self,
        flow: u64,
        track: TrackId,
        legacy: &Legacy<'_>,
        context: &mut Context<'_>,
    ) {
        if legacy.phase == Some(b'f') && !legacy.binds_to_enclosing {
            if !self.slices.await_with(track, flow) {
                context.stats.add("ferretto_flows_passed_over", None, 1);
            }
            return;
        }
        let Some(slice) = self.slices.innermost(track) else {
            context.stats.add("flow_no_enclosing_slice", None, 1);
            return;
        };
        self.arrived_flows(context);
        match legacy.phase {
            Some(b's') => self.flows.begin_once(flow, slice, context),
            Some(b't') => self.flows.go_on(flow, slice, context),
            _ => self.flows.end_here(flow, slice, context),
        }
    }

    /// The flow that a slice of the older form has.
    pub(super) fn bound_flow(&mut self, legacy: &Legacy<'_>, slice: (i64, i64), context: &mut Context<'_>) {
        let Some(flow) = legacy.bind_id else { return };
        match legacy.direction {
            Some(Direction::Out) => self.flows.begin_once(flow, slice, context),
            Some(Direction::Both) => self.flows.go_on(flow, slice, context),
            Some(Direction::In) => self.flows.end_here(flow, slice, context),
            None => context.stats.add("flow_without_direction", None, 1),
        }
    }

    /// Writes the flows that waited for slices which have begun since.
    pub(super) fn arrived_flows(&mut self, context: &mut Context<'_>) {
        for (flow, slice) in self.slices.take_arrived() {
            self.flows.arrive(flow, slice, context);
        }
    }

    /// An event that names a thread or a process. Returns whether it is one; `None` if it contradicts itself.
    pub(super) fn naming_event(
        &mut self,
        event: &Event,
        (utid, upid): (Option<Utid>, Option<Upid>),
        arguments: &[u8],
        context: &mut Context<'_>,
    ) -> Option<bool> {
        let is_of_thread = match context.strings.get(event.name?) {
            "thread_name" => true,
            "process_name" => false,
            _ => return Some(false),
        };
        let mut name = None;
        code::arguments(arguments, &mut Pending::default(), |extra, _| {
            if let Extra::Name(given) = extra {
                name = Some(given);
            }
        });
        match is_of_thread {
            true => {
                let (utid, name) = (utid?, name?);
                if !context.strings.get(name).is_empty() {
                    self.processes.name_thread(utid, name, Worth::TypeOfThread);
                }
            }
            false => {
                let (upid, name) = (upid?, name?);
                if !context.strings.get(name).is_empty() {
                    self.processes.name_if_unnamed(upid, name);
                }
            }
        }
        Some(true)
    }

    /// Adds a row for an event that nothing follows from.
    pub(super) fn keep_event(
        &mut self,
        (ts, utid): (i64, Utid),
        event: &Event,
        legacy: &Legacy<'_>,
        (thread_time, instructions): (Option<i64>, Option<i64>),
        fill: impl FnOnce(&mut Pending),
        context: &mut Context<'_>,
    ) {
        let mut pending = Pending::default();
        let strings = &mut context.strings;
        let empty = strings.intern("");
        let mut add = |key: &str, value: Value| {
            let key = strings.intern(key);
            pending.add(key, key, value);
        };
        add(
            "legacy_event.category",
            Value::Text(event.category.unwrap_or(empty)),
        );
        add("legacy_event.name", Value::Text(event.name.unwrap_or(empty)));
        let phase = legacy
            .phase
            .map_or(String::new(), |phase| char::from(phase).to_string());
        add("legacy_event.phase", Value::Str(phase.into()));
        let of_thread = |value: Option<i64>, of: Option<i64>| of.and(value);
        for (key, value) in [
            ("legacy_event.duration_ns", legacy.duration),
            ("legacy_event.thread_timestamp_ns", thread_time),
            (
                "legacy_event.thread_duration_ns",
                of_thread(legacy.thread_duration, thread_time),
            ),
            ("legacy_event.thread_instruction_count", instructions),
            (
                "legacy_event.thread_instruction_delta",
                of_thread(legacy.instruction_delta, instructions),
            ),
        ] {
            if let Some(value) = value {
                add(key, Value::Int(value));
            }
        }
        if legacy.has_async_thread_time {
            add("legacy_event.use_async_tts", Value::Bool(true));
        }
        match legacy.id {
            Some(Id::Unscoped(id)) => add("legacy_event.unscoped_id", Value::Uint(id)),
            Some(Id::Global(id)) => add("legacy_event.global_id", Value::Uint(id)),
            Some(Id::Local(id)) => add("legacy_event.local_id", Value::Uint(id)),
            None => {}
        }
        if let (Some(_), Some(scope)) = (legacy.id, legacy.id_scope.filter(|scope| !scope.is_empty())) {
            let scope = String::from_utf8_lossy(scope).into();
            add("legacy_event.id_scope", Value::Str(scope));
        }
        fill(&mut pending);
        self.keep(ts, "track_event.legacy_event", utid, &mut pending, context);
    }

    fn keep(&mut self, ts: i64, name: &str, utid: Utid, pending: &mut Pending, context: &mut Context<'_>) {
        let Context {
            strings,
            output,
            args,
            ..
        } = context;
        let set = args.finish_with(pending, strings, output);
        let row = [
            Cell::from(self.legacy.rows),
            Cell::from(ts),
            output.text(&CHROME_RAW, name),
            Cell::from(utid),
            Cell::from(set),
        ];
        self.legacy.rows += 1;
        output.push(&CHROME_RAW, &row, strings);
    }

    /// What Chromium says about a recording as a whole.
    pub(super) fn chrome_events(&mut self, ts: i64, bundle: &[u8], context: &mut Context<'_>) {
        const METADATA: u32 = 2;
        const LEGACY_FTRACE_OUTPUT: u32 = 4;
        const NAME: u32 = 1;
        let has = |field| all_bytes(bundle, field).next().is_some();
        if has(METADATA) {
            let mut pending = Pending::default();
            for entry in all_bytes(bundle, METADATA) {
                let text = |text| String::from_utf8_lossy(text).into();
                let value = fields(entry).fold(None, |known, field| match (field.number, field.value) {
                    (2, Wire::Bytes(value)) => Some(Value::Str(text(value))),
                    (3 | 4, Wire::Varint(value)) => Some(Value::Int(value as i64)),
                    (5, Wire::Bytes(value)) => Some(Value::Json(text(value))),
                    _ => known,
                });
                let Some(value) = value else {
                    context.stats.add("empty_chrome_metadata", None, 1);
                    continue;
                };
                let key = bytes_of(entry, NAME).unwrap_or(&[]);
                let key = context.strings.intern_bytes(key);
                pending.set(key, key, value);
            }
            self.keep(ts, "chrome_event.metadata", 0, &mut pending, context);
        }
        if has(LEGACY_FTRACE_OUTPUT) {
            let data: Vec<&[u8]> = all_bytes(bundle, LEGACY_FTRACE_OUTPUT).collect();
            let data = String::from_utf8_lossy(&data.concat()).into();
            let (mut pending, key) = (Pending::default(), context.strings.intern("data"));
            pending.add(key, key, Value::Str(data));
            self.keep(ts, "chrome_event.legacy_system_trace", 0, &mut pending, context);
        }
    }
}
