//! Track events in the order of time: slices, moments, counters and flows of programs.

use ferretto_proto::write::{ProcessDescriptor, ThreadDescriptor, TrackDescriptor};

use super::Trackers;
use super::args::{Pending, Value};
use super::chrome_names;
use super::descriptors::{self, Names, Scope, thread_track, track_of};
use super::legacy_events::{self, Act};
use super::processes::{Upid, Utid, Worth};
use super::slices::{Named, SliceId};
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, number_of};
use crate::rows::Cell;
use crate::schema::ANDROID_LOGS;
use crate::strings::StringId;
use crate::tokenizer::track_event::code::{self, Event, Extra, Kind, Lists, Log};
use crate::tokenizer::track_event::is_sandboxed;
use crate::tokenizer::track_event::legacy::{Id, InstantScope, Legacy};
use crate::tokenizer::{is_synthetic_tid, synthetic_tid};

/// The most labels of a process.
const MOST_LABELS: usize = 64;

/// Whom an event belongs to.
#[derive(Debug, Clone, Copy, Default)]
struct Association {
    utid: Option<Utid>,
    upid: Option<Upid>,
    /// The thread that wrote an event of something else than a thread.
    writer: Option<Utid>,
    /// The track is that of the sequence's thread.
    is_of_sequence: bool,
}

/// What events mention besides their arguments.
#[derive(Debug, Default)]
struct Extras {
    logged: Vec<Log>,
    processes: Vec<i64>,
}

/// The keys of arguments that events get here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    default_track: StringId,
    writer: StringId,
    empty: StringId,
    body: StringId,
    priority: StringId,
    file: StringId,
    function: StringId,
    line: StringId,
    source: StringId,
    phase: StringId,
}

impl Keys {
    fn new(context: &mut Context<'_>) -> Keys {
        let mut key = |name| context.strings.intern(name);
        Keys {
            default_track: key("Default Track"),
            writer: key("legacy_event.passthrough_utid"),
            empty: key(""),
            body: key("track_event.log_message"),
            priority: key("track_event.priority"),
            file: key("track_event.log_message.file_name"),
            function: key("track_event.log_message.function_name"),
            line: key("track_event.log_message.line_number"),
            source: key("legacy_trace_source_id"),
            phase: key("legacy_event.phase"),
        }
    }

    fn add(&self, log: &Log, pending: &mut Pending) {
        pending.add(self.body, self.body, Value::Text(log.body));
        if let Some(location) = log.location {
            pending.add(
                self.file,
                self.file,
                Value::Text(location.file.unwrap_or(self.empty)),
            );
            pending.add(
                self.function,
                self.function,
                Value::Text(location.function.unwrap_or(self.empty)),
            );
            pending.add(self.line, self.line, Value::Int(location.line.unwrap_or(0)));
        }
        if let Some(priority) = log.priority {
            pending.add(self.priority, self.priority, Value::Int(priority));
        }
    }
}

impl Trackers {
    fn names(&mut self, context: &mut Context<'_>) -> Names {
        Names {
            default_track: self.keys.get_or_insert_with(|| Keys::new(context)).default_track,
        }
    }

    /// A description of a track.
    pub(crate) fn track_descriptor(&mut self, message: &[u8], context: &mut Context<'_>) {
        const CHROME_PROCESS: u32 = 6;
        const CHROME_THREAD: u32 = 7;
        const THREAD_TYPE: u32 = 1;
        let uuid = number_of(message, TrackDescriptor::UUID).unwrap_or(0);
        let names = self.names(context);
        if context
            .descriptors
            .resolve(uuid, &mut self.processes, &names)
            .is_none()
        {
            context.stats.add("track_event_parser_errors", None, 1);
            return;
        }
        if let Some(thread) = bytes_of(message, TrackDescriptor::THREAD) {
            let utid = self.thread_descriptor(thread, is_sandboxed(message), context);
            let kind = bytes_of(message, CHROME_THREAD).and_then(|chrome| number_of(chrome, THREAD_TYPE));
            if let Some(name) = kind.and_then(chrome_names::thread) {
                let name = context.strings.intern(name);
                self.processes.name_thread(utid, name, Worth::TypeOfThread);
            }
        } else if let Some(process) = bytes_of(message, TrackDescriptor::PROCESS) {
            let upid = self.process_descriptor(process, context);
            if let Some(chrome) = bytes_of(message, CHROME_PROCESS) {
                self.chrome_process(upid, chrome, context);
            }
        }
    }

