//! Track events in the order of time: slices, moments, counters and flows of programs.

use ferretto_proto::write::{ProcessDescriptor, ThreadDescriptor, TrackDescriptor};

use super::Trackers;
use super::args::{Pending, Value};
use super::descriptors::{self, Names, Scope, thread_track, track_of};
use super::processes::{Upid, Utid, Worth};
use super::slices::{Named, SliceId};
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::{bytes_of, number_of};
use crate::rows::Cell;
use crate::schema::ANDROID_LOGS;
use crate::strings::StringId;
use crate::tokenizer::synthetic_tid;
use crate::tokenizer::track_event::code::{self, Event, Kind, Lists, Log};
use crate::tokenizer::track_event::is_sandboxed;

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
            self.thread_descriptor(thread, is_sandboxed(message), context);
        } else if let Some(process) = bytes_of(message, TrackDescriptor::PROCESS) {
            self.process_descriptor(process, context);
        }
    }

    /// A description of a process.
    pub(crate) fn process_descriptor(&mut self, process: &[u8], context: &mut Context<'_>) {
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
    }

    /// A description of a thread.
    pub(crate) fn thread_descriptor(&mut self, thread: &[u8], is_sandboxed: bool, context: &mut Context<'_>) {
        let get = |field| i64::from(number_of(thread, field).unwrap_or(0) as i32);
        let (pid, tid) = (get(ThreadDescriptor::PID), get(ThreadDescriptor::TID));
        let tid = if is_sandboxed {
            synthetic_tid(tid, pid)
        } else {
            tid
        };
        let utid = self.processes.thread_of(tid, pid);
        if let Some(name) = bytes_of(thread, ThreadDescriptor::THREAD_NAME).filter(|name| !name.is_empty()) {
            let name = context.strings.intern_bytes(name);
            self.processes.name_thread(utid, name, Worth::TrackDescriptor);
        }
    }

    /// A track event.
    pub(crate) fn track_event(&mut self, ts: i64, mut encoded: &[u8], context: &mut Context<'_>) {
        let Some((event, lists)) = Event::decode(&mut encoded) else {
            return;
        };
        if self
            .try_track_event(ts, event, &lists, encoded, context)
            .is_none()
        {
            context.stats.add("track_event_parser_errors", None, 1);
        }
    }

    fn try_track_event(
        &mut self,
        ts: i64,
        event: Event,
        lists: &Lists,
        arguments: &[u8],
        context: &mut Context<'_>,
    ) -> Option<()> {
        let whose = self.associate(&event, context)?;
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
        for (uuid, value) in &lists.counters {
            let track = self.described_track(
                *uuid,
                descriptors::Event::Counter,
                None,
                Some(event.sequence),
                context,
            )?;
            self.tracks
                .count(ts, track, *value, None, &context.strings, &mut context.output);
            let name = self.tracks.name(track).map(|name| context.strings.get(name));
            match name {
                Some("thread_time") => thread_time = Some(*value as i64),
                Some("thread_instruction_count") => instructions = Some(*value as i64),
                _ => {}
            }
        }
        let asked = match event.kind {
            Kind::Begin => descriptors::Event::Begin,
            Kind::End => descriptors::Event::End,
            Kind::Instant => descriptors::Event::Instant,
            Kind::Counter => descriptors::Event::Counter,
        };
        let track = match (whose.is_of_sequence, whose.utid) {
            (true, Some(utid)) => thread_track(utid, &mut self.tracks, context),
            _ => {
                let sequence = (event.uuid != 0).then_some(event.sequence);
                self.described_track(event.uuid, asked, event.name, sequence, context)?
            }
        };
        let named = Named {
            category: event.category,
            name: event.name,
        };
        let mut logged = Vec::new();
        let keys = *self.keys.get_or_insert_with(|| Keys::new(context));
        let mut fill = |pending: &mut Pending| {
            code::arguments(arguments, pending, |log, pending| {
                if whose.utid.is_some() {
                    keys.add(&log, pending);
                    logged.push(log);
                }
            });
            if let Some(writer) = whose.writer {
                pending.add_if_missing(keys.writer, keys.writer, Value::Uint(writer.into()));
            }
        };
        let slice = match event.kind {
            Kind::Counter => {
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
                return Some(());
            }
            Kind::End => {
                let is_of_thread = whose.utid.is_some();
                self.slices.end(ts, track, named, context, |slice, strings| {
                    let mut later = Pending::default();
                    fill(&mut later);
                    slice.args.continue_with(later, strings);
                    if !is_of_thread {
                        return;
                    }
                    if let (Some(begin), Some(end)) = (slice.thread_ts, thread_time) {
                        let delta = end.wrapping_sub(begin);
                        slice.thread_dur = (delta != 0).then_some(delta).or(slice.thread_dur);
                    }
                    if let (Some(begin), Some(end)) = (slice.instructions, event.instructions) {
                        slice.instruction_delta = Some(end.wrapping_sub(begin));
                    }
                })
            }
            Kind::Begin | Kind::Instant => {
                let dur = (event.kind == Kind::Instant).then_some(0);
                let slice = self.slices.begin(ts, track, named, dur, context);
                slice.map(|slice| {
                    fill(&mut slice.args);
                    if whose.utid.is_some() {
                        slice.thread_ts = thread_time;
                        slice.instructions = instructions;
                        if dur.is_some() {
                            slice.thread_dur = thread_time.map(|_| 0);
                            slice.instruction_delta = instructions.map(|_| 0);
                        }
                    }
                    (slice.id, slice.ts)
                })
            }
        };
        for log in logged {
            self.write_log(ts, whose.utid.unwrap_or(0), &log, context);
        }
        if let Some(slice) = slice {
            self.flows_of(lists, slice, context);
        }
        Some(())
    }

    fn flows_of(&mut self, lists: &Lists, slice: (SliceId, i64), context: &mut Context<'_>) {
        for flow in &lists.flows {
            self.flows.step(*flow, slice, context);
        }
        for flow in &lists.ended_flows {
            self.flows.end(*flow, slice, context);
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
    fn associate(&mut self, event: &Event, context: &mut Context<'_>) -> Option<Association> {
        let mut whose = Association::default();
        if event.uuid != 0 {
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
            return Some(whose);
        }
        if let (true, Some((pid, tid))) = (event.has_no_track, event.thread) {
            whose.is_of_sequence = true;
            if pid == 0 || tid == 0 {
                return None;
            }
            let utid = self.processes.thread_of(tid, i64::from(pid as u32));
            whose.utid = Some(utid);
            whose.upid = self.processes.process_of(utid);
        }
        Some(whose)
    }
}
