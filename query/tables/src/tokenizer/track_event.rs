//! Makes events of track events, and takes in descriptions of tracks.

pub(crate) mod code;
pub(crate) mod legacy;

use std::io;

use ferretto_proto::write::{
    CounterDescriptor, DebugAnnotation, InternedData, ProcessDescriptor, ThreadDescriptor, TrackDescriptor,
    TrackEvent,
};
use ferretto_wire::{Reader, Value};

use super::Packet;
use super::annotations::annotation;
use super::event::TRACK_EVENTS;
use super::ftrace::To;
use super::sequence::{Sequence, SourceLocation};
use crate::clocks::MONOTONIC;
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number, number_of};
use crate::strings::StringId;
use crate::trackers::descriptors::{Counter, Descriptor, Merge};
use code::{Coder, Event, Kind, Lists, Log, Number};
use legacy::Legacy;

/// The most further counters of an event.
const MOST_COUNTERS: usize = 8;
/// `TrackEvent.type`.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;
/// A field of `TrackEvent` for which there is no writer.
const ACTIVE_PROCESSES: u32 = 49;
/// The phase of an event that names a thread or a process, or says something else that has no time.
const METADATA: u8 = b'M';

/// What few events have more than one of, or any. Kept from event to event.
#[derive(Debug, Default)]
pub(super) struct Several {
    is_empty: bool,
    category_iids: Vec<u64>,
    extra: Vec<f64>,
    extra_uuids: Vec<u64>,
    extra_double: Vec<f64>,
    extra_double_uuids: Vec<u64>,
    flows_old: Vec<Number>,
    flows: Vec<Number>,
    ended_old: Vec<Number>,
    ended: Vec<Number>,
    /// Further counters, as [`Lists`] has them.
    counters: Vec<Number>,
}

impl Several {
    fn clear(&mut self) {
        if std::mem::replace(&mut self.is_empty, true) {
            return;
        }
        empty(&mut self.category_iids);
        empty(&mut self.extra);
        empty(&mut self.extra_uuids);
        empty(&mut self.extra_double);
        empty(&mut self.extra_double_uuids);
        empty(&mut self.flows_old);
        empty(&mut self.flows);
        empty(&mut self.ended_old);
        empty(&mut self.ended);
        empty(&mut self.counters);
    }

    /// Takes in one of the fields that are only here.
    fn add(&mut self, number: u32, value: Value<'_>) {
        self.is_empty = false;
        match number {
            TrackEvent::EXTRA_COUNTER_VALUES => {
                each_varint(value, |value| self.extra.push(value as i64 as f64));
            }
            TrackEvent::EXTRA_COUNTER_TRACK_UUIDS => each_varint(value, |uuid| self.extra_uuids.push(uuid)),
            TrackEvent::EXTRA_DOUBLE_COUNTER_VALUES => {
                each_fixed(value, |bits| self.extra_double.push(f64::from_bits(bits)));
            }
            TrackEvent::EXTRA_DOUBLE_COUNTER_TRACK_UUIDS => {
                each_varint(value, |uuid| self.extra_double_uuids.push(uuid));
            }
            TrackEvent::FLOW_IDS_OLD => each_varint(value, |flow| self.flows_old.push(flow.to_le_bytes())),
            TrackEvent::FLOW_IDS => each_fixed(value, |flow| self.flows.push(flow.to_le_bytes())),
            TrackEvent::TERMINATING_FLOW_IDS_OLD => {
                each_varint(value, |flow| self.ended_old.push(flow.to_le_bytes()));
            }
            TrackEvent::TERMINATING_FLOW_IDS => each_fixed(value, |flow| self.ended.push(flow.to_le_bytes())),
            _ => {}
        }
    }

    fn lists(&self) -> Lists<'_> {
        fn choose<'a>(new: &'a [Number], old: &'a [Number]) -> &'a [Number] {
            if new.is_empty() { old } else { new }
        }
        Lists {
            counters: &self.counters,
            flows: choose(&self.flows, &self.flows_old),
            ended_flows: choose(&self.ended, &self.ended_old),
        }
    }
}

