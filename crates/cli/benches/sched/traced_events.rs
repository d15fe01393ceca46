//! Counts the ftrace events of a trace, and the lost ones, from its packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ferretto_proto::messages::{FtraceStats, Message, TraceStats, ftrace_stats};
use ferretto_proto::write::ftrace_event_bundle::CompactSched;
use ferretto_proto::write::{FtraceEventBundle, Trace, TracePacket};
use ferretto_wire::{Reader, Value, take_varint};

/// The events of a trace.
#[derive(Debug, Default)]
pub(crate) struct TracedEvents {
    /// Size of the file.
    pub(crate) bytes: u64,
    /// `sched_switch` in compact encoding.
    pub(crate) switches: u64,
    /// `sched_waking` in compact encoding.
    pub(crate) wakings: u64,
    /// Other events.
    pub(crate) others: u64,
    /// Losses by cause.
    pub(crate) losses: BTreeMap<&'static str, u64>,
    /// Overruns and drops of the kernel's buffers at the start of the recording.
    before: (u64, u64),
}

impl TracedEvents {
    /// Reads the trace.
    ///
    /// # Panics
    /// If it cannot be read or is no trace.
    pub(crate) fn of(trace: &Path) -> TracedEvents {
        let bytes = std::fs::read(trace).expect("a trace");
        let mut counts = TracedEvents {
            bytes: bytes.len() as u64,
            ..TracedEvents::default()
        };
        let (mut last_stats, mut sequences) = (None, BTreeSet::new());
        for packet in fields(&bytes) {
            let (Trace::PACKET, Value::Bytes(packet)) = packet else {
                panic!("{packet:?} is no packet")
            };
            let (mut sequence, mut dropped) = (0, false);
            for (number, value) in fields(packet) {
                match (number, value) {
                    (TracePacket::FTRACE_EVENTS, Value::Bytes(bundle)) => counts.bundle(bundle),
                    (TracePacket::FTRACE_STATS, Value::Bytes(stats)) => counts.kernel(stats),
                    (TracePacket::TRACE_STATS, Value::Bytes(stats)) => last_stats = Some(stats),
                    (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(id)) => sequence = id,
                    (TracePacket::PREVIOUS_PACKET_DROPPED, Value::Varint(1..)) => dropped = true,
                    _ => {}
                }
            }
            // The first packet of a sequence has the mark in any case.
            if !sequences.insert(sequence) && dropped {
                counts.lost("gaps in a sequence of packets", 1);
            }
        }
        counts.service(last_stats.expect("statistics of the service at the end"));
        counts
    }

    /// Returns the number of all events.
    pub(crate) fn events(&self) -> u64 {
        self.switches + self.wakings + self.others
    }

    fn lost(&mut self, cause: &'static str, count: u64) {
        if count > 0 {
            *self.losses.entry(cause).or_default() += count;
        }
    }

    fn bundle(&mut self, bundle: &[u8]) {
        for (number, value) in fields(bundle) {
            match (number, value) {
                (FtraceEventBundle::EVENT, _) => self.others += 1,
                (FtraceEventBundle::LOST_EVENTS, Value::Varint(1..)) => {
                    self.lost("gaps in a CPU's events", 1)
                }
                (FtraceEventBundle::COMPACT_SCHED, Value::Bytes(sched)) => {
                    for (number, value) in fields(sched) {
                        match (number, value) {
                            (CompactSched::SWITCH_TIMESTAMP, Value::Bytes(packed)) => {
                                self.switches += varints(packed)
                            }
                            (CompactSched::WAKING_TIMESTAMP, Value::Bytes(packed)) => {
                                self.wakings += varints(packed)
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn kernel(&mut self, stats: &[u8]) {
        let stats = FtraceStats::decode_from_slice(stats).expect("statistics of ftrace");
        let overrun: u64 = stats.cpu_stats.iter().filter_map(|cpu| cpu.overrun).sum();
        let dropped: u64 = stats.cpu_stats.iter().filter_map(|cpu| cpu.dropped_events).sum();
        if stats.phase == Some(ftrace_stats::Phase::START_OF_TRACE) {
            self.before = (overrun, dropped);
        } else {
            self.lost("events overwritten in the kernel", overrun - self.before.0);
            self.lost("events dropped in the kernel", dropped - self.before.1);
        }
    }

    fn service(&mut self, stats: &[u8]) {
        let stats = TraceStats::decode_from_slice(stats).expect("statistics of the service");
        for buffer in &stats.buffer_stats {
            self.lost("chunks overwritten", buffer.chunks_overwritten.unwrap_or(0));
            self.lost(
                "chunks refused by a full buffer",
                buffer.chunks_discarded.unwrap_or(0),
            );
            self.lost(
                "gaps in a writer's packets",
                buffer.trace_writer_packet_loss.unwrap_or(0),
            );
            self.lost("patches without a chunk", buffer.patches_failed.unwrap_or(0));
            self.lost("ABI violations", buffer.abi_violations.unwrap_or(0));
        }
        self.lost("flushes without an answer", stats.flushes_failed.unwrap_or(0));
    }
}

fn fields(bytes: &[u8]) -> impl Iterator<Item = (u32, Value<'_>)> {
    Reader::new(bytes)
        .map(|field| field.expect("a protobuf message"))
        .map(|field| (field.number, field.value))
}

fn varints(mut packed: &[u8]) -> u64 {
    std::iter::from_fn(|| take_varint(&mut packed)).count() as u64
}
