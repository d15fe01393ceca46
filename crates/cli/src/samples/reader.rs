//! Takes in the packets of a trace, one at a time, and returns the samples among them.
//!
//! A packet is understood with the earlier state of its sequence: defaults and interned data. After a loss these are unknown until the sequence clears its
//! state, and samples that need them are counted as unreadable, as upstream's trace processor does.

use std::collections::HashMap;

use ferretto_proto::messages::perf_sample::OptionalUnwindError;
use ferretto_proto::messages::profiling::{CpuMode, StackUnwindError};
use ferretto_proto::messages::{ClockSnapshot, Message, PerfSample, PerfSampleDefaults};
use ferretto_proto::write::{StackSample, TracePacket, TracePacketDefaults, TrackEvent};

use super::counted::{Event, Places};
use super::heap::{Counts, HeapId, Heaps};
use super::losses::Remark;
use super::model::{Profile, StackId};
use super::sequence::Interned;
use super::stack_sample::Weighing;
use super::{EventId, Mode, Sample, Thread};
use crate::packet::{Packet, SequenceState, bytes, varint};
use crate::timeline::Timeline;

/// A sequence as far as it has been read.
#[derive(Debug, Default)]
struct Sequence {
    interned: Interned,
    /// By the defaults, if there are any. Inside, `None` if the trace has too many events.
    event: Option<Option<EventId>>,
    weighing: Weighing,
}

/// Reads samples from packets.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    profile: Profile,
    places: Places,
    sequences: HashMap<u32, SequenceState<Sequence>>,
    heaps: Heaps,
    timeline: Timeline,
}

impl Reader {
    /// Returns what all samples refer to, and the counts of heap profiles.
    pub(super) fn finish(mut self) -> (Profile, HashMap<(HeapId, StackId), Counts>) {
        // The last dump of a killed profiler may lack its end.
        for sequence in self.heaps.unfinished() {
            let interned = &mut self.sequences.entry(sequence).or_default().state.interned;
            self.heaps.end(&mut self.profile, sequence, interned);
        }
        self.profile.boot = self.timeline.wall_time(0);
        (self.profile, self.heaps.totals())
    }

    /// The objects of all samples so far.
    pub(super) fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// Takes in an encoded packet. Returns the sample in it, if it has one of a thread that is wanted. The losses of other threads' samples are not counted, but
    /// their frames are known, so that they can be named in the trace.
    pub(super) fn packet(&mut self, encoded: &[u8], wants: impl FnOnce(Thread) -> bool) -> Option<Sample> {
        let packet = Packet::new(encoded);
        let sequence = self.sequences.entry(packet.sequence).or_default();
        if packet.clears_state() {
            let interned = &mut sequence.state.interned;
            self.heaps.look_up(&mut self.profile, packet.sequence, interned);
        }
        if !sequence.take(&packet) {
            let is_sample = matches!(
                packet.content,
                Some((TracePacket::PERF_SAMPLE | TracePacket::STACK_SAMPLE, _))
            );
            self.profile.losses.unreadable += u64::from(is_sample);
            let is_heap = matches!(packet.content, Some((TracePacket::PROFILE_PACKET, _)));
            self.profile.losses.heaps.missing_packets += u64::from(is_heap);
            return None;
        }
        if let Some(defaults) = packet.defaults {
            let perf = bytes(defaults, TracePacketDefaults::PERF_SAMPLE_DEFAULTS);
            let perf = perf.and_then(|perf| PerfSampleDefaults::decode_from_slice(perf).ok());
            let (places, events) = (&mut self.places, &mut self.profile.events);
            sequence.state.event = perf.map(|perf| places.of(Event::of(&perf), events));
            sequence.state.weighing.take_defaults(defaults);
        }
        for interned in packet.interned.iter() {
            sequence.state.interned.take(&mut self.profile, interned);
            sequence.state.weighing.take(interned);
        }
        let (kind, content) = packet.content?;
        match kind {
            TracePacket::PERF_SAMPLE => return self.sample(&packet, content, wants),
            TracePacket::STACK_SAMPLE => return self.stack_sample(&packet, content, wants),
            // Not counted, for an event is no sample. But the addresses of its stack are known, so that they can be named.
            TracePacket::TRACK_EVENT => {
                if let Some(iid) = varint(content, TrackEvent::CALLSTACK_IID) {
                    sequence.state.interned.stack(&mut self.profile, iid);
                    self.profile.stacks_of_events += 1;
                }
            }
            TracePacket::PROFILE_PACKET => {
                let interned = &mut sequence.state.interned;
                self.heaps
                    .packet(&mut self.profile, packet.sequence, interned, content);
            }
            TracePacket::MODULE_SYMBOLS => {
                let Profile { strings, symbols, .. } = &mut self.profile;
                symbols.take(strings, content);
            }
            TracePacket::PROCESS_TREE => self.profile.names.process_tree(content),
            TracePacket::TRACK_DESCRIPTOR => self.profile.names.track_descriptor(content),
            TracePacket::FTRACE_EVENTS => self.profile.names.kernel_events(content),
            TracePacket::CLOCK_SNAPSHOT => {
                if let Ok(snapshot) = ClockSnapshot::decode_from_slice(content) {
                    self.timeline.snapshot(packet.sequence, &snapshot);
                }
            }
            _ => {}
        }
        None
    }