/// Empties a list, and gives back what only an unusual event needed.
fn empty<T>(list: &mut Vec<T>) {
    const MOST_KEPT: usize = 1 << 10;
    list.clear();
    list.shrink_to(MOST_KEPT);
}

/// What an event says, before it is looked into.
#[derive(Default)]
struct Raw<'a> {
    kind: u64,
    uuid: Option<u64>,
    /// The first of them.
    category_iid: Option<u64>,
    categories: Vec<&'a [u8]>,
    name_iid: u64,
    name: Option<&'a [u8]>,
    counter: Option<i64>,
    double_counter: Option<f64>,
    delta: Option<i64>,
    absolute: Option<i64>,
    thread_delta: Option<i64>,
    thread_absolute: Option<i64>,
    instruction_delta: Option<i64>,
    instruction_absolute: Option<i64>,
    legacy: Option<&'a [u8]>,
    /// Whether there are arguments besides debug annotations.
    has_arguments: bool,
    /// The event from its first debug annotation on.
    annotations: &'a [u8],
}

impl<'a> Raw<'a> {
    fn new(event: &'a [u8], several: &mut Several) -> Raw<'a> {
        several.clear();
        let mut raw = Raw::default();
        let mut reader = Reader::new(event);
        loop {
            let rest = reader.remaining();
            let Some(field) = reader.next_field() else {
                return raw;
            };
            match (field.number, field.value) {
                (TrackEvent::TYPE, Value::Varint(value)) => raw.kind = value,
                (TrackEvent::TRACK_UUID, Value::Varint(value)) => raw.uuid = Some(value),
                (TrackEvent::CATEGORY_IIDS, value) => each_varint(value, |iid| match raw.category_iid {
                    None => raw.category_iid = Some(iid),
                    Some(_) => {
                        several.is_empty = false;
                        several.category_iids.push(iid);
                    }
                }),
                (TrackEvent::CATEGORIES, Value::Bytes(value)) => raw.categories.push(value),
                (TrackEvent::NAME_IID, Value::Varint(value)) => raw.name_iid = value,
                (TrackEvent::NAME, Value::Bytes(value)) => raw.name = Some(value),
                (TrackEvent::COUNTER_VALUE, Value::Varint(value)) => raw.counter = Some(value as i64),
                (TrackEvent::DOUBLE_COUNTER_VALUE, Value::Fixed64(value)) => {
                    raw.double_counter = Some(f64::from_bits(value));
                }
                (
                    TrackEvent::EXTRA_COUNTER_VALUES
                    | TrackEvent::EXTRA_COUNTER_TRACK_UUIDS
                    | TrackEvent::EXTRA_DOUBLE_COUNTER_VALUES
                    | TrackEvent::EXTRA_DOUBLE_COUNTER_TRACK_UUIDS
                    | TrackEvent::FLOW_IDS_OLD
                    | TrackEvent::FLOW_IDS
                    | TrackEvent::TERMINATING_FLOW_IDS_OLD
                    | TrackEvent::TERMINATING_FLOW_IDS,
                    value,
                ) => several.add(field.number, value),
                (TrackEvent::TIMESTAMP_DELTA_US, Value::Varint(value)) => raw.delta = Some(value as i64),
                (TrackEvent::TIMESTAMP_ABSOLUTE_US, Value::Varint(value)) => {
                    raw.absolute = Some(value as i64)
                }
                (TrackEvent::THREAD_TIME_DELTA_US, Value::Varint(value)) => {
                    raw.thread_delta = Some(value as i64)
                }
                (TrackEvent::THREAD_TIME_ABSOLUTE_US, Value::Varint(value)) => {
                    raw.thread_absolute = Some(value as i64)
                }
                (TrackEvent::THREAD_INSTRUCTION_COUNT_DELTA, Value::Varint(value)) => {
                    raw.instruction_delta = Some(value as i64);
                }
                (TrackEvent::THREAD_INSTRUCTION_COUNT_ABSOLUTE, Value::Varint(value)) => {
                    raw.instruction_absolute = Some(value as i64);
                }
                (TrackEvent::LEGACY_EVENT, Value::Bytes(value)) => raw.legacy = Some(value),
                (TrackEvent::DEBUG_ANNOTATIONS, Value::Bytes(_)) if raw.annotations.is_empty() => {
                    raw.annotations = rest;
                }
                (
                    TrackEvent::SOURCE_LOCATION_IID
                    | TrackEvent::SOURCE_LOCATION
                    | TrackEvent::LOG_MESSAGE
                    | TrackEvent::TASK_EXECUTION
                    | ACTIVE_PROCESSES
                    | TrackEvent::CORRELATION_ID
                    | TrackEvent::CORRELATION_ID_STR
                    | TrackEvent::CORRELATION_ID_STR_IID,
                    _,
                ) => raw.has_arguments = true,
                _ => {}
            }
        }
    }
}

/// Calls `visit` with each number of a repeated field of eight bytes each, packed or not.
fn each_fixed(value: Value<'_>, mut visit: impl FnMut(u64)) {
    match value {
        Value::Bytes(packed) => packed
            .as_chunks::<8>()
            .0
            .iter()
            .for_each(|bytes| visit(u64::from_le_bytes(*bytes))),
        other => {
            if let Some(number) = number(other) {
                visit(number);
            }
        }
    }
}

/// Why an event is passed over.
enum Passed {
    Error,
    Skipped,
}

/// Takes in a track event.
pub(super) fn tokenize(
    message: &[u8],
    packet: &Packet<'_>,
    ts: i64,
    sequence: &mut Sequence,
    several: &mut Several,
    to: &mut To<'_>,
    context: &mut Context<'_>,
) -> io::Result<()> {
    let passed = |passed: Passed, context: &mut Context<'_>| {
        let counter = match passed {
            Passed::Error => "track_event_tokenizer_errors",
            Passed::Skipped => "tokenizer_skipped_packets",
        };
        context.stats.add(counter, None, 1);
    };
    let Some(number) = packet.sequence else {
        passed(Passed::Error, context);
        return Ok(());
    };
    let raw = Raw::new(message, several);
    let (ts, thread_time, instructions) = match times(&raw, packet, ts, sequence, context) {
        Ok(times) => times,
        Err(why) => {
            passed(why, context);
            return Ok(());
        }
    };
    let default = sequence.defaults.track_uuid;
    let uuid = raw.uuid.or(default).unwrap_or(0);
    let Some(value) = counted(&raw, several, uuid, default.is_some(), sequence, context) else {
        passed(Passed::Error, context);
        return Ok(());
    };
    let legacy = raw.legacy.map(Legacy::new);
    let legacy = legacy.as_ref().unwrap_or(Legacy::NONE);
    let kind = match raw.kind {
        BEGIN => Kind::Begin,
        END => Kind::End,
        INSTANT => Kind::Instant,
        COUNTER => Kind::Counter,
        0 if legacy.phase.is_none() => {
            context.stats.add("track_event_parser_errors", None, 1);
            return Ok(());
        }
        // The older form, or a type that is newer than the trace processor.
        _ => Kind::Phase,
    };
    let name_iid = if raw.name_iid == 0 {
        legacy.name_iid
    } else {
        raw.name_iid
    };
    let event = Event {
        kind,
        uuid,
        has_no_track: raw.uuid.is_none(),
        sequence: number,
        category: category(&raw, several, sequence, context),
        name: match name_iid {
            0 => raw.name.map(|name| context.strings.intern_bytes(name)),
            iid => sequence.name(InternedData::EVENT_NAMES, iid, context),
        },
        thread: sequence.thread.map(|thread| (thread.pid, thread.tid)),
        thread_time,
        instructions,
        value,
    };
    to.sorter.push(ts, TRACK_EVENTS, |bytes| {
        event.encode(&several.lists(), raw.legacy, bytes);
        let coder = &mut Coder::new(bytes);
        if legacy.phase == Some(METADATA)
            && let Some(first) = all_bytes(raw.annotations, TrackEvent::DEBUG_ANNOTATIONS).next()
        {
            let name = bytes_of(first, DebugAnnotation::STRING_VALUE).unwrap_or(&[]);
            coder.name(context.strings.intern_bytes(name));
        }
        if raw.has_arguments {
            arguments(message, sequence, coder, context);
        }
        if legacy.id.is_some() {
            coder.source();
        }
        if raw.has_arguments {
            locations(message, coder, context);
        }
        for message in all_bytes(raw.annotations, TrackEvent::DEBUG_ANNOTATIONS) {
            annotation(message, sequence, coder, context);
        }
    })
}

