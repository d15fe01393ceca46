//! Takes in the packets of a trace, one at a time, and returns the samples among them.
//!
//! A packet is understood with what its sequence said before: defaults and interned data. After a loss these are unknown until the sequence clears its
//! state, and samples that need them are counted as unreadable, as upstream's trace processor does.

use std::collections::HashMap;

use ferretto_proto::messages::perf_sample::{
    OptionalSampleSkippedReason, OptionalUnwindError, SampleSkipReason,
};
use ferretto_proto::messages::perf_sample::{
    producer_event::DataSourceStopReason, producer_event::OptionalSourceStopReason,
};
use ferretto_proto::messages::profiling::{CpuMode, StackUnwindError};
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::messages::{ClockSnapshot, Message, PerfSample, PerfSampleDefaults};
use ferretto_proto::write::{TracePacket, TracePacketDefaults};
use ferretto_wire::{Reader as Fields, Value};

use super::counted::Event;
use super::model::Profile;
use super::names::{bytes, varint};
use super::sequence::Interned;
use super::{EventId, Mode, Sample, Thread};
use crate::timeline::Timeline;

const CLEARED: u64 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64;
const NEEDS_STATE: u64 = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u64;

/// A sequence as far as it has been read.
#[derive(Debug, Default)]
struct Sequence {
    interned: Interned,
    /// Whether all of the state that packets need is known.
    is_whole: bool,
    clock: Option<u32>,
    event: Option<EventId>,
}

/// Reads samples from packets.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    profile: Profile,
    sequences: HashMap<u32, Sequence>,
    timeline: Timeline,
}

/// The parts of a packet that concern samples.
#[derive(Debug, Default)]
struct Packet<'a> {
    sequence: u32,
    flags: u64,
    dropped: u64,
    timestamp: Option<u64>,
    clock: Option<u32>,
    interned: Vec<&'a [u8]>,
    defaults: Option<&'a [u8]>,
    content: Option<(u32, &'a [u8])>,
}

impl<'a> Packet<'a> {
    fn new(encoded: &'a [u8]) -> Packet<'a> {
        let mut packet = Packet::default();
        for field in Fields::new(encoded).map_while(Result::ok) {
            match (field.number, field.value) {
                (TracePacket::TIMESTAMP, Value::Varint(value)) => packet.timestamp = Some(value),
                (TracePacket::TIMESTAMP_CLOCK_ID, Value::Varint(value)) => packet.clock = Some(value as u32),
                (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(value)) => {
                    packet.sequence = value as u32
                }
                (TracePacket::SEQUENCE_FLAGS, Value::Varint(value)) => packet.flags |= value,
                (TracePacket::INCREMENTAL_STATE_CLEARED, Value::Varint(1..)) => packet.flags |= CLEARED,
                (TracePacket::PREVIOUS_PACKET_DROPPED, Value::Varint(value)) => packet.dropped = value,
                (TracePacket::INTERNED_DATA, Value::Bytes(value)) => packet.interned.push(value),
                (TracePacket::TRACE_PACKET_DEFAULTS, Value::Bytes(value)) => packet.defaults = Some(value),
                (
                    number @ (TracePacket::PERF_SAMPLE
                    | TracePacket::MODULE_SYMBOLS
                    | TracePacket::PROCESS_TREE
                    | TracePacket::TRACK_DESCRIPTOR
                    | TracePacket::FTRACE_EVENTS
                    | TracePacket::CLOCK_SNAPSHOT),
                    Value::Bytes(value),
                ) => packet.content = Some((number, value)),
                _ => {}
            }
        }
        packet
    }
}

impl Reader {
    /// Returns what all samples refer to.
    pub(crate) fn into_profile(mut self) -> Profile {
        self.profile.boot = self.timeline.wall_time(0);
        self.profile
    }

