//! Gathers a trace's information about itself, packet by packet.
//!
//! [`run`](super::run) calls it with each piece of the file. [`report`](super::report) and [`findings`](super::findings) turn the result into words.
//! For most packets it reads only the tags of the fields. Its size does not grow with the file, because everything that is stored by name or id is
//! bounded.

use std::collections::{BTreeMap, HashMap};

use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{
    ClockSnapshot, CpuInfo, Message, SystemInfo, TraceConfig, TraceProvenance, TraceStats, TraceUuid,
    TracingServiceEvent, Trigger, cpu_info,
};
use ferretto_proto::write::ftrace_event_bundle::{CompactSched, GenericEventDescriptor};
use ferretto_proto::write::{
    DescriptorProto, FtraceEvent, FtraceEventBundle, ProcessDescriptor, ProcessTree, TracePacket,
    TrackDescriptor, process_tree,
};
use ferretto_wire::{Reader, Value, take_varint};

use super::heaps::Heaps;
use super::sequences::{Header, Sequences, Use};
use crate::account::evidence::Evidence;
use crate::packet::{bytes, varint};
use crate::timeline::Timeline;
use ferretto_trace_file::{Damage, Piece};

#[cfg(test)]
mod tests;

/// The most processes whose names are stored.
const MAX_PROCESSES: usize = 1 << 16;
/// The most characters of a process name.
const MAX_NAME: usize = 64;
/// The most damaged places, triggers and kinds of packets that are stored.
const MAX_LISTED: usize = 1 << 10;
/// The most bytes of an event name. The kernel's names are shorter.
const MAX_EVENT_NAME: usize = 256;

/// A count of packets, of one kind or in all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) packets: u64,
    /// Encoded and decompressed, without the framing.
    pub(super) bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// The first and the last of many times, in ns since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    fn include(span: &mut Option<Span>, time: u64) {
        let span = span.get_or_insert(Span {
            first: time,
            last: time,
        });
        span.first = span.first.min(time);
        span.last = span.last.max(time);
    }

    /// Returns its length in ns.
    pub(super) fn length(self) -> u64 {
        self.last - self.first
    }
}

/// The session's start and end, as the service noted them, in ns since boot.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) started: Option<u64>,
    pub(super) disabled: Option<u64>,
}

/// Everything that is known of a trace.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) all: Tally,
    /// Packets by the field of `TracePacket` that gives them their kind; 0 for packets without such a field.
    pub(super) kinds: BTreeMap<u32, Tally>,
    /// Compressed packets by their field, with their bytes in the file.
    pub(super) compressed: BTreeMap<u32, Tally>,
    /// Kernel events by their field of `FtraceEvent`.
    pub(super) kernel_events: BTreeMap<u32, u64>,
    /// Names of kernel events that the trace describes, by that field.
    described_events: BTreeMap<u32, String>,
    pub(super) heaps: Heaps,
    pub(super) sequences: Sequences,
    /// The buffer and the producer of each sequence, if the trace has them.
    pub(super) buffer_of: HashMap<u32, u32>,
    pub(super) producer_of: HashMap<u32, i32>,
    processes: HashMap<i32, String>,
    pub(super) timeline: Timeline,
    /// The range of times of producers' packets.
    pub(super) data: Option<Span>,
    /// The number of packets with a clock that no snapshot has.
    pub(super) timeless: u64,
    pub(super) life: Life,
    pub(super) config: Option<TraceConfig>,
    /// The number of further configs, in a file of several traces.
    pub(super) more_configs: u64,
    pub(super) stats: Option<TraceStats>,
    pub(super) system: Option<SystemInfo>,
    pub(super) cpus: Vec<cpu_info::Cpu>,
    pub(super) uuid: Option<(u64, u64)>,
    /// Names of activated triggers; then the name of the trigger that made the trace, if it is a clone.
    pub(super) triggers: Vec<String>,
    pub(super) cloned_by: Option<String>,
    pub(super) evidence: Evidence,
    pub(super) damages: Vec<Damage>,
    /// The number of all damages, including those that are not stored.
    pub(super) damaged: u64,
}