/// Returns the time of an event, and the processor time and instructions of its thread.
fn times(
    raw: &Raw<'_>,
    packet: &Packet<'_>,
    ts: i64,
    sequence: &mut Sequence,
    context: &mut Context<'_>,
) -> Result<(i64, Option<i64>, Option<i64>), Passed> {
    let mut monotonic = |microseconds: i64| {
        context
            .clocks
            .trace_time(MONOTONIC, microseconds)
            .unwrap_or(microseconds)
    };
    let ts = if let Some(delta) = raw.delta {
        let counts = sequence.counts.as_mut().ok_or(Passed::Skipped)?;
        counts.ts = counts.ts.wrapping_add(delta.wrapping_mul(1000));
        monotonic(counts.ts)
    } else if let Some(absolute) = raw.absolute.filter(|absolute| *absolute != 0) {
        monotonic(absolute.wrapping_mul(1000))
    } else if packet.timestamp.is_some() {
        ts
    } else {
        return Err(Passed::Error);
    };
    let thread_time = match raw.thread_delta {
        Some(delta) => {
            let counts = sequence.counts.as_mut().ok_or(Passed::Skipped)?;
            counts.thread_time = counts.thread_time.wrapping_add(delta.wrapping_mul(1000));
            Some(counts.thread_time)
        }
        None => raw.thread_absolute.map(|absolute| absolute.wrapping_mul(1000)),
    };
    let instructions = match raw.instruction_delta {
        Some(delta) => {
            let counts = sequence.counts.as_mut().ok_or(Passed::Skipped)?;
            counts.instructions = counts.instructions.wrapping_add(delta);
            Some(counts.instructions)
        }
        None => raw.instruction_absolute,
    };
    Ok((ts, thread_time, instructions))
}