    /// A description of a process. Returns its number.
    pub(crate) fn process_descriptor(&mut self, process: &[u8], context: &mut Context<'_>) -> Upid {
        const CHROME_PROCESS_TYPE: u32 = 4;
        const PROCESS_LABELS: u32 = 8;
        let pid = number_of(process, ProcessDescriptor::PID).unwrap_or(0) as u32;
        let upid = self.processes.process(pid.into());
        if let Some(name) = bytes_of(process, ProcessDescriptor::PROCESS_NAME).filter(|name| !name.is_empty())
        {
            let name = context.strings.intern_bytes(name);
            self.processes.name_if_unnamed(upid, name);
        }
        if let Some(start) = number_of(process, ProcessDescriptor::START_TIMESTAMP_NS)
            && start as i64 > 0
        {
            self.processes.start_if_unknown(upid, start as i64);
        }
        if let Some(name) = number_of(process, CHROME_PROCESS_TYPE).and_then(chrome_names::process) {
            let name = context.strings.intern(name);
            self.processes.name_if_unnamed(upid, name);
        }
        for (at, label) in all_bytes(process, PROCESS_LABELS).take(MOST_LABELS).enumerate() {
            let flat = context.strings.intern("chrome.process_label");
            let key = context.strings.intern(&format!("chrome.process_label[{at}]"));
            let label = Value::Text(context.strings.intern_bytes(label));
            self.processes.arguments(upid).set(flat, key, label);
        }
        upid
    }

    /// What Chromium says about one of its processes.
    fn chrome_process(&mut self, upid: Upid, chrome: &[u8], context: &mut Context<'_>) {
        const PROCESS_TYPE: u32 = 1;
        const HOST_APP_PACKAGE_NAME: u32 = 4;
        const CRASH_TRACE_ID: u32 = 5;
        let kind = number_of(chrome, PROCESS_TYPE).unwrap_or(0);
        let name = chrome_names::process(kind).map(|name| context.strings.intern(name));
        if let Some(name) = name {
            self.processes.name_if_unnamed(upid, name);
        }
        let host = bytes_of(chrome, HOST_APP_PACKAGE_NAME).map(|name| context.strings.intern_bytes(name));
        let crash = number_of(chrome, CRASH_TRACE_ID);
        let name = name.unwrap_or_else(|| context.strings.intern(""));
        for (key, value) in [
            ("chrome.process_type", Some(Value::Text(name))),
            ("chrome.host_app_package_name", host.map(Value::Text)),
            ("chrome.crash_trace_id", crash.map(Value::Uint)),
        ] {
            if let Some(value) = value {
                let key = context.strings.intern(key);
                self.processes.arguments(upid).set(key, key, value);
            }
        }
    }

    /// A description of a thread. Returns its number.
    pub(crate) fn thread_descriptor(
        &mut self,
        thread: &[u8],
        is_sandboxed: bool,
        context: &mut Context<'_>,
    ) -> Utid {
        const CHROME_THREAD_TYPE: u32 = 4;
        let get = |field| i64::from(number_of(thread, field).unwrap_or(0) as i32);
        let (pid, tid) = (get(ThreadDescriptor::PID), get(ThreadDescriptor::TID));
        let tid = if is_sandboxed {
            synthetic_tid(tid, pid)
        } else {
            tid
        };
        let utid = self.processes.thread_of(tid, pid);
        let name = bytes_of(thread, ThreadDescriptor::THREAD_NAME).filter(|name| !name.is_empty());
        let name = match (name, number_of(thread, CHROME_THREAD_TYPE)) {
            (Some(name), _) => Some(context.strings.intern_bytes(name)),
            (None, Some(kind)) => chrome_names::thread(kind).map(|name| context.strings.intern(name)),
            (None, None) => None,
        };
        if let Some(name) = name {
            self.processes.name_thread(utid, name, Worth::TrackDescriptor);
        }
        utid
    }

    /// A track event.
    pub(crate) fn track_event(&mut self, ts: i64, mut encoded: &[u8], context: &mut Context<'_>) {
        let Some((event, lists, legacy)) = Event::decode(&mut encoded) else {
            return;
        };
        let legacy = legacy.as_ref().unwrap_or(Legacy::NONE);
        if self
            .try_track_event(ts, event, &lists, legacy, encoded, context)
            .is_none()
        {
            context.stats.add("track_event_parser_errors", None, 1);
        }
    }