    /// Takes in an encoded packet. Returns the sample in it, if any.
    pub(crate) fn packet(&mut self, encoded: &[u8]) -> Option<Sample> {
        let packet = Packet::new(encoded);
        let sequence = self.sequences.entry(packet.sequence).or_default();
        if packet.flags & CLEARED != 0 {
            *sequence = Sequence {
                is_whole: true,
                ..Sequence::default()
            };
        } else if packet.dropped != 0 {
            sequence.is_whole = false;
        }
        let is_sample = matches!(packet.content, Some((TracePacket::PERF_SAMPLE, _)));
        if packet.flags & NEEDS_STATE != 0 && !sequence.is_whole {
            self.profile.losses.unreadable += u64::from(is_sample);
            return None;
        }
        if let Some(defaults) = packet.defaults {
            let perf = bytes(defaults, TracePacketDefaults::PERF_SAMPLE_DEFAULTS);
            let perf = perf.and_then(|perf| PerfSampleDefaults::decode_from_slice(perf).ok());
            sequence.event = perf.map(|perf| event_id(&mut self.profile.events, Event::of(&perf)));
            sequence.clock =
                varint(defaults, TracePacketDefaults::TIMESTAMP_CLOCK_ID).map(|clock| clock as u32);
        }
        for interned in packet.interned.iter() {
            sequence.interned.take(&mut self.profile, interned);
        }
        let (kind, content) = packet.content?;
        match kind {
            TracePacket::PERF_SAMPLE => return self.sample(&packet, content),
            TracePacket::MODULE_SYMBOLS => {
                let Profile { strings, symbols, .. } = &mut self.profile;
                symbols.take(strings, content);
            }
            TracePacket::PROCESS_TREE => self.profile.names.process_tree(content),
            TracePacket::TRACK_DESCRIPTOR => self.profile.names.track_descriptor(content),
            TracePacket::FTRACE_EVENTS => self.profile.names.kernel_events(content),
            _ => {
                if let Ok(snapshot) = ClockSnapshot::decode_from_slice(content) {
                    self.timeline.snapshot(packet.sequence, &snapshot);
                }
            }
        }
        None
    }

    fn sample(&mut self, packet: &Packet<'_>, content: &[u8]) -> Option<Sample> {
        let profile = &mut self.profile;
        let losses = &mut profile.losses;
        let Ok(sample) = PerfSample::decode_from_slice(content) else {
            losses.unreadable += 1;
            return None;
        };
        if let Some(lost @ 1..) = sample.kernel_records_lost {
            losses.kernel = losses.kernel.saturating_add(lost);
            return None;
        }
        if sample.producer_event.is_set() {
            let guardrail =
                OptionalSourceStopReason::SourceStopReason(DataSourceStopReason::PROFILER_STOP_GUARDRAIL);
            losses.guardrail +=
                u64::from(sample.producer_event.optional_source_stop_reason == Some(guardrail));
            return None;
        }
        profile.samples += 1;
        let sequence = self.sequences.entry(packet.sequence).or_default();
        let stack = sample.callstack_iid.and_then(|iid| {
            let stack = sequence.interned.stack(profile, iid);
            profile.losses.unreadable += u64::from(stack.is_none());
            stack
        });
        let losses = &mut profile.losses;
        match (&sample.optional_sample_skipped_reason, sample.callstack_iid) {
            (Some(OptionalSampleSkippedReason::SampleSkippedReason(reason)), _) => match reason {
                SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE => losses.out_of_scope += 1,
                SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE => losses.overload += 1,
                _ => losses.skipped += 1,
            },
            (None, Some(_)) => {}
            (None, None) => losses.stackless += 1,
        }
        let error = sample.optional_unwind_error;
        let none = OptionalUnwindError::UnwindError(StackUnwindError::UNWIND_ERROR_NONE);
        profile.losses.truncated += u64::from(error.is_some_and(|error| error != none));
        let event = match sequence.event {
            Some(event) => event,
            None => event_id(&mut profile.events, Event::default()),
        };
        let clock = packet.clock.or(sequence.clock);
        let time = packet
            .timestamp
            .and_then(|time| self.timeline.boot_time(packet.sequence, clock, time));
        Some(Sample {
            time,
            thread: Thread {
                pid: sample.pid.unwrap_or(0),
                tid: sample.tid.unwrap_or(0),
            },
            cpu: sample.cpu,
            mode: match sample.cpu_mode {
                Some(CpuMode::MODE_KERNEL | CpuMode::MODE_GUEST_KERNEL | CpuMode::MODE_HYPERVISOR) => {
                    Mode::Kernel
                }
                Some(CpuMode::MODE_USER | CpuMode::MODE_GUEST_USER) => Mode::User,
                _ => Mode::Unknown,
            },
            event,
            stack,
        })
    }
}

/// Returns the place of an event, which it adds if it is new.
fn event_id(events: &mut Vec<Event>, event: Event) -> EventId {
    let place = events
        .iter()
        .position(|known| *known == event)
        .unwrap_or_else(|| {
            events.push(event);
            events.len() - 1
        });
    EventId(place as u32)
}
