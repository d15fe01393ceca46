//! Makes events of the packets of a trace, in the order of the file.
//!
//! The [import](crate::import) gives it each packet. It keeps what each sequence has said (interned names, defaults, losses), converts times, and pushes what
//! has a time into the [sorter](crate::sorter). Whatever refers to a sequence is resolved here, so events stand alone. Facts about the whole trace go into the
//! [context](crate::context) at once.

mod annotations;
pub(crate) mod event;
mod facts;
mod ftrace;
mod json;
pub(crate) mod sequence;
mod service_stats;
pub(crate) mod stacks;
pub(crate) mod track_event;

use std::collections::BTreeMap;
use std::io;

use ferretto_proto::write::TracePacket;
use ferretto_wire::Value;

use crate::clocks::{self, clock_of};
use crate::context::Context;
use crate::fields::fields;
use crate::sorter::Sorter;
use event::Queues;
use sequence::Sequences;

/// The most bytes of packets that wait for a snapshot of their clock.
const MOST_DEFERRED: usize = 16 << 20;
/// Fields of `TracePacket` for which there is no writer.
pub(crate) const SMAPS_PACKET: u32 = 68;
pub(crate) const CHROME_EVENTS: u32 = 5;
pub(crate) const BATTERY: u32 = 38;
pub(crate) const PACKAGES_LIST: u32 = 47;
pub(crate) const GPU_COUNTER_EVENT: u32 = 52;
pub(crate) const FRAME_TIMELINE_EVENT: u32 = 76;
pub(crate) const ANDROID_GAME_INTERVENTION_LIST: u32 = 83;
/// Bits of `sequence_flags`.
const CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// A packet whose own fields have been read.
#[derive(Debug, Default, Clone)]
pub(crate) struct Packet<'a> {
    sequence: Option<u32>,
    flags: u64,
    is_cleared: bool,
    has_dropped: bool,
    is_first: bool,
    timestamp: Option<u64>,
    clock: Option<u32>,
    interned: Option<&'a [u8]>,
    defaults: Option<&'a [u8]>,
    machine: u64,
    trusted_pid: Option<u64>,
    /// Its data: the field and the message in it, the lowest field first, as far as there is more than one.
    content: Option<(u32, &'a [u8])>,
}

impl<'a> Packet<'a> {
    fn new(encoded: &'a [u8]) -> Packet<'a> {
        let mut packet = Packet::default();
        for field in fields(encoded) {
            match (field.number, field.value) {
                (TracePacket::TIMESTAMP, Value::Varint(value)) => packet.timestamp = Some(value),
                (TracePacket::TIMESTAMP_CLOCK_ID, Value::Varint(value)) => packet.clock = Some(value as u32),
                (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(value)) => {
                    packet.sequence = Some(value as u32)
                }
                (TracePacket::SEQUENCE_FLAGS, Value::Varint(value)) => packet.flags = value,
                (TracePacket::INCREMENTAL_STATE_CLEARED, Value::Varint(value)) => {
                    packet.is_cleared = value != 0
                }
                (TracePacket::PREVIOUS_PACKET_DROPPED, Value::Varint(value)) => {
                    packet.has_dropped = value != 0
                }
                (TracePacket::FIRST_PACKET_ON_SEQUENCE, Value::Varint(value)) => packet.is_first = value != 0,
                (TracePacket::MACHINE_ID, Value::Varint(value)) => packet.machine = value,
                (TracePacket::TRUSTED_PID, Value::Varint(value)) => packet.trusted_pid = Some(value),
                (TracePacket::INTERNED_DATA, Value::Bytes(value)) => packet.interned = Some(value),
                (TracePacket::TRACE_PACKET_DEFAULTS, Value::Bytes(value)) => packet.defaults = Some(value),
                (TracePacket::SYNCHRONIZATION_MARKER, _) => {}
                (number, Value::Bytes(value)) if packet.content.is_none_or(|(known, _)| number <= known) => {
                    packet.content = Some((number, value));
                }
                _ => {}
            }
        }
        packet
    }
}

/// Makes events of packets.
pub(crate) struct Tokenizer {
    pub(crate) sorter: Sorter,
    pub(crate) queues: Queues,
    sequences: Sequences,
    several: track_event::Several,
    ftrace: ftrace::Ftrace,
    latest: i64,
    /// Packets whose clock no snapshot has shown yet.
    deferred: Vec<Vec<u8>>,
    deferred_bytes: usize,
    /// Packets that are not read, by the field of their data.
    unread: BTreeMap<u32, (i64, i64)>,
}

/// The pseudo-field of packets of other machines in [`Tokenizer::unread`].
pub(crate) const OTHER_MACHINES: u32 = 0;

impl Tokenizer {
    pub(crate) fn new(sorter: Sorter) -> Tokenizer {
        Tokenizer {
            sorter,
            queues: Queues::default(),
            sequences: Sequences::default(),
            several: track_event::Several::default(),
            ftrace: ftrace::Ftrace::default(),
            latest: 0,
            deferred: Vec::new(),
            deferred_bytes: 0,
            unread: BTreeMap::new(),
        }
    }