    fn try_track_event(
        &mut self,
        ts: i64,
        event: Event,
        lists: &Lists<'_>,
        legacy: &Legacy<'_>,
        arguments: &[u8],
        context: &mut Context<'_>,
    ) -> Option<()> {
        let whose = self.associate(&event, legacy, context)?;
        let (mut thread_time, mut instructions) = (event.thread_time, event.instructions);
        if let Some(utid) = whose.utid {
            for (kind, name, value) in [
                ("thread_time", "thread_time", thread_time),
                ("thread_instructions", "thread_instruction_count", instructions),
            ] {
                if let Some(value) = value {
                    let key = Key::new(kind, &[("utid", Dimension::Int(utid.into()))]);
                    let has = Has::Counter { unit: None };
                    let track = self
                        .tracks
                        .intern(&key, has, |strings| Some(strings.intern(name)), context);
                    self.tracks.count(
                        ts,
                        track,
                        value as f64,
                        None,
                        &context.strings,
                        &mut context.output,
                    );
                }
            }
        }
        for (uuid, value) in lists.counters() {
            let track = self.described_track(
                uuid,
                descriptors::Event::Counter,
                None,
                Some(event.sequence),
                context,
            )?;
            self.tracks
                .count(ts, track, value, None, &context.strings, &mut context.output);
            let name = self.tracks.name(track).map(|name| context.strings.get(name));
            match name {
                Some("thread_time") => thread_time = Some(value as i64),
                Some("thread_instruction_count") => instructions = Some(value as i64),
                _ => {}
            }
        }
        let act = match (event.kind, legacy.phase) {
            (Kind::Counter, _) => None,
            (_, Some(phase)) => Some(Act::of_phase(phase)),
            (Kind::Begin, None) => Some(Act::Begin),
            (Kind::End, None) => Some(Act::End),
            (Kind::Instant, None) => Some(Act::Instant),
            (Kind::Phase, None) => Some(Act::Keep),
        };
        if matches!(legacy.phase, Some(b'B' | b'E' | b'X')) && act.is_some() {
            whose.utid?;
        }
        let mut extras = Extras::default();
        let keys = *self.keys.get_or_insert_with(|| Keys::new(context));
        let phase = legacy.phase.filter(|phase| legacy_events::is_told(*phase));
        let phase = phase.map(|phase| context.strings.intern(&char::from(phase).to_string()));
        let source = match legacy.id {
            Some(Id::Unscoped(id) | Id::Local(id) | Id::Global(id))
                if legacy_events::is_async(legacy.phase) =>
            {
                Some(id as i64)
            }
            _ => None,
        };
        let mut fill = |pending: &mut Pending| {
            code::arguments(arguments, pending, |extra, pending| match extra {
                Extra::Log(log) if whose.utid.is_some() => {
                    keys.add(&log, pending);
                    extras.logged.push(log);
                }
                Extra::Source => {
                    if let Some(source) = source {
                        pending.add(keys.source, keys.source, Value::Int(source));
                    }
                }
                Extra::Process(pid) => extras.processes.push(pid),
                Extra::Log(_) | Extra::Name(_) => {}
            });
            if let Some(writer) = whose.writer {
                pending.add_if_missing(keys.writer, keys.writer, Value::Uint(writer.into()));
            }
            if let Some(phase) = phase {
                pending.add(keys.phase, keys.phase, Value::Text(phase));
            }
        };
        let asked = match act {
            Some(Act::Begin) => descriptors::Event::Begin,
            Some(Act::End) => descriptors::Event::End,
            Some(Act::Instant) => descriptors::Event::Instant,
            Some(Act::Metadata | Act::Keep) => {
                if act == Some(Act::Metadata)
                    && self.naming_event(&event, (whose.utid, whose.upid), arguments, context)?
                {
                    return Some(());
                }
                let utid = whose.utid?;
                self.keep_event(
                    (ts, utid),
                    &event,
                    legacy,
                    (thread_time, instructions),
                    fill,
                    context,
                );
                self.note_extras(ts, utid, extras, context);
                return Some(());
            }
            // The track is never that of a group.
            None | Some(Act::Complete | Act::Flow) => descriptors::Event::Counter,
        };
        let flow = match (act, legacy.id) {
            (Some(Act::Flow), Some(Id::Unscoped(id))) => {
                let label = (id, event.category, event.name);
                match self.flows.labelled(label, context) {
                    None => return Some(()),
                    flow => flow,
                }
            }
            (Some(Act::Flow), _) => {
                context.stats.add("flow_invalid_id", None, 1);
                return None;
            }
            _ => None,
        };
        let of_descriptor = match whose.is_of_sequence {
            true => None,
            false => {
                let sequence = (event.uuid != 0).then_some(event.sequence);
                self.described_track(event.uuid, asked, event.name, sequence, context)
            }
        };
        let of_phase = self.phase_track(&event, legacy, whose.upid, context).ok()?;
        let track = match (of_phase, whose.is_of_sequence, whose.utid) {
            (Some(track), _, _) => track,
            (None, true, Some(utid)) => thread_track(utid, &mut self.tracks, context),
            _ => of_descriptor?,
        };
        let named = Named {
            category: event.category,
            name: event.name,
        };
        // Events with tracks of their own numbers have no times of threads.
        let has_thread = whose.utid.is_some() && !legacy_events::is_async(legacy.phase);
        let dur = match act {
            None => {
                let mut pending = Pending::default();
                fill(&mut pending);
                let Context {
                    strings,
                    output,
                    args,
                    ..
                } = context;
                let set = args.finish_with(&mut pending, strings, output);
                self.tracks
                    .count(ts, track, event.value.unwrap_or(0.0), set, strings, output);
                self.note_extras(ts, whose.utid.unwrap_or(0), extras, context);
                return Some(());
            }
            Some(Act::Flow) => {
                self.flow_event(flow?, track, legacy, context);
                return Some(());
            }
            Some(Act::Complete) => Some(legacy.duration.unwrap_or(0))
                .filter(|dur| *dur >= 0)
                .map(Some)?,
            Some(Act::Instant) => Some(0),
            Some(Act::Begin | Act::End | Act::Metadata | Act::Keep) => None,
        };
        let slice = match act {
            Some(Act::End) => self.slices.end(ts, track, named, context, |slice, strings| {
                let mut later = Pending::default();
                fill(&mut later);
                slice.args.continue_with(later, strings);
                if !has_thread {
                    return;
                }
                if let (Some(begin), Some(end)) = (slice.thread_ts, thread_time) {
                    let delta = end.wrapping_sub(begin);
                    slice.thread_dur = (delta != 0).then_some(delta).or(slice.thread_dur);
                }
                if let (Some(begin), Some(end)) = (slice.instructions, event.instructions) {
                    slice.instruction_delta = Some(end.wrapping_sub(begin));
                }
            }),
            _ => {
                let slice = self.slices.begin(ts, track, named, dur, context);
                slice.map(|slice| {
                    fill(&mut slice.args);
                    if has_thread {
                        slice.thread_ts = thread_time;
                        slice.instructions = instructions;
                        if dur.is_some() {
                            slice.thread_dur = thread_time.map(|_| legacy.thread_duration.unwrap_or(0));
                            slice.instruction_delta =
                                instructions.map(|_| legacy.instruction_delta.unwrap_or(0));
                        }
                    }
                    (slice.id, slice.ts)
                })
            }
        };
        self.note_extras(ts, whose.utid.unwrap_or(0), extras, context);
        if let Some(slice) = slice.filter(|_| legacy_events::has_flows(legacy.phase)) {
            self.arrived_flows(context);
            self.bound_flow(legacy, slice, context);
            self.flows_of(lists, slice, context);
        }
        Some(())
    }

