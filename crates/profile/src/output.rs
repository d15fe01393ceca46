//! Packets of one instance: its sequence in the trace.
//!
//! `Profiler` hands over samples; this encodes them as upstream's `traced_perf` does, so that readers take them for its own.
//! The base of later packets is written first: the defaults (the counted event, the clock), and interned data with the first sample that
//! refers to it. After a loss, when the service asks for it, and when the tables are full, all of that is repeated.
//!
//! Packets are in the order in which rings are read, one CPU after the other, and not in that of time. Readers, upstream's trace processor among them,
//! sort packets by their timestamps; and no packet is older than the flush before the last, because a flush reads all rings.

use ferretto_client::runtime::probe::PacketSink;
use ferretto_proto::messages::BuiltinClock;
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::{CpuEvent, DataSourceStopReason};
use ferretto_proto::messages::profiling::{CpuMode, StackUnwindError};
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::perf_events::{RawEvent, Tracepoint};
use ferretto_proto::write::{InternedString, PerfSample, TracePacket};
use ferretto_wire::Writer;
use perf_event_open_sys::bindings as sys;

use crate::config::{Clock, Counted, Interval, Mode, PerfConfig, Shard};
use crate::event::{Event, Kind};
use crate::interning::{CallstackId, Interning};
use crate::record::Sample;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Output {
    /// The defaults, as the fields of a packet.
    defaults: Writer,
    interning: Interning,
    /// The sink's losses when the tables were begun.
    losses: u64,
    /// Whether readers have the defaults.
    has_begun: bool,
    packet: Writer,
}

/// How the stack of a sample was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// Which stack it is.
    pub callstack: CallstackId,
    /// Why it ends too early, if it does.
    pub error: Option<StackUnwindError>,
}

impl Output {
    /// The sequence of an instance with this config.
    pub(crate) fn new(config: &PerfConfig) -> Output {
        let mut defaults = Writer::new();
        write_defaults(&mut TracePacket::new(&mut defaults), config);
        Output {
            defaults,
            interning: Interning::default(),
            losses: 0,
            has_begun: false,
            packet: Writer::new(),
        }
    }

    /// Has later packets rely on the defaults of another config.
    pub(crate) fn follow(&mut self, config: &PerfConfig) {
        self.defaults.clear();
        write_defaults(&mut TracePacket::new(&mut self.defaults), config);
        self.clear_incremental_state();
    }

    /// The numbers of frames and stacks. Call [`begin`](Self::begin) first, for each sample.
    pub(crate) fn interning(&mut self) -> &mut Interning {
        &mut self.interning
    }