impl Summary {
    /// Takes in the next piece of the file.
    pub(super) fn piece(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Packet(packet) => self.packet(packet),
            Piece::CompressedStart(compressed) => {
                self.compressed
                    .entry(compressed.field)
                    .or_default()
                    .add(compressed.bytes);
            }
            Piece::CompressedEnd => {}
            Piece::Damage(damage) => {
                self.damaged += 1;
                if self.damages.len() < MAX_LISTED {
                    self.damages.push(damage);
                }
            }
        }
    }

    fn packet(&mut self, packet: &[u8]) {
        let bytes = packet.len() as u64;
        self.all.add(bytes);
        let mut header = Header {
            bytes,
            ..Header::default()
        };
        let (mut timestamp, mut clock, mut defaults, mut content) = (None, None, None, None);
        for field in Reader::new(packet) {
            // Readers also stop at damage within a packet, so the fields before it count.
            let Ok(field) = field else { break };
            match (field.number, field.value) {
                (TracePacket::TIMESTAMP, Value::Varint(value)) => timestamp = Some(value),
                (TracePacket::TIMESTAMP_CLOCK_ID, Value::Varint(value)) => clock = Some(value as u32),
                (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(value)) => {
                    header.sequence = value as u32;
                }
                (TracePacket::TRUSTED_PID, Value::Varint(value)) => header.pid = Some(value as i32),
                (TracePacket::TRUSTED_UID, Value::Varint(value)) => header.uid = Some(value as i32),
                (TracePacket::MACHINE_ID, Value::Varint(value)) => header.machine = value as u32,
                (TracePacket::SEQUENCE_FLAGS, Value::Varint(value)) => header.flags |= value,
                (TracePacket::INCREMENTAL_STATE_CLEARED, Value::Varint(1..)) => header.clear_state(),
                (TracePacket::PREVIOUS_PACKET_DROPPED, Value::Varint(value)) => header.dropped = value,
                (TracePacket::TRACE_PACKET_DEFAULTS, Value::Bytes(value)) => defaults = Some(value),
                (TracePacket::FIRST_PACKET_ON_SEQUENCE, _) => {}
                // Interned data give a packet its kind only if it has no other data.
                (TracePacket::INTERNED_DATA, _) if header.kind != 0 => {}
                (number, value) => {
                    if header.kind == 0 || header.kind == TracePacket::INTERNED_DATA {
                        header.kind = number;
                        content = value.as_bytes();
                    }
                }
            }
        }
        if self.kinds.len() < MAX_LISTED || self.kinds.contains_key(&header.kind) {
            self.kinds.entry(header.kind).or_default().add(bytes);
        }
        let (sequence, usable) = self.sequences.take(&header);
        if let Some(clock) = defaults.and_then(|defaults| varint(defaults, TracePacket::TIMESTAMP_CLOCK_ID)) {
            sequence.default_clock = Some(clock as u32);
        }
        let clock = clock.or(sequence.default_clock);
        if let Some(content) = content {
            let sequence = header.sequence.into();
            self.evidence.take(header.kind, sequence, timestamp, content);
            self.content(&header, content);
        }
        // After a loss, the time on a clock that counts from its last value is unknown.
        if let (Some(timestamp), Use::Whole) = (timestamp, usable) {
            match self.timeline.boot_time(header.sequence, clock, timestamp) {
                Some(time) => self.happened(&header, content, time),
                None => self.timeless += 1,
            }
        }
    }

    /// Takes in the time of a packet.
    fn happened(&mut self, header: &Header, content: Option<&[u8]>, time: u64) {
        if header.kind == TracePacket::SERVICE_EVENT {
            let event = content.map(TracingServiceEvent::decode_from_slice);
            match event.and_then(Result::ok).and_then(|event| event.event_type) {
                Some(EventType::TracingStarted(_)) => self.life.started = self.life.started.or(Some(time)),
                Some(EventType::TracingDisabled(_)) => self.life.disabled = Some(time),
                _ => {}
            }
        } else if !is_by_the_service(header.kind) {
            Span::include(&mut self.data, time);
        }
    }

    /// Reads the content of a packet, if its kind has information about the trace.
    fn content(&mut self, header: &Header, content: &[u8]) {
        match header.kind {
            TracePacket::FTRACE_EVENTS => self.bundle(content),
            TracePacket::CLOCK_SNAPSHOT => {
                if let Ok(snapshot) = ClockSnapshot::decode_from_slice(content) {
                    self.timeline.snapshot(header.sequence, &snapshot);
                }
            }
            TracePacket::TRACE_CONFIG => {
                let config = TraceConfig::decode_from_slice(content);
                match (&self.config, config) {
                    (None, Ok(config)) => self.config = Some(config),
                    (Some(_), Ok(_)) => self.more_configs += 1,
                    (_, Err(_)) => {}
                }
            }
            // The counters are cumulative, so the last statistics have everything.
            TracePacket::TRACE_STATS => self.stats = decoded(content).or(self.stats.take()),
            TracePacket::SYSTEM_INFO => self.system = self.system.take().or_else(|| decoded(content)),
            TracePacket::CPU_INFO => {
                if let (true, Some(info)) = (self.cpus.is_empty(), decoded::<CpuInfo>(content)) {
                    self.cpus = info.cpus;
                }
            }
            TracePacket::TRACE_UUID => {
                if let (None, Some(uuid)) = (self.uuid, decoded::<TraceUuid>(content)) {
                    self.uuid = Some((uuid.msb.unwrap_or(0) as u64, uuid.lsb.unwrap_or(0) as u64));
                }
            }
            TracePacket::TRACE_PROVENANCE => self.provenance(content),
            TracePacket::TRIGGER => {
                if let (true, Some(trigger)) = (self.triggers.len() < MAX_LISTED, decoded::<Trigger>(content))
                {
                    self.triggers.push(trigger.trigger_name.unwrap_or_default());
                }
            }
            TracePacket::CLONE_SNAPSHOT_TRIGGER => {
                self.cloned_by = decoded::<Trigger>(content).and_then(|trigger| trigger.trigger_name);
            }
            TracePacket::PROFILE_PACKET => self.heaps.take(content),
            TracePacket::PROCESS_TREE => self.process_tree(content),
            TracePacket::PROCESS_DESCRIPTOR => self.process_descriptor(content),
            TracePacket::TRACK_DESCRIPTOR => {
                if let Some(process) = bytes(content, TrackDescriptor::PROCESS) {
                    self.process_descriptor(process);
                }
            }
            _ => {}
        }
    }

    fn provenance(&mut self, content: &[u8]) {
        let Some(provenance) = decoded::<TraceProvenance>(content) else {
            return;
        };
        for (buffer, sequences) in (0..).zip(&provenance.buffers) {
            for sequence in &sequences.sequences {
                let Some(id) = sequence.id else { continue };
                if self.buffer_of.len() < MAX_PROCESSES {
                    self.buffer_of.insert(id, buffer);
                    self.producer_of
                        .extend(sequence.producer_id.map(|producer| (id, producer)));
                }
            }
        }
    }

    fn process_tree(&mut self, content: &[u8]) {
        for field in Reader::new(content).map_while(Result::ok) {
            if let (ProcessTree::PROCESSES, Value::Bytes(process)) = (field.number, field.value)
                && let (Some(pid), Some(name)) = (
                    varint(process, process_tree::Process::PID),
                    bytes(process, process_tree::Process::CMDLINE),
                )
            {
                self.name_process(pid as i32, name);
            }
        }
    }

    /// Takes in a `ProcessDescriptor`.
    fn process_descriptor(&mut self, content: &[u8]) {
        if let (Some(pid), Some(name)) = (
            varint(content, ProcessDescriptor::PID),
            bytes(content, ProcessDescriptor::PROCESS_NAME),
        ) {
            self.name_process(pid as i32, name);
        }
    }

    fn name_process(&mut self, pid: i32, name: &[u8]) {
        // The last part of a path says most.
        let name = String::from_utf8_lossy(name);
        let name = name.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
        if !name.is_empty() && (self.processes.len() < MAX_PROCESSES || self.processes.contains_key(&pid)) {
            let name = name
                .chars()
                .take(MAX_NAME)
                .filter(|letter| !letter.is_control())
                .collect();
            self.processes.insert(pid, name);
        }
    }

    /// Returns the name of a process, from the trace's packets.
    pub(super) fn process_name(&self, pid: i32) -> Option<&str> {
        self.processes.get(&pid).map(String::as_str)
    }

    /// Takes in the times and kinds of kernel events.
    fn bundle(&mut self, content: &[u8]) {
        let mut clock = BundleClock::default();
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (FtraceEventBundle::FTRACE_CLOCK, Value::Varint(value)) => clock.id = value,
                (FtraceEventBundle::FTRACE_TIMESTAMP, Value::Varint(value)) => clock.kernel = Some(value),
                (FtraceEventBundle::BOOT_TIMESTAMP, Value::Varint(value)) => clock.boot = Some(value),
                (FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS, Value::Bytes(described)) => {
                    self.describe_event(described)
                }
                _ => {}
            }
        }
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (FtraceEventBundle::EVENT, Value::Bytes(event)) => self.kernel_event(event, &clock),
                (FtraceEventBundle::COMPACT_SCHED, Value::Bytes(compact)) => {
                    self.compact_sched(compact, &clock);
                }
                _ => {}
            }
        }
    }

    /// Takes the name from a `GenericEventDescriptor`.
    fn describe_event(&mut self, described: &[u8]) {
        let (mut id, mut name) = (0, None);
        for field in Reader::new(described).map_while(Result::ok) {
            match (field.number, field.value) {
                (GenericEventDescriptor::FIELD_ID, Value::Varint(number)) => {
                    id = u32::try_from(number).unwrap_or(0)
                }
                (GenericEventDescriptor::EVENT_DESCRIPTOR, Value::Bytes(descriptor)) => {
                    name = Reader::new(descriptor)
                        .map_while(Result::ok)
                        .find(|field| field.number == DescriptorProto::NAME)
                        .and_then(|field| field.value.as_bytes());
                }
                _ => {}
            }
        }
        if let Some(name) = name.filter(|name| name.len() <= MAX_EVENT_NAME)
            && self.described_events.len() < MAX_LISTED
        {
            let name = String::from_utf8_lossy(name).into_owned();
            self.described_events.insert(id, name);
        }
    }

    /// Returns the trace's own name for kernel events with this field of `FtraceEvent`.
    pub(super) fn described_event(&self, field: u32) -> Option<&str> {
        self.described_events.get(&field).map(String::as_str)
    }

    fn kernel_event(&mut self, event: &[u8], clock: &BundleClock) {
        let mut kind = 0;
        for field in Reader::new(event).map_while(Result::ok) {
            match (field.number, field.value) {
                (FtraceEvent::TIMESTAMP, Value::Varint(time)) => self.kernel_time(time, clock),
                (FtraceEvent::PID | FtraceEvent::COMMON_FLAGS, _) => {}
                (number, _) => kind = number,
            }
        }
        self.count_kernel_events(kind, 1);
    }

    /// Takes in `sched_switch` and `sched_waking` events in columns.
    fn compact_sched(&mut self, compact: &[u8], clock: &BundleClock) {
        for field in Reader::new(compact).map_while(Result::ok) {
            let kind = match field.number {
                CompactSched::SWITCH_TIMESTAMP => FtraceEvent::SCHED_SWITCH,
                CompactSched::WAKING_TIMESTAMP => FtraceEvent::SCHED_WAKING,
                _ => continue,
            };
            let Value::Bytes(mut deltas) = field.value else {
                continue;
            };
            let (mut time, mut count) = (0_u64, 0);
            while let Some(delta) = take_varint(&mut deltas) {
                time = time.saturating_add(delta);
                // The times ascend, so only the first and the last matter.
                if count == 0 || deltas.is_empty() {
                    self.kernel_time(time, clock);
                }
                count += 1;
            }
            self.count_kernel_events(kind, count);
        }
    }

    fn count_kernel_events(&mut self, kind: u32, count: u64) {
        if self.kernel_events.len() < MAX_LISTED || self.kernel_events.contains_key(&kind) {
            *self.kernel_events.entry(kind).or_default() += count;
        }
    }

    fn kernel_time(&mut self, time: u64, clock: &BundleClock) {
        if let Some(time) = clock.boot_time(time) {
            Span::include(&mut self.data, time);
        }
    }

    /// Returns the length of the recording in ns: from start to stop if the service noted both, else from the first to the last time of the data.
    pub(super) fn duration(&self) -> Option<u64> {
        match self.life {
            Life {
                started: Some(started),
                disabled: Some(disabled),
            } => Some(disabled.saturating_sub(started)),
            _ => self.data.map(Span::length),
        }
    }

    /// Returns the beginning of the recording, in ns since boot.
    pub(super) fn start(&self) -> Option<u64> {
        self.life.started.or(self.data.map(|data| data.first))
    }
}

