//! Makes track events of the events in Chrome's JSON.
//!
//! [`json`](super::json) calls it with each event. Slices that say where they end (`X`) become two events, so all events are kept and written in the
//! order of their times. Slices of a thread that overlap without nesting go to further tracks of the thread. Data without a field in a track event of its
//! own (the two ends of flows) is written as `LegacyEvent`, which upstream's trace processor treats as it treats the JSON. Ids of tracks are numbers
//! from 1.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::messages::track_event::legacy_event::FlowDirection;
use ferretto_proto::write::{DebugAnnotation, TracePacket, TrackEvent};
use ferretto_wire::Writer;
use serde_json::{Map, Value};

use super::{ImportError, Notes, Write};

/// The sequence of all packets.
const SEQUENCE: u32 = 1;
/// Nanoseconds in a microsecond, the unit of the times.
const MICROSECOND: i64 = 1000;
/// Upstream's name for a slice without one.
const NO_NAME: &str = "[No name]";

/// A thread as the events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Thread {
    pid: u32,
    tid: u32,
}

/// A line of the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Track {
    Global,
    Process(u32),
    Thread(Thread),
    /// A further track of a thread, for slices that overlap those of the first.
    Lane(Thread, usize),
    Async {
        pid: u32,
        name: String,
        id: String,
    },
    Counter {
        pid: u32,
        name: String,
    },
}

/// The effect of an event on its track.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Begin,
    End,
    /// A slice with its length in ns.
    Complete(u64),
    Instant,
    Counter(f64),
    /// An end of a flow, by its letter.
    Flow(char),
}

#[derive(Debug)]
struct Event {
    /// In ns.
    time: u64,
    track: Track,
    action: Action,
    /// Encoded fields of `TrackEvent`: name, categories, arguments, flows.
    fields: Box<[u8]>,
}

#[derive(Debug, Default)]
struct ProcessNames {
    name: Option<String>,
    labels: Vec<String>,
    sort_index: Option<i32>,
}

#[derive(Debug, Default)]
struct ThreadNames {
    name: Option<String>,
    sort_index: Option<i32>,
}

/// All events of a file.
#[derive(Debug, Default)]
pub(super) struct Events {
    events: Vec<Event>,
    processes: HashMap<u32, ProcessNames>,
    threads: HashMap<Thread, ThreadNames>,
    /// Events that become nothing, by the reason.
    skipped: BTreeMap<String, u64>,
}

impl Events {
    /// Takes in an event.
    ///
    /// # Errors
    /// If it is no event at all.
    pub(super) fn take(&mut self, event: &Value) -> Result<(), String> {
        let event = event.as_object().ok_or("an event has to be an object")?;
        let phase = text(event, "ph").ok_or("an event has to have a phase, `ph`, which is a letter")?;
        if let Err(reason) = self.event(event, phase) {
            *self.skipped.entry(reason).or_default() += 1;
        }
        Ok(())
    }