    #[inline]
    fn note_extras(&mut self, ts: i64, utid: Utid, extras: Extras, context: &mut Context<'_>) {
        if extras.logged.is_empty() && extras.processes.is_empty() {
            return;
        }
        for pid in extras.processes {
            self.processes.process(pid);
        }
        for log in extras.logged {
            self.write_log(ts, utid, &log, context);
        }
    }

    fn flows_of(&mut self, lists: &Lists<'_>, slice: (SliceId, i64), context: &mut Context<'_>) {
        for flow in lists.flows() {
            self.flows.step(flow, slice, context);
        }
        for flow in lists.ended_flows() {
            self.flows.end(flow, slice, context);
        }
    }

    fn write_log(&mut self, ts: i64, utid: Utid, log: &Log, context: &mut Context<'_>) {
        const INFO: i64 = 4;
        let tag = log.location.map(|location| {
            let file = location.file.map_or("", |file| context.strings.get(file));
            format!("{file}:{}", location.line.unwrap_or(0))
        });
        let row = [
            Cell::from(self.logs),
            Cell::from(ts),
            Cell::from(utid),
            Cell::from(log.priority.unwrap_or(INFO)),
            tag.map_or(Cell::NULL, |tag| context.output.text(&ANDROID_LOGS, &tag)),
            Cell::from(log.body),
        ];
        self.logs += 1;
        context.output.time(ts, 0);
        context.output.push(&ANDROID_LOGS, &row, &context.strings);
    }

