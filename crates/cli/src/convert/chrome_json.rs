//! Track events as Chrome's JSON: what programs say of themselves.
//!
//! Slices and instants of threads become `B`, `E` and `i`; those of other tracks `b`, `e` and `n` with the id of their track; counters `C`; flows `s`,
//! `t` and `f`; names of processes and threads `M`. Events are in the order of their times. Kernel events are in the format `systrace`, samples in those
//! of profiles; here they are left out. (Upstream's `traceconv json` puts the kernel events as text into the same file.)

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write};

use ferretto_proto::messages::track_event::legacy_event::Id;
use ferretto_proto::messages::track_event::{CounterValueField, NameField, Type};
use ferretto_proto::messages::{
    ClockSnapshot, InternedData, Message, ThreadDescriptor, TrackDescriptor, TrackEvent, TrackEventDefaults,
};
use ferretto_proto::write::{TracePacket, TracePacketDefaults};
use ferretto_wire::{Reader, Value, Writer};
use serde_json::json;

use super::annotations::{Texts, arguments};
use super::sorted_spool::SortedSpool;
use crate::packet::{Packet, SequenceState, bytes};
use crate::samples::{Names, Thread};
use crate::timeline::Timeline;

/// The most parents of a track that are followed.
const MAX_DEPTH: usize = 64;

/// Fields of a record between the two passes.
mod field {
    pub(super) const TRACK: u32 = 1;
    pub(super) const PHASE: u32 = 2;
    pub(super) const VALUE: u32 = 3;
    pub(super) const NAME: u32 = 4;
    /// Members of the JSON object that are known in the first pass.
    pub(super) const MEMBERS: u32 = 5;
    pub(super) const FLOW: u32 = 6;
    pub(super) const LAST_FLOW: u32 = 7;
    pub(super) const PID: u32 = 8;
    pub(super) const TID: u32 = 9;
}

#[derive(Debug, Default)]
struct Sequence {
    names: HashMap<u64, String>,
    categories: HashMap<u64, String>,
    texts: Texts,
    defaults: TrackEventDefaults,
    /// The thread of events without a track, as old producers say it.
    thread: Option<Thread>,
}

/// A track as its descriptor says.
#[derive(Debug, Default, Clone)]
struct Track {
    parent: u64,
    name: String,
    thread: Option<Thread>,
    pid: Option<u32>,
    counter: Option<Counter>,
}

#[derive(Debug, Clone, Copy)]
struct Counter {
    multiplier: f64,
    is_incremental: bool,
}

/// Where events of a track belong.
#[derive(Debug, Clone)]
struct Place {
    pid: u32,
    tid: u32,
    is_thread: bool,
    /// Whether no process is known for it.
    is_global: bool,
    name: String,
}

/// Takes in packets and writes JSON.
pub(super) struct ChromeJson {
    sequences: HashMap<u32, SequenceState<Sequence>>,
    timeline: Timeline,
    tracks: HashMap<u64, Track>,
    names: Names,
    spool: SortedSpool,
    /// The values of incremental counters.
    counts: HashMap<u64, f64>,
    /// Events that are not in the output, by the reason.
    pub(super) skipped: BTreeMap<&'static str, u64>,
}

impl ChromeJson {
    /// # Errors
    /// If there can be no temporary file.
    pub(super) fn new() -> io::Result<ChromeJson> {
        Ok(ChromeJson {
            sequences: HashMap::new(),
            timeline: Timeline::default(),
            tracks: HashMap::new(),
            names: Names::default(),
            spool: SortedSpool::new()?,
            counts: HashMap::new(),
            skipped: BTreeMap::new(),
        })
    }

    /// Whether no event has come so far.
    pub(super) fn is_empty(&self) -> bool {
        self.spool.is_empty()
    }