    /// Takes in an event of this phase; the error says why it becomes nothing.
    fn event(&mut self, event: &Map<String, Value>, phase: &str) -> Result<(), String> {
        let pid = self.process(event);
        let thread = Thread {
            pid,
            tid: self.thread(event, pid),
        };
        if phase == "M" {
            self.metadata(event, thread);
            return Ok(());
        }
        let time = event
            .get("ts")
            .and_then(nanoseconds)
            .ok_or("events have no time, `ts`")?;
        let time = u64::try_from(time).map_err(|_| "events are before the time 0")?;
        let name = text(event, "name");
        let mut push = |track, action, fields: Writer| {
            self.events.push(Event {
                time,
                track,
                action,
                fields: fields.into_vec().into(),
            });
        };
        match phase {
            "B" => push(
                Track::Thread(thread),
                Action::Begin,
                fields(event, name.or(Some(NO_NAME))),
            ),
            "E" => push(Track::Thread(thread), Action::End, fields(event, None)),
            "X" => {
                let length = event.get("dur").and_then(nanoseconds);
                let length = length.ok_or("slices (`X`) have no length, `dur`")?;
                let length = u64::try_from(length).map_err(|_| "slices (`X`) have a negative length")?;
                let fields = fields(event, name.or(Some(NO_NAME)));
                push(Track::Thread(thread), Action::Complete(length), fields);
            }
            "i" | "I" | "R" => {
                let track = match text(event, "s") {
                    Some("g") => Track::Global,
                    Some("p") => Track::Process(pid),
                    _ => Track::Thread(thread),
                };
                push(track, Action::Instant, fields(event, name.or(Some(NO_NAME))));
            }
            "b" | "e" | "n" | "S" | "F" => {
                let id = async_id(event).ok_or("asynchronous events have no `id`")?;
                let track = Track::Async {
                    pid,
                    name: name.unwrap_or_default().to_owned(),
                    id,
                };
                match phase {
                    "b" | "S" => push(track, Action::Begin, fields(event, name.or(Some(NO_NAME)))),
                    "n" => push(track, Action::Instant, fields(event, name.or(Some(NO_NAME)))),
                    _ => push(track, Action::End, fields(event, None)),
                }
            }
            "s" | "t" | "f" => {
                let id = event
                    .get("id")
                    .and_then(flow_id)
                    .ok_or("ends of flows have no `id`")?;
                let letter = phase.chars().next().unwrap_or('s');
                let mut fields = names(event, name);
                let binds_to_enclosing = text(event, "bp") == Some("e");
                TrackEvent::new(&mut fields).legacy_event(|legacy| {
                    legacy
                        .phase(letter as i32)
                        .unscoped_id(id)
                        .bind_to_enclosing(binds_to_enclosing);
                });
                push(Track::Thread(thread), Action::Flow(letter), fields);
            }
            "C" => {
                let values = event.get("args").and_then(Value::as_object);
                let values = values.ok_or("counters (`C`) have no values, `args`")?;
                let id = event.get("id").and_then(id_text).map(|id| format!(" id: {id}"));
                for (key, value) in values {
                    let value = value.as_f64().or_else(|| value.as_str()?.parse().ok());
                    let value = value.ok_or("values of counters (`C`) are no numbers")?;
                    let name = name.unwrap_or_default();
                    let name = format!("{name}{} {key}", id.as_deref().unwrap_or_default());
                    let track = Track::Counter { pid, name };
                    push(track, Action::Counter(value), Writer::new());
                }
            }
            other => return Err(format!("events of the phase `{other}` have no counterpart")),
        }
        Ok(())
    }

    /// Returns the process of an event. A process whose id is a word gets a number.
    fn process(&mut self, event: &Map<String, Value>) -> u32 {
        match event.get("pid") {
            Some(Value::String(word)) => word.parse().unwrap_or_else(|_| {
                let pid = number_of(word);
                self.processes
                    .entry(pid)
                    .or_default()
                    .name
                    .get_or_insert_with(|| word.clone());
                pid
            }),
            Some(value) => number(value),
            None => 0,
        }
    }

    fn thread(&mut self, event: &Map<String, Value>, pid: u32) -> u32 {
        match event.get("tid") {
            Some(Value::String(word)) => word.parse().unwrap_or_else(|_| {
                let tid = number_of(word);
                let names = self.threads.entry(Thread { pid, tid }).or_default();
                names.name.get_or_insert_with(|| word.clone());
                tid
            }),
            Some(value) => number(value),
            None => 0,
        }
    }

    fn metadata(&mut self, event: &Map<String, Value>, thread: Thread) {
        let Some(arguments) = event.get("args").and_then(Value::as_object) else {
            return;
        };
        let name = || text(arguments, "name").map(str::to_owned);
        let sort_index = || {
            let index = arguments.get("sort_index")?;
            index
                .as_i64()
                .or_else(|| index.as_f64().map(|index| index as i64))
                .map(|index| index as i32)
        };
        let process = self.processes.entry(thread.pid).or_default();
        match text(event, "name") {
            Some("process_name") => process.name = name().or(process.name.take()),
            Some("process_sort_index") => process.sort_index = sort_index(),
            Some("process_labels") => process
                .labels
                .extend(text(arguments, "labels").map(str::to_owned)),
            Some("thread_name") => self.threads.entry(thread).or_default().name = name(),
            Some("thread_sort_index") => self.threads.entry(thread).or_default().sort_index = sort_index(),
            _ => {}
        }
    }