    fn described_track(
        &mut self,
        uuid: u64,
        event: descriptors::Event,
        name: Option<StringId>,
        sequence: Option<u32>,
        context: &mut Context<'_>,
    ) -> Option<TrackId> {
        track_of(
            uuid,
            event,
            name,
            sequence,
            &mut self.tracks,
            &mut self.processes,
            context,
        )
    }

    /// Returns whom an event belongs to. `None` if that cannot be known.
    fn associate(
        &mut self,
        event: &Event,
        legacy: &Legacy<'_>,
        context: &mut Context<'_>,
    ) -> Option<Association> {
        let mut whose = match event.uuid {
            0 => self.associate_by_thread(event, legacy)?,
            _ => self.associate_by_track(event, context)?,
        };
        if legacy_events::is_async(legacy.phase) {
            whose.writer = whose.utid;
        } else if matches!(legacy.phase, Some(b'i' | b'I')) {
            let known = match legacy.instant_scope {
                Some(InstantScope::Global) => true,
                Some(InstantScope::Process) => whose.upid.is_some(),
                Some(InstantScope::Thread) | None => {
                    whose.utid?;
                    return Some(whose);
                }
            };
            whose.writer = whose.utid.take();
            return known.then_some(whose);
        }
        Some(whose)
    }

    fn associate_by_track(&mut self, event: &Event, context: &mut Context<'_>) -> Option<Association> {
        let mut whose = Association::default();
        let names = self.names(context);
        let resolved = context
            .descriptors
            .resolve(event.uuid, &mut self.processes, &names)?;
        match resolved.scope {
            Scope::Thread(utid) => {
                whose.utid = Some(utid);
                whose.upid = self.processes.process_of(utid);
            }
            Scope::Process(upid) => {
                whose.upid = Some(upid);
                if let Some((pid, tid)) = event.thread {
                    let utid = self.processes.thread_of(tid, i64::from(pid as u32));
                    whose.writer = (self.processes.process_of(utid) == Some(upid)).then_some(utid);
                }
            }
            Scope::Global => {
                whose.writer = event
                    .thread
                    .map(|(pid, tid)| self.processes.thread_of(tid, i64::from(pid as u32)));
            }
        }
        Some(whose)
    }

    /// The thread of the sequence, or the one that the event names, has an event without a track.
    fn associate_by_thread(&mut self, event: &Event, legacy: &Legacy<'_>) -> Option<Association> {
        let mut whose = Association::default();
        let of_sequence = event.thread.is_some();
        let may_be_any = event.has_no_track || event.kind == Kind::Phase;
        whose.is_of_sequence = legacy.pid.is_some() || of_sequence && (may_be_any || legacy.tid.is_some());
        if !whose.is_of_sequence {
            return Some(whose);
        }
        let (pid, mut tid) = event.thread.unwrap_or((0, 0));
        let is_synthetic = is_synthetic_tid(tid);
        let mut pid = i64::from(pid as u32);
        if let Some(own) = legacy.pid {
            // No thread has this number, as it is not known which one it was.
            (pid, tid) = (own, -1);
        }
        if let Some(own) = legacy.tid {
            tid = if is_synthetic {
                synthetic_tid(own, pid)
            } else {
                own
            };
        }
        if pid == 0 || tid == 0 {
            return None;
        }
        let utid = self.processes.thread_of(tid, pid);
        whose.utid = Some(utid);
        whose.upid = self.processes.process_of(utid);
        Some(whose)
    }
}