    /// Makes sure that readers have what the next packets rely on. Returns `true` if all earlier numbers are void. It calls `now`, the boot time in
    /// nanoseconds, only in that case.
    pub(crate) fn begin(&mut self, now: impl FnOnce() -> u64, sink: &mut dyn PacketSink) -> bool {
        if self.has_begun && self.losses == sink.losses() && !self.interning.is_full() {
            return false;
        }
        self.interning.clear();
        self.losses = sink.losses();
        self.packet.clear();
        TracePacket::new(&mut self.packet)
            .timestamp(now())
            .timestamp_clock_id(BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32)
            .sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32);
        self.packet.raw(self.defaults.as_slice());
        sink.write_packet(self.packet.as_slice());
        // The number 0 stands for no text.
        self.packet.clear();
        TracePacket::new(&mut self.packet)
            .sequence_flags(SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32)
            .interned_data(|data| {
                let empty = |string: &mut InternedString<'_>| {
                    string.iid(0).str("");
                };
                data.build_ids(empty).mapping_paths(empty).function_names(empty);
            });
        sink.write_packet(self.packet.as_slice());
        // Packets that follow a lost one in a row are lost, too, and do not count as another loss.
        self.has_begun = !sink.is_losing();
        true
    }

    /// Has everything repeated before the next packet.
    pub(crate) fn clear_incremental_state(&mut self) {
        self.has_begun = false;
    }

    /// Writes a packet with a `PerfSample`.
    fn write(
        &mut self,
        timestamp: u64,
        clock: Option<BuiltinClock>,
        sink: &mut dyn PacketSink,
        fill: impl FnOnce(&mut PerfSample<'_>),
    ) {
        self.packet.clear();
        let pending = self.interning.take_pending();
        let mut packet = TracePacket::new(&mut self.packet);
        packet
            .timestamp(timestamp)
            .sequence_flags(SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32);
        if let Some(clock) = clock {
            packet.timestamp_clock_id(clock as u32);
        }
        packet.perf_sample(|sample| fill(sample));
        if !pending.is_empty() {
            self.packet
                .bytes_field(TracePacket::INTERNED_DATA, pending.as_slice());
        }
        sink.write_packet(self.packet.as_slice());
    }

    /// A sample without a stack: one that was counted only.
    pub(crate) fn counts(&mut self, cpu: u32, sample: &Sample<'_>, sink: &mut dyn PacketSink) {
        self.write(sample.timestamp, None, sink, |out| {
            write_counts(out, cpu, sample.counts.iter());
            write_thread(out, sample);
        });
    }

    /// Counts that were polled at `now`, in nanoseconds of boot time.
    pub(crate) fn polled(&mut self, now: u64, cpu: u32, counts: &[u64], sink: &mut dyn PacketSink) {
        self.write(now, None, sink, |out| {
            write_counts(out, cpu, counts.iter().copied())
        });
    }

    /// A sample with its stack.
    pub(crate) fn stack(
        &mut self,
        cpu: u32,
        sample: &Sample<'_>,
        unwound: Unwound,
        sink: &mut dyn PacketSink,
    ) {
        self.write(sample.timestamp, None, sink, |out| {
            write_counts(out, cpu, sample.counts.iter());
            write_thread(out, sample);
            out.callstack_iid(unwound.callstack.0);
            if let Some(error) = unwound.error {
                out.unwind_error(error);
            }
        });
    }

    /// A sample whose stack is not in the trace, for this reason.
    pub(crate) fn skipped(
        &mut self,
        cpu: u32,
        sample: &Sample<'_>,
        reason: SampleSkipReason,
        sink: &mut dyn PacketSink,
    ) {
        self.write(sample.timestamp, None, sink, |out| {
            write_counts(out, cpu, sample.counts.iter());
            write_thread(out, sample);
            out.sample_skipped_reason(reason);
        });
    }

    /// The kernel takes no more samples of a CPU, or takes them again, from `timestamp` on the clock of samples.
    pub(crate) fn throttling(
        &mut self,
        timestamp: u64,
        cpu: u32,
        event: CpuEvent,
        sink: &mut dyn PacketSink,
    ) {
        self.write(timestamp, None, sink, |out| write_cpu_event(out, cpu, event));
    }

    /// Something else happened to a CPU and was noticed at `now`, in nanoseconds of boot time.
    pub(crate) fn cpu_event(&mut self, now: u64, cpu: u32, event: CpuEvent, sink: &mut dyn PacketSink) {
        self.write(now, Some(BuiltinClock::BUILTIN_CLOCK_BOOTTIME), sink, |out| {
            write_cpu_event(out, cpu, event);
        });
    }

    /// The ring of a CPU was full, and so many more records were lost.
    pub(crate) fn lost(&mut self, now: u64, cpu: u32, records: u64, sink: &mut dyn PacketSink) {
        self.write(now, Some(BuiltinClock::BUILTIN_CLOCK_BOOTTIME), sink, |out| {
            out.cpu(cpu).kernel_records_lost(records);
        });
    }

    /// Nothing more follows, for this reason.
    pub(crate) fn stopped(&mut self, now: u64, reason: DataSourceStopReason, sink: &mut dyn PacketSink) {
        self.write(now, Some(BuiltinClock::BUILTIN_CLOCK_BOOTTIME), sink, |out| {
            out.producer_event(|event| {
                event.source_stop_reason(reason);
            });
        });
    }
}

fn write_cpu_event(out: &mut PerfSample<'_>, cpu: u32, event: CpuEvent) {
    out.cpu(cpu).producer_event(|out| {
        out.cpu_event(event);
    });
}