/// Returns the value of a counter event, and takes in those of further counters. `None` if they are of no counter.
fn counted(
    raw: &Raw<'_>,
    several: &mut Several,
    uuid: u64,
    has_default: bool,
    sequence: &mut Sequence,
    context: &mut Context<'_>,
) -> Option<Option<f64>> {
    let mut value = None;
    if raw.kind == COUNTER {
        if raw.uuid.is_none() && !has_default {
            return None;
        }
        let given = raw.counter.map(|counter| counter as f64).or(raw.double_counter)?;
        value = Some(absolute(uuid, given, sequence, context)?);
    }
    if several.is_empty {
        return Some(value);
    }
    let Several {
        extra,
        extra_uuids,
        extra_double,
        extra_double_uuids,
        counters,
        ..
    } = several;
    let whole = (extra, extra_uuids, sequence.defaults.counters.clone());
    let double = (
        extra_double,
        extra_double_uuids,
        sequence.defaults.double_counters.clone(),
    );
    for (values, own, defaults) in [whole, double] {
        let uuids = if own.is_empty() { &defaults } else { &*own };
        for (at, value) in values.iter().enumerate() {
            let uuid = *uuids.get(at)?;
            if uuid == 0 || counters.len() >= 2 * MOST_COUNTERS {
                return None;
            }
            let value = absolute(uuid, *value, sequence, context)?;
            counters.extend([uuid.to_le_bytes(), value.to_le_bytes()]);
        }
    }
    Some(value)
}

/// Returns the value of a counter in its unit, whatever it counts from.
fn absolute(uuid: u64, value: f64, sequence: &mut Sequence, context: &mut Context<'_>) -> Option<f64> {
    let counter = context.descriptors.counter(uuid)?;
    let value = if counter.multiplier > 0 {
        value * counter.multiplier as f64
    } else {
        value
    };
    if !counter.is_incremental {
        return Some(value);
    }
    let sum = sequence.counters.entry(uuid).or_insert(0.0);
    *sum += value;
    Some(*sum)
}