    /// Takes in a packet.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub(super) fn packet(&mut self, encoded: &[u8]) -> io::Result<()> {
        let packet = Packet::new(encoded);
        let sequence = self.sequences.entry(packet.sequence).or_default();
        if !sequence.take(&packet) {
            if matches!(packet.content, Some((TracePacket::TRACK_EVENT, _))) {
                *self
                    .skipped
                    .entry("track events refer to packets that were lost")
                    .or_default() += 1;
            }
            return Ok(());
        }
        if let Some(defaults) = packet.defaults {
            let defaults = bytes(defaults, TracePacketDefaults::TRACK_EVENT_DEFAULTS);
            let defaults = defaults.and_then(|defaults| TrackEventDefaults::decode_from_slice(defaults).ok());
            sequence.state.defaults = defaults.unwrap_or_default();
        }
        for interned in &packet.interned {
            if let Ok(interned) = InternedData::decode_from_slice(interned) {
                sequence.state.take(&interned);
            }
        }
        let Some((kind, content)) = packet.content else {
            return Ok(());
        };
        match kind {
            TracePacket::TRACK_EVENT => return self.track_event(&packet, content),
            TracePacket::TRACK_DESCRIPTOR => {
                self.names.track_descriptor(content);
                if let Ok(descriptor) = TrackDescriptor::decode_from_slice(content) {
                    self.descriptor(&descriptor);
                }
            }
            TracePacket::THREAD_DESCRIPTOR => {
                if let Ok(thread) = ThreadDescriptor::decode_from_slice(content) {
                    sequence.state.thread = Some(thread_of(&thread));
                }
            }
            TracePacket::PROCESS_TREE => self.names.process_tree(content),
            TracePacket::CLOCK_SNAPSHOT => {
                if let Ok(snapshot) = ClockSnapshot::decode_from_slice(content) {
                    self.timeline.snapshot(packet.sequence, &snapshot);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn descriptor(&mut self, descriptor: &TrackDescriptor) {
        let track = self.tracks.entry(descriptor.uuid.unwrap_or(0)).or_default();
        track.parent = descriptor.parent_uuid.unwrap_or(track.parent);
        if let Some(name) = name_of(descriptor) {
            track.name = name;
        }
        if let Some(thread) = descriptor.thread.as_option() {
            track.thread = Some(thread_of(thread));
        }
        if let Some(process) = descriptor.process.as_option() {
            track.pid = Some(process.pid.unwrap_or(0) as u32);
        }
        if let Some(counter) = descriptor.counter.as_option() {
            track.counter = Some(Counter {
                multiplier: counter.unit_multiplier.unwrap_or(1) as f64,
                is_incremental: counter.is_incremental.unwrap_or(false),
            });
        }
    }

    fn track_event(&mut self, packet: &Packet<'_>, content: &[u8]) -> io::Result<()> {
        let Some(sequence) = self.sequences.get(&packet.sequence) else {
            return Ok(());
        };
        let Ok(event) = TrackEvent::decode_from_slice(content) else {
            *self.skipped.entry("track events are damaged").or_default() += 1;
            return Ok(());
        };
        let clock = sequence.clock_of(packet);
        let time = packet
            .timestamp
            .and_then(|time| self.timeline.boot_time(packet.sequence, clock, time));
        let Some(time) = time else {
            *self
                .skipped
                .entry("track events have a time on a clock that the trace does not know")
                .or_default() += 1;
            return Ok(());
        };
        let state = &sequence.state;
        let phase = match event.r#type {
            Some(Type::TYPE_SLICE_BEGIN) => 'B',
            Some(Type::TYPE_SLICE_END) => 'E',
            Some(Type::TYPE_INSTANT) => 'i',
            Some(Type::TYPE_COUNTER) => 'C',
            _ => {
                let legacy = event.legacy_event.phase.unwrap_or(0);
                match u8::try_from(legacy).map(char::from) {
                    Ok(phase) if phase.is_ascii_alphabetic() => phase,
                    _ => {
                        *self
                            .skipped
                            .entry("track events are of a type that Chrome's JSON lacks")
                            .or_default() += 1;
                        return Ok(());
                    }
                }
            }
        };
        let mut record = Writer::new();
        let own = event.track_uuid.or(state.defaults.track_uuid);
        let overriding = event
            .legacy_event
            .pid_override
            .zip(event.legacy_event.tid_override);
        match (own, overriding, state.thread) {
            (_, Some((pid, tid)), _) => {
                record.varint_field(field::PID, pid as u32 as u64);
                record.varint_field(field::TID, tid as u32 as u64);
            }
            (None, None, Some(thread)) => {
                record.varint_field(field::PID, thread.pid.into());
                record.varint_field(field::TID, thread.tid.into());
            }
            (own, None, _) => record.varint_field(field::TRACK, own.unwrap_or(0)),
        }
        record.varint_field(field::PHASE, phase as u64);
        let name = state.name(&event);
        record.bytes_field(field::NAME, name.as_bytes());
        let members = state.members(&event, phase);
        record.bytes_field(field::MEMBERS, members.as_bytes());
        for flow in event.flow_ids.iter().chain(&event.flow_ids_old) {
            record.varint_field(field::FLOW, *flow);
        }
        for flow in event
            .terminating_flow_ids
            .iter()
            .chain(&event.terminating_flow_ids_old)
        {
            record.varint_field(field::LAST_FLOW, *flow);
        }
        let value = match event.counter_value_field {
            Some(CounterValueField::CounterValue(value)) => Some(value as f64),
            Some(CounterValueField::DoubleCounterValue(value)) => Some(value),
            None => None,
        };
        let mut counters = Vec::new();
        if phase == 'C'
            && let Some(value) = value
        {
            let track = own.unwrap_or(0);
            record.fixed64_field(field::VALUE, self.counted(track, value).to_bits());
        }
        let state = match self.sequences.get(&packet.sequence) {
            Some(sequence) => &sequence.state,
            None => return Ok(()),
        };
        let uuids = |own: &Vec<u64>, defaults: &Vec<u64>| match own.is_empty() {
            true => defaults.clone(),
            false => own.clone(),
        };
        let extra = uuids(
            &event.extra_counter_track_uuids,
            &state.defaults.extra_counter_track_uuids,
        );
        counters.extend(
            extra
                .into_iter()
                .zip(event.extra_counter_values.iter().map(|value| *value as f64)),
        );
        let extra = uuids(
            &event.extra_double_counter_track_uuids,
            &state.defaults.extra_double_counter_track_uuids,
        );
        counters.extend(
            extra
                .into_iter()
                .zip(event.extra_double_counter_values.iter().copied()),
        );
        self.spool.push(time, record.as_slice())?;
        for (track, value) in counters {
            record.clear();
            record.varint_field(field::TRACK, track);
            record.varint_field(field::PHASE, 'C' as u64);
            record.fixed64_field(field::VALUE, self.counted(track, value).to_bits());
            self.spool.push(time, record.as_slice())?;
        }
        Ok(())
    }

    /// Returns the value of a counter in its unit.
    fn counted(&mut self, track: u64, value: f64) -> f64 {
        let counter = self.tracks.get(&track).and_then(|track| track.counter);
        let Some(counter) = counter else { return value };
        let value = match counter.is_incremental {
            true => {
                let count = self.counts.entry(track).or_default();
                *count += value;
                *count
            }
            false => value,
        };
        value * counter.multiplier
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The errors of `out`, or if the temporary file cannot be read.
    pub(super) fn finish(self, out: &mut dyn Write) -> io::Result<()> {
        let mut second = SecondPass {
            tracks: &self.tracks,
            open: HashMap::new(),
            flows: HashSet::new(),
            threads: BTreeSet::new(),
            separator: "\n",
            out,
        };
        second.out.write_all(b"{\"traceEvents\":[")?;
        self.spool.each(|time, record| second.record(time, record))?;
        second.metadata(&self.names)?;
        second.out.write_all(b"\n],\"displayTimeUnit\":\"ns\"}\n")
    }
}

impl Sequence {
    fn take(&mut self, interned: &InternedData) {
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        for entry in &interned.event_names {
            self.names
                .entry(entry.iid.unwrap_or(0))
                .or_insert_with(|| text(&entry.name));
        }
        for entry in &interned.event_categories {
            self.categories
                .entry(entry.iid.unwrap_or(0))
                .or_insert_with(|| text(&entry.name));
        }
        self.texts.take(interned);
    }

    fn name(&self, event: &TrackEvent) -> String {
        let by_id = |iid: &u64| self.names.get(iid).cloned().unwrap_or_default();
        match &event.name_field {
            Some(NameField::Name(name)) => name.clone(),
            Some(NameField::NameIid(iid)) => by_id(iid),
            None => event
                .legacy_event
                .name_iid
                .as_ref()
                .map(by_id)
                .unwrap_or_default(),
        }
    }

    /// Returns the members of the object that do not depend on its track, each after a comma.
    fn members(&self, event: &TrackEvent, phase: char) -> String {
        let mut categories: Vec<&str> = event.categories.iter().map(String::as_str).collect();
        categories.extend(
            event
                .category_iids
                .iter()
                .filter_map(|iid| self.categories.get(iid))
                .map(String::as_str),
        );
        let mut members = String::new();
        let mut member =
            |key: &str, value: serde_json::Value| members.push_str(&format!(",\"{key}\":{value}"));
        if !categories.is_empty() {
            member("cat", categories.join(",").into());
        }
        let arguments = arguments(&event.debug_annotations, &self.texts);
        if !arguments.is_empty() {
            member("args", arguments.into());
        }
        let legacy = &event.legacy_event;
        if let Some(length) = legacy.duration_us.filter(|_| phase == 'X') {
            member("dur", length.into());
        }
        match &legacy.id {
            Some(Id::UnscopedId(id)) => member("id", format!("{id:#x}").into()),
            Some(Id::LocalId(id)) => member("id2", json!({ "local": format!("{id:#x}") })),
            Some(Id::GlobalId(id)) => member("id2", json!({ "global": format!("{id:#x}") })),
            None => {}
        }
        if legacy.bind_to_enclosing == Some(true) {
            member("bp", "e".into());
        }
        members
    }
}

/// The state for writing events in the order of their times.
struct SecondPass<'a> {
    tracks: &'a HashMap<u64, Track>,
    /// The names of open slices of tracks that are no threads, for their ends have to repeat them.
    open: HashMap<u64, Vec<String>>,
    /// Flows that have begun.
    flows: HashSet<u64>,
    threads: BTreeSet<Thread>,
    separator: &'static str,
    out: &'a mut dyn Write,
}

impl SecondPass<'_> {
    fn record(&mut self, time: u64, record: &[u8]) -> io::Result<()> {
        let (mut track, mut phase, mut value) = (0, 'i', None);
        let (mut name, mut members) = ("", "");
        let (mut pid, mut tid) = (None, 0);
        let (mut flows, mut last_flows) = (Vec::new(), Vec::new());
        for entry in Reader::new(record).map_while(Result::ok) {
            match (entry.number, entry.value) {
                (field::TRACK, Value::Varint(uuid)) => track = uuid,
                (field::PHASE, Value::Varint(letter)) => phase = char::from(letter as u8),
                (field::VALUE, Value::Fixed64(bits)) => value = Some(f64::from_bits(bits)),
                (field::NAME, Value::Bytes(text)) => name = std::str::from_utf8(text).unwrap_or_default(),
                (field::MEMBERS, Value::Bytes(text)) => {
                    members = std::str::from_utf8(text).unwrap_or_default()
                }
                (field::FLOW, Value::Varint(flow)) => flows.push(flow),
                (field::LAST_FLOW, Value::Varint(flow)) => last_flows.push(flow),
                (field::PID, Value::Varint(id)) => pid = Some(id as u32),
                (field::TID, Value::Varint(id)) => tid = id as u32,
                _ => {}
            }
        }
        let place = match pid {
            Some(pid) => Place {
                pid,
                tid,
                is_thread: true,
                is_global: false,
                name: String::new(),
            },
            None => self.place(track),
        };
        if phase == 'C' {
            let Some(value) = value else { return Ok(()) };
            let name = if place.name.is_empty() { name } else { &place.name };
            let members = format!(",\"args\":{}", json!({ "value": value }));
            return self.event('C', time, &place, name, &members);
        }
        if place.is_thread || !matches!(phase, 'B' | 'E' | 'i') {
            self.event(phase, time, &place, name, members)?;
        } else if place.is_global && phase == 'i' {
            self.event('i', time, &place, name, &format!("{members},\"s\":\"g\""))?;
        } else {
            self.asynchronous(phase, time, track, &place, name, members)?;
        }
        for flow in flows {
            let phase = if self.flows.insert(flow) { 's' } else { 't' };
            self.flow(phase, time, &place, flow)?;
        }
        for flow in last_flows {
            self.flows.remove(&flow);
            self.flow('f', time, &place, flow)?;
        }
        Ok(())
    }

    /// Writes an event of a track that is no thread.
    fn asynchronous(
        &mut self,
        phase: char,
        time: u64,
        track: u64,
        place: &Place,
        name: &str,
        members: &str,
    ) -> io::Result<()> {
        let open = self.open.entry(track).or_default();
        let (phase, name) = match phase {
            'B' => {
                open.push(name.to_owned());
                ('b', name.to_owned())
            }
            'E' => ('e', open.pop().unwrap_or_default()),
            _ => ('n', name.to_owned()),
        };
        // Readers of the format want a category.
        let category = if members.contains("\"cat\":") {
            ""
        } else {
            ",\"cat\":\"\""
        };
        let members = format!("{members}{category},\"id2\":{{\"local\":\"{track:#x}\"}}");
        self.event(phase, time, place, &name, &members)
    }

    fn flow(&mut self, phase: char, time: u64, place: &Place, flow: u64) -> io::Result<()> {
        let binding = if phase == 'f' { ",\"bp\":\"e\"" } else { "" };
        let members = format!(",\"cat\":\"flow\",\"id\":\"{flow:#x}\"{binding}");
        self.event(phase, time, place, "flow", &members)
    }

    fn event(&mut self, phase: char, time: u64, place: &Place, name: &str, members: &str) -> io::Result<()> {
        let separator = std::mem::replace(&mut self.separator, ",\n");
        let Place { pid, tid, .. } = *place;
        write!(
            self.out,
            "{separator}{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}",
            Microseconds(time)
        )?;
        if !name.is_empty() {
            write!(self.out, ",\"name\":{}", serde_json::Value::from(name))?;
        }
        self.threads.insert(Thread { pid, tid });
        write!(self.out, "{members}}}")
    }

    /// Writes the names of the processes and threads that have events.
    fn metadata(&mut self, names: &Names) -> io::Result<()> {
        let mut named = None;
        for thread in std::mem::take(&mut self.threads) {
            let Thread { pid, tid } = thread;
            let mut entry = |kind: &str, name: &str| {
                let event = json!({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}});
                let separator = std::mem::replace(&mut self.separator, ",\n");
                write!(self.out, "{separator}{event}")
            };
            if named.replace(pid) != Some(pid)
                && let Some(name) = names.process(pid)
            {
                entry("process_name", name)?;
            }
            if let Some(name) = names.thread(thread) {
                entry("thread_name", name)?;
            }
        }
        Ok(())
    }