    /// Takes in a packet.
    ///
    /// # Errors
    /// If events cannot be stored.
    pub(crate) fn packet(&mut self, encoded: &[u8], context: &mut Context<'_>) -> io::Result<()> {
        let packet = Packet::new(encoded);
        if packet.machine != 0 {
            self.pass_over(OTHER_MACHINES, encoded);
            return Ok(());
        }
        let number = packet.sequence.unwrap_or(0);
        let (place, is_new) = self.sequences.place(number);
        let sequence = &mut self.sequences[place];
        if packet.sequence.is_some() && !is_new && packet.has_dropped {
            sequence.losses += 1;
        }
        if packet.is_first {
            context.descriptors.first_packet(number);
        }
        if packet.is_cleared || packet.flags & CLEARED != 0 {
            sequence.clear(context.stacks.next_generation());
        } else if packet.has_dropped {
            sequence.lose();
        }
        if let Some(defaults) = packet.defaults {
            sequence.set_defaults(defaults);
        }
        if let Some(interned) = packet.interned {
            match sequence.is_whole {
                true => sequence.intern(interned, context),
                false => context.stats.add("tokenizer_skipped_packets", None, 1),
            }
        }
        match packet.content {
            Some((TracePacket::CLOCK_SNAPSHOT, snapshot)) => {
                facts::clock_snapshot(snapshot, number, context);
                return Ok(());
            }
            Some((TracePacket::SERVICE_EVENT, event)) => {
                facts::service_event(event, packet.timestamp.unwrap_or(0) as i64, context);
                return Ok(());
            }
            Some((TracePacket::TRACE_STATS, stats)) => {
                let sequences = &self.sequences;
                service_stats::trace_stats(stats, context, |number| {
                    sequences
                        .get(number)
                        .map(|sequence| (sequence.losses, sequence.is_lost()))
                });
            }
            _ => {}
        }
        if packet.flags & NEEDS_STATE != 0 {
            let sequence = &mut self.sequences[place];
            sequence.needing += 1;
            if number == 0 || !sequence.is_whole {
                sequence.skipped += 1;
                context.stats.add("tokenizer_skipped_packets", None, 1);
                return Ok(());
            }
        }
        self.tokenize(&packet, encoded, May::Wait, context)
    }