    /// Passes on the packets, and returns what is missing from them.
    ///
    /// # Errors
    /// The errors of `write`.
    pub(super) fn write(mut self, write: &mut Write<'_>) -> Result<Notes, ImportError> {
        let events = in_order(std::mem::take(&mut self.events));
        let mut packets = Packets {
            names: &self,
            uuids: HashMap::new(),
            lanes: HashMap::new(),
            ends: BinaryHeap::new(),
            is_begun: false,
            write,
        };
        for processes in self.processes.iter().filter(|(_, names)| names.name.is_some()) {
            packets.uuid(&Track::Process(*processes.0))?;
        }
        for thread in self.threads.keys() {
            packets.uuid(&Track::Thread(*thread))?;
        }
        for event in &events {
            packets.event(event)?;
        }
        packets.ends_until(u64::MAX)?;
        let notes = self.skipped.iter();
        Ok(notes
            .map(|(reason, count)| format!("{count} {reason}; they are left out"))
            .collect())
    }
}

/// Sorts events by time. The longest of slices that begin together, one after another in the file, is first, because it contains the others.
fn in_order(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| event.time);
    let length = |event: &Event| match event.action {
        Action::Complete(length) => Some(length),
        _ => None,
    };
    let same = |a: &Event, b: &Event| a.time == b.time && length(a).is_some() && length(b).is_some();
    for run in events.chunk_by_mut(same) {
        run.sort_by_key(|event| Reverse(length(event)));
    }
    events
}

/// Writes packets in the order of their times.
struct Packets<'a, 'w> {
    names: &'a Events,
    uuids: HashMap<Track, u64>,
    /// The ends of the open slices of each track of a thread. A slice without a known end is open until it is ended.
    lanes: HashMap<Thread, Vec<Vec<Option<u64>>>>,
    /// The ends that are to be written, with the ids of their tracks.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    is_begun: bool,
    write: &'a mut Write<'w>,
}