/// Returns the categories of an event as one text.
fn category(
    raw: &Raw<'_>,
    several: &Several,
    sequence: &Sequence,
    context: &mut Context<'_>,
) -> Option<StringId> {
    match (raw.category_iid, &several.category_iids[..], &raw.categories[..]) {
        (None, _, []) => None,
        (Some(iid), [], []) => {
            let known = sequence.name(InternedData::EVENT_CATEGORIES, iid, context);
            Some(known.unwrap_or_else(|| context.strings.intern(&format!("unknown({iid})"))))
        }
        (None, _, [text]) => Some(context.strings.intern_bytes(text)),
        (iid, more, texts) => {
            let mut all: Vec<String> = Vec::new();
            for iid in iid.into_iter().chain(more.iter().copied()) {
                if let Some(name) = sequence.name(InternedData::EVENT_CATEGORIES, iid, context) {
                    all.push(context.strings.get(name).to_owned());
                }
            }
            all.extend(
                texts
                    .iter()
                    .map(|text| String::from_utf8_lossy(text).into_owned()),
            );
            let all = all.join(",");
            (!all.is_empty()).then(|| context.strings.intern(&all))
        }
    }
}

/// Adds the arguments of an event that have fields of their own.
fn arguments(message: &[u8], sequence: &Sequence, coder: &mut Coder<'_>, context: &mut Context<'_>) {
    const POSTED_FROM: u32 = 1;
    let mut location = None;
    let (mut task, mut processes) = (None, None);
    let (mut correlation, mut log) = (None, None);
    for field in fields(message) {
        match (field.number, field.value) {
            (TrackEvent::SOURCE_LOCATION_IID, Value::Varint(iid)) => {
                location = Some(sequence.location(iid));
            }
            (TrackEvent::LOG_MESSAGE, Value::Bytes(message)) => log = Some(message),
            (TrackEvent::TASK_EXECUTION, Value::Bytes(message)) => task = Some(message),
            (ACTIVE_PROCESSES, Value::Bytes(message)) => processes = Some(message),
            (TrackEvent::CORRELATION_ID, Value::Varint(id)) => {
                correlation = Some(context.strings.intern(&format!("tp:#{id}")));
            }
            (TrackEvent::CORRELATION_ID_STR, Value::Bytes(text)) => {
                correlation = Some(context.strings.intern_bytes(text));
            }
            (TrackEvent::CORRELATION_ID_STR_IID, Value::Varint(iid)) => {
                correlation = sequence.name(InternedData::CORRELATION_ID_STR, iid, context);
            }
            _ => {}
        }
    }
    match location {
        Some(Some(location)) => add_location(SOURCE_KEYS, location, coder, context),
        Some(None) => context.stats.add("track_event_parser_errors", None, 1),
        None => {}
    }
    if let Some(task) = task {
        let iid = number_of(task, POSTED_FROM).unwrap_or(0);
        match sequence.location(iid) {
            Some(location) => add_location(TASK_KEYS, location, coder, context),
            None => context.stats.add("track_event_parser_errors", None, 1),
        }
    }
    if let Some(message) = log {
        match log_message(message, sequence, context) {
            Some(log) => coder.log(&log),
            None => context.stats.add("track_event_parser_errors", None, 1),
        }
    }
    for field in processes.into_iter().flat_map(fields) {
        each_varint(field.value, |pid| coder.process(i64::from(pid as u32)));
    }
    if let Some(correlation) = correlation {
        let key = context.strings.intern("correlation_id");
        coder.pooled(key, key, correlation);
    }
}

/// Adds where an event says that it was, as it says it.
fn locations(message: &[u8], coder: &mut Coder<'_>, context: &mut Context<'_>) {
    for field in fields(message) {
        match (field.number, field.value) {
            (TrackEvent::SOURCE_LOCATION_IID, Value::Varint(iid)) => {
                let key = context.strings.intern("source_location_iid");
                coder.uint(key, key, iid);
            }
            (TrackEvent::SOURCE_LOCATION, Value::Bytes(message)) => own_location(message, coder, context),
            _ => {}
        }
    }
}