    /// Takes in what had to wait for the end of the file.
    ///
    /// # Errors
    /// If events cannot be stored.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        for encoded in std::mem::take(&mut self.deferred) {
            self.tokenize(&Packet::new(&encoded), &encoded, May::NotWait, context)?;
        }
        Ok(())
    }

    /// Returns the packets that were not read, by the field of their data: how many, and how many bytes.
    pub(crate) fn unread(&self) -> &BTreeMap<u32, (i64, i64)> {
        &self.unread
    }

    fn pass_over(&mut self, field: u32, encoded: &[u8]) {
        // Numbers come from the trace; more of them than there are fields say nothing.
        if self.unread.len() < 1 << 12 || self.unread.contains_key(&field) {
            let counts = self.unread.entry(field).or_default();
            counts.0 += 1;
            counts.1 += encoded.len() as i64;
        }
    }

    fn tokenize(
        &mut self,
        packet: &Packet<'_>,
        encoded: &[u8],
        may: May,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let number = packet.sequence.unwrap_or(0);
        let (place, _) = self.sequences.place(number);
        let sequence = &mut self.sequences[place];
        let ts = match packet.timestamp {
            None => self.latest.max(self.sorter.max_ts()),
            Some(value) => {
                let clock = packet.clock.or(sequence.defaults.clock).unwrap_or(0);
                let of_trace = |context: &mut Context<'_>| {
                    let clock = clock_of(number, clock)?;
                    context.clocks.trace_time(clock, value as i64)
                };
                match clock {
                    0 => value as i64,
                    _ => match of_trace(context) {
                        Some(ts) => ts,
                        None if may == May::Wait && self.deferred_bytes + encoded.len() <= MOST_DEFERRED => {
                            self.deferred_bytes += encoded.len();
                            self.deferred.push(encoded.to_vec());
                            return Ok(());
                        }
                        None => {
                            context.stats.add("clock_sync_failure", None, 1);
                            return Ok(());
                        }
                    },
                }
            }
        };
        self.latest = self.latest.max(ts);
        let Some((field, content)) = packet.content else {
            return Ok(());
        };
        match field {
            TracePacket::FTRACE_EVENTS => {
                let mut to = ftrace::To {
                    sorter: &mut self.sorter,
                    queues: &mut self.queues,
                };
                self.ftrace.bundle(content, number, sequence, &mut to, context)
            }
            TracePacket::TRACK_EVENT => {
                let mut to = ftrace::To {
                    sorter: &mut self.sorter,
                    queues: &mut self.queues,
                };
                track_event::tokenize(content, packet, ts, sequence, &mut self.several, &mut to, context)
            }
            TracePacket::TRACK_DESCRIPTOR => match track_event::descriptor(content, sequence, context) {
                true => self.push_packet(ts, field, content),
                false => Ok(()),
            },
            TracePacket::THREAD_DESCRIPTOR => match packet.sequence.is_some() && sequence.is_whole {
                true => {
                    sequence.set_thread(content, false);
                    self.push_packet(ts, field, content)
                }
                false => {
                    context.stats.add("tokenizer_skipped_packets", None, 1);
                    Ok(())
                }
            },
            TracePacket::PERF_SAMPLE => {
                let event = stacks::perf_sample(content, number, sequence, context);
                self.push_packet(ts, field, &event)
            }
            TracePacket::PROFILE_PACKET => {
                let event = stacks::heap_profile(content, number, sequence, context);
                self.push_packet(ts, field, &event)
            }
            TracePacket::STREAMING_PROFILE_PACKET => {
                match stacks::streaming_profile(content, number, sequence, context) {
                    Some((ts, event)) => self.push_packet(ts, field, &event),
                    None => Ok(()),
                }
            }
            TracePacket::MODULE_SYMBOLS
            | SMAPS_PACKET
            | CHROME_EVENTS
            | BATTERY
            | PACKAGES_LIST
            | GPU_COUNTER_EVENT
            | FRAME_TIMELINE_EVENT
            | ANDROID_GAME_INTERVENTION_LIST => self.push_packet(ts, field, content),
            TracePacket::PROCESS_TREE
            | TracePacket::PROCESS_STATS
            | TracePacket::SYS_STATS
            | TracePacket::PROCESS_DESCRIPTOR => self.push_packet(ts, field, content),
            TracePacket::SYSTEM_INFO => {
                facts::system_info(content, context);
                Ok(())
            }
            TracePacket::CPU_INFO => {
                facts::cpu_info(content, context);
                Ok(())
            }
            TracePacket::FTRACE_STATS => {
                self.ftrace.stats(content, context);
                Ok(())
            }
            TracePacket::TRACE_UUID => {
                facts::trace_uuid(content, context);
                Ok(())
            }
            TracePacket::TRACE_CONFIG => {
                facts::trace_config(content, context);
                Ok(())
            }
            TracePacket::TRACE_STATS => Ok(()),
            _ => {
                self.pass_over(field, encoded);
                Ok(())
            }
        }
    }

    fn push_packet(&mut self, ts: i64, field: u32, content: &[u8]) -> io::Result<()> {
        self.sorter.push(ts, event::PACKETS, |event| {
            event.extend_from_slice(&field.to_le_bytes());
            event.extend_from_slice(content);
        })
    }
}

/// Whether a packet may wait until the end of the file for a snapshot of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    Wait,
    NotWait,
}

pub(crate) use annotations::sanitized;
pub(crate) use clocks::ClockId;
pub(crate) use sequence::{is_synthetic_tid, synthetic_tid};