/// The clock of a bundle's times.
#[derive(Debug, Default)]
struct BundleClock {
    /// `FtraceClock`; 0 is boot time.
    id: u64,
    /// The times of that clock and of boot time at one moment.
    kernel: Option<u64>,
    boot: Option<u64>,
}

impl BundleClock {
    fn boot_time(&self, time: u64) -> Option<u64> {
        if self.id == 0 {
            return Some(time);
        }
        let (kernel, boot) = self.kernel.zip(self.boot)?;
        Some(boot.wrapping_add(time.wrapping_sub(kernel)))
    }
}

/// Whether packets of this kind are about the recording or the machine. Their times do not count as times of the data.
fn is_by_the_service(kind: u32) -> bool {
    matches!(
        kind,
        0 | TracePacket::CLOCK_SNAPSHOT
            | TracePacket::TRACE_CONFIG
            | TracePacket::TRACE_STATS
            | TracePacket::TRACE_UUID
            | TracePacket::TRACE_PROVENANCE
            | TracePacket::SYSTEM_INFO
            | TracePacket::SERVICE_EVENT
            | TracePacket::SYNCHRONIZATION_MARKER
            | TracePacket::EXTENSION_DESCRIPTOR
            | TracePacket::TRIGGER
            | TracePacket::CLONE_SNAPSHOT_TRIGGER
            | TracePacket::CONCURRENT_SESSION_EVENT
            | TracePacket::REMOTE_CLOCK_SYNC
            | TracePacket::FTRACE_STATS
    )
}

fn decoded<M: Message>(bytes: &[u8]) -> Option<M> {
    M::decode_from_slice(bytes).ok()
}