    fn sample(
        &mut self,
        packet: &Packet<'_>,
        content: &[u8],
        wants: impl FnOnce(Thread) -> bool,
    ) -> Option<Sample> {
        let profile = &mut self.profile;
        let losses = &mut profile.losses;
        let Ok(sample) = PerfSample::decode_from_slice(content) else {
            losses.unreadable += 1;
            return None;
        };
        let remark = Remark::of(content);
        if let Some(remark) = remark
            && !matches!(remark, Remark::Skipped(_))
        {
            losses.add(remark);
            return None;
        }
        let thread = Thread {
            pid: sample.pid.unwrap_or(0),
            tid: sample.tid.unwrap_or(0),
        };
        let sequence = self.sequences.entry(packet.sequence).or_default();
        let stack = sample
            .callstack_iid
            .map(|iid| sequence.state.interned.stack(profile, iid));
        if !wants(thread) {
            return None;
        }
        let losses = &mut profile.losses;
        match (remark, stack) {
            (Some(reason), _) => losses.add(reason),
            (None, Some(_)) => {}
            (None, None) => losses.stackless += 1,
        }
        losses.unreadable += u64::from(stack == Some(None));
        let error = sample.optional_unwind_error;
        let none = OptionalUnwindError::UnwindError(StackUnwindError::UNWIND_ERROR_NONE);
        losses.truncated += u64::from(error.is_some_and(|error| error != none));
        profile.samples += 1;
        let event = match sequence.state.event {
            Some(event) => event,
            None => self.places.of(Event::default(), &mut profile.events),
        };
        profile.losses.of_other_events += u64::from(event.is_none());
        let clock = sequence.clock_of(packet);
        let time = packet
            .timestamp
            .and_then(|time| self.timeline.boot_time(packet.sequence, clock, time));
        Some(Sample {
            time,
            thread,
            cpu: sample.cpu,
            mode: match sample.cpu_mode {
                Some(CpuMode::MODE_KERNEL | CpuMode::MODE_GUEST_KERNEL | CpuMode::MODE_HYPERVISOR) => {
                    Mode::Kernel
                }
                Some(CpuMode::MODE_USER | CpuMode::MODE_GUEST_USER) => Mode::User,
                _ => Mode::Unknown,
            },
            event: event?,
            stack: stack.flatten(),
            weight: 1,
        })
    }

    fn stack_sample(
        &mut self,
        packet: &Packet<'_>,
        content: &[u8],
        wants: impl FnOnce(Thread) -> bool,
    ) -> Option<Sample> {
        let profile = &mut self.profile;
        let sequence = self.sequences.entry(packet.sequence).or_default();
        let Sequence {
            interned, weighing, ..
        } = &mut sequence.state;
        let stack = match varint(content, StackSample::CALLSTACK_IID) {
            Some(iid) => Some(interned.stack(profile, iid)),
            None => bytes(content, StackSample::CALLSTACK).map(|inline| profile.inline_stack(inline)),
        };
        let thread = weighing.thread(content);
        if !wants(thread) {
            return None;
        }
        profile.losses.stackless += u64::from(stack.is_none());
        profile.losses.unreadable += u64::from(stack == Some(None));
        profile.samples += 1;
        let counter = weighing.counter(content, &mut self.places, &mut profile.events);
        profile.losses.of_other_events += u64::from(counter.event.is_none());
        let execution = weighing.execution(content);
        let clock = sequence.clock_of(packet);
        let time = packet
            .timestamp
            .and_then(|time| self.timeline.boot_time(packet.sequence, clock, time));
        Some(Sample {
            time,
            thread,
            cpu: execution.cpu,
            mode: execution.mode,
            event: counter.event?,
            stack: stack.flatten(),
            weight: counter.weight(content),
        })
    }
}