impl Packets<'_, '_> {
    fn event(&mut self, event: &Event) -> Result<(), ImportError> {
        self.ends_until(event.time)?;
        let (track, kind) = match (event.action, &event.track) {
            (Action::Complete(length), Track::Thread(thread)) => {
                let lane = self.lane(*thread, event.time, event.time.saturating_add(length));
                let track = match lane {
                    0 => event.track.clone(),
                    lane => Track::Lane(*thread, lane),
                };
                (track, Type::TYPE_SLICE_BEGIN)
            }
            (Action::Begin, track) => {
                if let Track::Thread(thread) = track {
                    self.lanes_of(*thread)[0].push(None);
                }
                (track.clone(), Type::TYPE_SLICE_BEGIN)
            }
            (Action::End, track) => {
                if let Track::Thread(thread) = track {
                    let open = &mut self.lanes_of(*thread)[0];
                    if let Some(place) = open.iter().rposition(Option::is_none) {
                        open.remove(place);
                    }
                }
                (track.clone(), Type::TYPE_SLICE_END)
            }
            (Action::Counter(_), track) => (track.clone(), Type::TYPE_COUNTER),
            (Action::Flow(_), track) => (track.clone(), Type::TYPE_UNSPECIFIED),
            (Action::Instant | Action::Complete(_), track) => (track.clone(), Type::TYPE_INSTANT),
        };
        let uuid = self.uuid(&track)?;
        self.packet(event.time, uuid, kind, event.action, &event.fields)?;
        match event.action {
            Action::Complete(0) => self.end(event.time, uuid),
            Action::Complete(length) => {
                self.ends.push(Reverse((event.time.saturating_add(length), uuid)));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the ends of slices up to a time.
    fn ends_until(&mut self, time: u64) -> Result<(), ImportError> {
        while let Some(Reverse((end, uuid))) =
            self.ends.peek().copied().filter(|Reverse((end, _))| *end <= time)
        {
            self.ends.pop();
            self.end(end, uuid)?;
        }
        Ok(())
    }

    fn end(&mut self, time: u64, uuid: u64) -> Result<(), ImportError> {
        self.packet(time, uuid, Type::TYPE_SLICE_END, Action::End, &[])
    }

    fn lanes_of(&mut self, thread: Thread) -> &mut Vec<Vec<Option<u64>>> {
        self.lanes.entry(thread).or_insert_with(|| vec![Vec::new()])
    }

    /// Returns the first track of a thread on which a slice nests, and notes it there.
    fn lane(&mut self, thread: Thread, begin: u64, end: u64) -> usize {
        let lanes = self.lanes_of(thread);
        for lane in lanes.iter_mut() {
            lane.retain(|open| open.is_none_or(|open| open > begin));
        }
        let nests = |open: &Vec<Option<u64>>| open.iter().flatten().all(|outer| *outer >= end);
        let lane = lanes.iter().position(nests).unwrap_or_else(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push(Some(end));
        lane
    }

    fn packet(
        &mut self,
        time: u64,
        uuid: u64,
        kind: Type,
        action: Action,
        fields: &[u8],
    ) -> Result<(), ImportError> {
        let mut writer = Writer::new();
        let mut packet = TracePacket::new(&mut writer);
        packet.timestamp(time).trusted_packet_sequence_id(SEQUENCE);
        if !std::mem::replace(&mut self.is_begun, true) {
            packet.sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32);
        }
        packet.track_event(|event| {
            event.track_uuid(uuid);
            if kind != Type::TYPE_UNSPECIFIED {
                event.r#type(kind);
            }
            if let Action::Counter(value) = action {
                event.double_counter_value(value);
            }
            event.writer().raw(fields);
        });
        (self.write)(writer.as_slice())
    }

    /// Returns the id of a track, which is described before it is used.
    fn uuid(&mut self, track: &Track) -> Result<u64, ImportError> {
        if let Some(uuid) = self.uuids.get(track) {
            return Ok(*uuid);
        }
        let parent = match track {
            Track::Global | Track::Process(_) => None,
            Track::Thread(Thread { pid, .. }) | Track::Async { pid, .. } | Track::Counter { pid, .. } => {
                Some(self.uuid(&Track::Process(*pid))?)
            }
            Track::Lane(thread, _) => Some(self.uuid(&Track::Thread(*thread))?),
        };
        let uuid = self.uuids.len() as u64 + 1;
        self.uuids.insert(track.clone(), uuid);
        let mut writer = Writer::new();
        let mut packet = TracePacket::new(&mut writer);
        packet.trusted_packet_sequence_id(SEQUENCE);
        let names = self.names;
        packet.track_descriptor(|descriptor| {
            descriptor.uuid(uuid);
            // A thread knows its process by the id.
            if let (Some(parent), false) = (parent, matches!(track, Track::Thread(_))) {
                descriptor.parent_uuid(parent);
            }
            match track {
                Track::Global => {
                    descriptor.name("Global instants");
                }
                Track::Process(pid) => {
                    let names = names.processes.get(pid);
                    descriptor.process(|process| {
                        process.pid(*pid as i32);
                        if let Some(name) = names.and_then(|names| names.name.as_ref()) {
                            process.process_name(name);
                        }
                        if let Some(index) = names.and_then(|names| names.sort_index) {
                            process.legacy_sort_index(index);
                        }
                        for label in names.iter().flat_map(|names| &names.labels) {
                            process.process_labels(label);
                        }
                    });
                }
                Track::Thread(thread) => {
                    let names = names.threads.get(thread);
                    descriptor.thread(|entry| {
                        entry.pid(thread.pid as i32).tid(thread.tid.into());
                        if let Some(name) = names.and_then(|names| names.name.as_ref()) {
                            entry.thread_name(name);
                        }
                        if let Some(index) = names.and_then(|names| names.sort_index) {
                            entry.legacy_sort_index(index);
                        }
                    });
                }
                Track::Lane(..) => {
                    descriptor.name("Overlapping slices");
                }
                Track::Async { name, .. } => {
                    descriptor.name(name);
                }
                Track::Counter { name, .. } => {
                    descriptor.name(name).counter(|_| {});
                }
            }
        });
        (self.write)(writer.as_slice())?;
        Ok(uuid)
    }
}

/// Returns encoded fields: name, categories, arguments and flows of the second version.
fn fields(event: &Map<String, Value>, name: Option<&str>) -> Writer {
    let mut writer = names(event, name);
    let mut encoded = TrackEvent::new(&mut writer);
    for (key, value) in event.get("args").and_then(Value::as_object).into_iter().flatten() {
        encoded.debug_annotations(|annotation| {
            annotation.name(key);
            argument(annotation, value);
        });
    }
    let is_set = |key| event.get(key).and_then(Value::as_bool).unwrap_or(false);
    let direction = match (is_set("flow_in"), is_set("flow_out")) {
        (true, true) => FlowDirection::FLOW_INOUT,
        (true, false) => FlowDirection::FLOW_IN,
        (false, true) => FlowDirection::FLOW_OUT,
        (false, false) => return writer,
    };
    if let Some(id) = event.get("bind_id").and_then(flow_id) {
        encoded.legacy_event(|legacy| {
            legacy.bind_id(id).flow_direction(direction);
        });
    }
    writer
}

fn names(event: &Map<String, Value>, name: Option<&str>) -> Writer {
    let mut writer = Writer::new();
    let mut encoded = TrackEvent::new(&mut writer);
    if let Some(name) = name {
        encoded.name(name);
    }
    if let Some(category) = text(event, "cat") {
        encoded.categories(category);
    }
    writer
}

fn argument(annotation: &mut DebugAnnotation<'_>, value: &Value) {
    match value {
        Value::Null => {
            annotation.string_value("null");
        }
        Value::Bool(value) => {
            annotation.bool_value(*value);
        }
        Value::Number(number) => {
            match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => annotation.int_value(number),
                (None, Some(number)) => annotation.uint_value(number),
                (None, None) => annotation.double_value(number.as_f64().unwrap_or(0.0)),
            };
        }
        Value::String(text) => {
            annotation.string_value(text);
        }
        Value::Array(values) => {
            for value in values {
                annotation.array_values(|entry| argument(entry, value));
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                annotation.dict_entries(|entry| {
                    entry.name(key);
                    argument(entry, value);
                });
            }
        }
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str()
}

/// Returns a time in ns. It is in µs, a number or a number in a string, perhaps with a fraction.
fn nanoseconds(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.checked_mul(MICROSECOND),
            None => Some((number.as_f64()? * MICROSECOND as f64).round() as i64),
        },
        Value::String(text) => nanoseconds(&Value::Number(text.trim().parse().ok()?)),
        _ => None,
    }
}

/// Returns an id of a process or a thread. A value that is none counts as 0, as for upstream.
fn number(value: &Value) -> u32 {
    let number = value
        .as_i64()
        .or_else(|| value.as_f64().map(|number| number as i64));
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// Returns a number for a word, the same each time (FNV-1a), above all real ids.
fn number_of(word: &str) -> u32 {
    const ABOVE: u32 = 1 << 30;
    let hash = word.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    ABOVE | hash & (ABOVE - 1)
}

/// Returns an id as text.
fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns what tells asynchronous slices of one name apart: an id of the trace or of the process.
fn async_id(event: &Map<String, Value>) -> Option<String> {
    let both = event.get("id2").and_then(Value::as_object);
    let of = |key| both.and_then(|both| both.get(key)).and_then(id_text);
    let id = event.get("id").and_then(id_text);
    id.or_else(|| of("global"))
        .or_else(|| of("local").map(|id| format!("local {id}")))
}

/// Returns the id of a flow: a number, or a hexadecimal one in a string.
fn flow_id(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_i64().map(|id| id as u64)),
        Value::String(text) => {
            let digits = text.trim().trim_start_matches("0x").trim_start_matches("0X");
            u64::from_str_radix(digits, 16).ok()
        }
        _ => None,
    }
}