/// Reads what a program logged. `None` if its text is not known.
fn log_message(message: &[u8], sequence: &Sequence, context: &mut Context<'_>) -> Option<Log> {
    const SOURCE_LOCATION_IID: u32 = 1;
    const BODY_IID: u32 = 2;
    const PRIORITY: u32 = 3;
    let body = number_of(message, BODY_IID)?;
    let location = number_of(message, SOURCE_LOCATION_IID).and_then(|iid| sequence.location(iid));
    Some(Log {
        body: sequence.name(InternedData::LOG_MESSAGE_BODY, body, context)?,
        priority: number_of(message, PRIORITY).map(|priority| i64::from(priority as i32)),
        location,
    })
}

/// The keys of a file, a function and a line.
const SOURCE_KEYS: [&str; 3] = ["source.file_name", "source.function_name", "source.line_number"];
const TASK_KEYS: [&str; 3] = [
    "task.posted_from.file_name",
    "task.posted_from.function_name",
    "task.posted_from.line_number",
];

fn add_location(
    [file_key, function_key, line_key]: [&str; 3],
    location: SourceLocation,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) {
    let empty = context.strings.intern("");
    let file = location.file.unwrap_or(empty);
    let file = context.strings.get(file).replace('\\', "/");
    let file = context.strings.intern(&file);
    for (key, value) in [
        (file_key, file),
        (function_key, location.function.unwrap_or(empty)),
    ] {
        let key = context.strings.intern(key);
        coder.pooled(key, key, value);
    }
    let key = context.strings.intern(line_key);
    coder.uint(key, key, location.line.unwrap_or(0) as u64);
}

/// Adds a location that the event itself has.
fn own_location(message: &[u8], coder: &mut Coder<'_>, context: &mut Context<'_>) {
    const KEYS: [&str; 4] = [
        "source_location.iid",
        "source_location.file_name",
        "source_location.function_name",
        "source_location.line_number",
    ];
    for field in fields(message) {
        let Some(key) = KEYS.get(field.number.wrapping_sub(1) as usize) else {
            continue;
        };
        let key = context.strings.intern(key);
        match (field.number, field.value) {
            (1 | 4, Value::Varint(value)) => coder.uint(key, key, value),
            (2 | 3, Value::Bytes(text)) => coder.text(key, key, text),
            _ => {}
        }
    }
}

/// Takes in a description of a track. Returns whether the trackers should see it too.
pub(super) fn descriptor(message: &[u8], sequence: &mut Sequence, context: &mut Context<'_>) -> bool {
    let Some(uuid) = number_of(message, TrackDescriptor::UUID) else {
        context.stats.add("track_event_tokenizer_errors", None, 1);
        return false;
    };
    let mut descriptor = Descriptor {
        parent: number_of(message, TrackDescriptor::PARENT_UUID).unwrap_or(0),
        ordering: match number_of(message, TrackDescriptor::CHILD_ORDERING) {
            Some(1) => Some("lexicographic"),
            Some(2) => Some("chronological"),
            Some(3) => Some("explicit"),
            _ => None,
        },
        rank: number_of(message, TrackDescriptor::SIBLING_ORDER_RANK).map(|rank| i64::from(rank as i32)),
        ..Descriptor::default()
    };
    let mut text = |field| bytes_of(message, field).map(|text| context.strings.intern_bytes(text));
    descriptor.name = text(TrackDescriptor::NAME)
        .or_else(|| text(TrackDescriptor::STATIC_NAME))
        .or_else(|| text(TrackDescriptor::ATRACE_NAME));
    descriptor.description = text(TrackDescriptor::DESCRIPTION);
    descriptor.merge = match number_of(message, TrackDescriptor::SIBLING_MERGE_BEHAVIOR) {
        Some(2) => Merge::Never,
        Some(3) => {
            let number = number_of(message, TrackDescriptor::SIBLING_MERGE_KEY_INT);
            let key = text(TrackDescriptor::SIBLING_MERGE_KEY);
            let number = number.map(|number| format!("sibling_merge_key_int:{number}"));
            Merge::ByKey(key.or_else(|| number.map(|number| context.strings.intern(&number))))
        }
        _ => Merge::ByName,
    };
    if let Some(thread) = bytes_of(message, TrackDescriptor::THREAD) {
        let get = |field| number_of(thread, field).map(|value| i64::from(value as i32));
        let (Some(pid), Some(tid)) = (get(ThreadDescriptor::PID), get(ThreadDescriptor::TID)) else {
            context.stats.add("track_event_tokenizer_errors", None, 1);
            return false;
        };
        (descriptor.pid, descriptor.tid) = (Some(pid), Some(tid));
        descriptor.is_separate = number_of(message, TrackDescriptor::DISALLOW_MERGING_WITH_SYSTEM_TRACKS)
            .is_some_and(|value| value != 0);
        descriptor.is_sandboxed = is_sandboxed(message);
        describe(uuid, descriptor, context);
        if sequence.is_whole {
            sequence.set_thread(thread, descriptor.is_sandboxed);
        }
        return true;
    }
    if let Some(process) = bytes_of(message, TrackDescriptor::PROCESS) {
        let Some(pid) = number_of(process, ProcessDescriptor::PID) else {
            context.stats.add("track_event_tokenizer_errors", None, 1);
            return false;
        };
        descriptor.pid = Some((pid as u32).into());
    } else if let Some(counter) = bytes_of(message, TrackDescriptor::COUNTER) {
        describe_counter(counter, &mut descriptor, context);
    }
    describe(uuid, descriptor, context);
    true
}