    /// Returns where events of a track belong: to the thread or the process that it or a parent of it stands for.
    fn place(&self, uuid: u64) -> Place {
        let mut place = Place {
            pid: 0,
            tid: 0,
            is_thread: false,
            is_global: true,
            name: self
                .tracks
                .get(&uuid)
                .map(|track| track.name.clone())
                .unwrap_or_default(),
        };
        let mut next = uuid;
        for depth in 0..MAX_DEPTH {
            let Some(track) = self.tracks.get(&next) else {
                break;
            };
            if let Some(thread) = track.thread {
                (place.pid, place.tid, place.is_global) = (thread.pid, thread.tid, false);
                place.is_thread = depth == 0;
                break;
            }
            if let Some(pid) = track.pid {
                (place.pid, place.tid, place.is_global) = (pid, pid, false);
                break;
            }
            if track.parent == 0 {
                break;
            }
            next = track.parent;
        }
        place
    }
}

/// A time in µs, the unit of the format, with all of its digits.
struct Microseconds(u64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 % 1000 {
            0 => write!(f, "{}", self.0 / 1000),
            fraction => write!(f, "{}.{fraction:03}", self.0 / 1000),
        }
    }
}

fn thread_of(thread: &ThreadDescriptor) -> Thread {
    Thread {
        pid: thread.pid.unwrap_or(0) as u32,
        tid: thread.tid.unwrap_or(0) as u32,
    }
}

fn name_of(descriptor: &TrackDescriptor) -> Option<String> {
    use ferretto_proto::messages::track_descriptor::StaticOrDynamicName::{AtraceName, Name, StaticName};
    match &descriptor.static_or_dynamic_name {
        Some(Name(name) | StaticName(name) | AtraceName(name)) => Some(name.clone()),
        None => None,
    }
}