fn write_counts(out: &mut PerfSample<'_>, cpu: u32, mut counts: impl Iterator<Item = u64>) {
    out.cpu(cpu);
    out.timebase_count(counts.next().unwrap_or_default());
    for count in counts {
        out.follower_counts(count);
    }
}

fn write_thread(out: &mut PerfSample<'_>, sample: &Sample<'_>) {
    out.pid(sample.pid.cast_unsigned())
        .tid(sample.tid.cast_unsigned())
        .cpu_mode(match u32::from(sample.cpu_mode) {
            sys::PERF_RECORD_MISC_KERNEL => CpuMode::MODE_KERNEL,
            sys::PERF_RECORD_MISC_USER => CpuMode::MODE_USER,
            sys::PERF_RECORD_MISC_HYPERVISOR => CpuMode::MODE_HYPERVISOR,
            sys::PERF_RECORD_MISC_GUEST_KERNEL => CpuMode::MODE_GUEST_KERNEL,
            sys::PERF_RECORD_MISC_GUEST_USER => CpuMode::MODE_GUEST_USER,
            _ => CpuMode::MODE_UNKNOWN,
        });
}

fn write_defaults(packet: &mut TracePacket<'_>, config: &PerfConfig) {
    packet.trace_packet_defaults(|defaults| {
        let clock = match &config.mode {
            // The time is read when the counters are.
            Mode::Polling(_) => BuiltinClock::BUILTIN_CLOCK_BOOTTIME,
            Mode::Sampling(sampling) => match sampling.clock {
                Clock::Realtime => BuiltinClock::BUILTIN_CLOCK_REALTIME,
                Clock::Monotonic => BuiltinClock::BUILTIN_CLOCK_MONOTONIC,
                Clock::MonotonicRaw => BuiltinClock::BUILTIN_CLOCK_MONOTONIC_RAW,
                Clock::Boottime => BuiltinClock::BUILTIN_CLOCK_BOOTTIME,
            },
        };
        defaults
            .timestamp_clock_id(clock as u32)
            .perf_sample_defaults(|defaults| {
                defaults.timebase(|timebase| {
                    match &config.mode {
                        Mode::Polling(period) => timebase.poll_period_ms(period.as_millis() as u32),
                        Mode::Sampling(sampling) => match sampling.interval {
                            Interval::Frequency(frequency) => timebase.frequency(frequency),
                            Interval::Period(period) => timebase.period(period),
                        },
                    };
                    let event = &config.leader;
                    match &event.kind {
                        Kind::Counter(counter) => timebase.counter(*counter),
                        Kind::Tracepoint { name, filter } => {
                            timebase.tracepoint(|out| tracepoint(out, name, filter))
                        }
                        Kind::Raw => timebase.raw_event(|out| raw(out, event)),
                    };
                    if let Some(name) = &event.name {
                        timebase.name(name);
                    }
                    for place in event.scope.modifiers() {
                        timebase.modifiers(place);
                    }
                });
                for event in &config.followers {
                    defaults.followers(|follower| {
                        match &event.kind {
                            Kind::Counter(counter) => follower.counter(*counter),
                            Kind::Tracepoint { name, filter } => {
                                follower.tracepoint(|out| tracepoint(out, name, filter))
                            }
                            Kind::Raw => follower.raw_event(|out| raw(out, event)),
                        };
                        if let Some(name) = &event.name {
                            follower.name(name);
                        }
                        for place in event.scope.modifiers() {
                            follower.modifiers(place);
                        }
                    });
                }
                if let Some(Shard { count, chosen }) = config.stacks().and_then(|stacks| stacks.scope.shard) {
                    defaults.process_shard_count(count).chosen_process_shard(chosen);
                }
                if let Counted::Family(pid) = config.counted {
                    defaults.family_of(pid);
                }
            });
    });
}

fn tracepoint(out: &mut Tracepoint<'_>, name: &str, filter: &str) {
    out.name(name).filter(filter);
}

fn raw(out: &mut RawEvent<'_>, event: &Event) {
    let [config, config1, config2] = event.attr_config;
    out.r#type(event.attr_type)
        .config(config)
        .config1(config1)
        .config2(config2);
}

#[cfg(test)]
mod tests;