/// Whether the number of a thread is that of a sandbox.
pub(crate) fn is_sandboxed(descriptor: &[u8]) -> bool {
    const CHROME_THREAD: u32 = 7;
    const IS_SANDBOXED_TID: u32 = 3;
    let chrome = bytes_of(descriptor, CHROME_THREAD);
    chrome
        .and_then(|chrome| number_of(chrome, IS_SANDBOXED_TID))
        .is_some_and(|value| value != 0)
}

fn describe(uuid: u64, descriptor: Descriptor, context: &mut Context<'_>) {
    if !context.descriptors.describe(uuid, descriptor) {
        context.stats.add("track_event_tokenizer_errors", None, 1);
    }
}

fn describe_counter(message: &[u8], descriptor: &mut Descriptor, context: &mut Context<'_>) {
    const THREAD_TIME: u64 = 1;
    const INSTRUCTIONS: u64 = 2;
    const UNITS: [&str; 4] = ["", "ns", "count", "bytes"];
    let get = |field| number_of(message, field).unwrap_or(0);
    let categories: Vec<_> = all_bytes(message, CounterDescriptor::CATEGORIES)
        .map(String::from_utf8_lossy)
        .collect();
    let categories = categories.join(",");
    let strings = &mut context.strings;
    let (builtin, unit) = match get(CounterDescriptor::TYPE) {
        THREAD_TIME => (Some(strings.intern("thread_time")), Some(strings.intern("ns"))),
        INSTRUCTIONS => (
            Some(strings.intern("thread_instruction_count")),
            Some(strings.intern("count")),
        ),
        _ => match UNITS.get(get(CounterDescriptor::UNIT) as usize) {
            Some(unit) if !unit.is_empty() => (None, Some(strings.intern(unit))),
            _ => {
                let name = bytes_of(message, CounterDescriptor::UNIT_NAME).filter(|name| !name.is_empty());
                (None, name.map(|name| strings.intern_bytes(name)))
            }
        },
    };
    descriptor.name = descriptor.name.or(builtin);
    descriptor.counter = Some(Counter {
        category: (!categories.is_empty()).then(|| strings.intern(&categories)),
        multiplier: get(CounterDescriptor::UNIT_MULTIPLIER) as i64,
        is_incremental: get(CounterDescriptor::IS_INCREMENTAL) != 0,
        builtin,
        share_key: bytes_of(message, CounterDescriptor::Y_AXIS_SHARE_KEY)
            .map(|key| strings.intern_bytes(key)),
        unit,
    });
}
