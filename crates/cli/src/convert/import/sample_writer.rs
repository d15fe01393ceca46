//! Writes samples as the packets that `linux.perf` writes: `PerfSample`, with interned frames and call stacks.
//!
//! The importers of profiles call it. Everything is described before it is used, once.

use std::collections::HashMap;

use ferretto_proto::messages::perf_events::Timebase;
use ferretto_proto::messages::profiling::{CpuMode, StackUnwindError};
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::messages::{Message, PerfSampleDefaults};
use ferretto_proto::write::{InternedData, InternedString, PerfSample, TracePacket, TracePacketDefaults};
use ferretto_wire::Writer;

use super::{ImportError, Write};

/// A mapping as samples refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Mapping {
    pub(super) path: Vec<u8>,
    pub(super) build_id: Vec<u8>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
}

/// A frame as samples refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) mapping: u64,
    pub(super) rel_pc: u64,
    /// Empty if it is not known.
    pub(super) name: Vec<u8>,
}

/// A sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample<'a> {
    /// In ns since boot.
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cpu: Option<u32>,
    pub(super) mode: Option<CpuMode>,
    /// The event's count so far on this processor.
    pub(super) count: Option<u64>,
    /// Whether outer frames are missing.
    pub(super) is_cut: bool,
    /// Ids of frames, outermost first; empty if there is no call stack.
    pub(super) frames: &'a [u64],
}

/// Ids of values, each given once, from 1.
#[derive(Debug)]
struct Ids<T>(HashMap<T, u64>);

impl<T: Eq + std::hash::Hash> Ids<T> {
    /// Returns the id of a value, and whether it is new.
    fn id(&mut self, value: T) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        let id = *self.0.entry(value).or_insert(next);
        (id, id == next && self.0.len() as u64 == next)
    }
}

/// Writes the samples of one event.
pub(super) struct SampleWriter {
    sequence: u32,
    timebase: Timebase,
    /// Encoded entries of interned data that the next packet carries.
    pending: Writer,
    is_begun: bool,
    paths: Ids<Vec<u8>>,
    build_ids: Ids<Vec<u8>>,
    names: Ids<Vec<u8>>,
    mappings: Ids<Mapping>,
    frames: Ids<Frame>,
    stacks: Ids<Vec<u64>>,
}

impl SampleWriter {
    pub(super) fn new(sequence: u32, timebase: Timebase) -> SampleWriter {
        let mut pending = Writer::new();
        // As `linux.perf` does: 0 stands for no text.
        let empty = |string: &mut InternedString<'_>| {
            string.iid(0).str("");
        };
        InternedData::new(&mut pending)
            .build_ids(empty)
            .mapping_paths(empty)
            .function_names(empty);
        SampleWriter {
            sequence,
            timebase,
            pending,
            is_begun: false,
            paths: Ids(HashMap::new()),
            build_ids: Ids(HashMap::new()),
            names: Ids(HashMap::new()),
            mappings: Ids(HashMap::new()),
            frames: Ids(HashMap::new()),
            stacks: Ids(HashMap::new()),
        }
    }

    /// Returns the id of a mapping.
    pub(super) fn mapping(&mut self, mapping: &Mapping) -> u64 {
        let (id, is_new) = self.mappings.id(mapping.clone());
        if is_new {
            let path = text(
                &mut self.paths,
                &mut self.pending,
                InternedData::MAPPING_PATHS,
                &mapping.path,
            );
            let build_id = text(
                &mut self.build_ids,
                &mut self.pending,
                InternedData::BUILD_IDS,
                &mapping.build_id,
            );
            InternedData::new(&mut self.pending).mappings(|entry| {
                entry.iid(id).build_id(build_id).exact_offset(mapping.offset);
                entry.start(mapping.start).end(mapping.end);
                // Without parts the path is empty.
                if path != 0 {
                    entry.path_string_ids(path);
                }
            });
        }
        id
    }

    /// Returns the id of a frame.
    pub(super) fn frame(&mut self, frame: &Frame) -> u64 {
        let (id, is_new) = self.frames.id(frame.clone());
        if is_new {
            let name = text(
                &mut self.names,
                &mut self.pending,
                InternedData::FUNCTION_NAMES,
                &frame.name,
            );
            InternedData::new(&mut self.pending).frames(|entry| {
                entry
                    .iid(id)
                    .function_name_id(name)
                    .mapping_id(frame.mapping)
                    .rel_pc(frame.rel_pc);
            });
        }
        id
    }

    /// Writes that the kernel lost this many samples.
    ///
    /// # Errors
    /// The errors of `write`.
    pub(super) fn lost(&mut self, time: u64, count: u64, write: &mut Write<'_>) -> Result<(), ImportError> {
        let mut writer = Writer::new();
        let mut packet = TracePacket::new(&mut writer);
        packet.timestamp(time).trusted_packet_sequence_id(self.sequence);
        packet.perf_sample(|entry| {
            entry.kernel_records_lost(count);
        });
        write(writer.as_slice())
    }

    /// Writes a sample.
    ///
    /// # Errors
    /// The errors of `write`.
    pub(super) fn sample(&mut self, sample: &Sample<'_>, write: &mut Write<'_>) -> Result<(), ImportError> {
        let stack = match sample.frames {
            [] => None,
            frames => {
                let (id, is_new) = self.stacks.id(frames.to_vec());
                if is_new {
                    InternedData::new(&mut self.pending).callstacks(|entry| {
                        entry.iid(id);
                        for frame in frames {
                            entry.frame_ids(*frame);
                        }
                    });
                }
                Some(id)
            }
        };
        let mut writer = Writer::new();
        let mut packet = TracePacket::new(&mut writer);
        packet
            .timestamp(sample.time)
            .trusted_packet_sequence_id(self.sequence);
        let mut flags = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32;
        if !std::mem::replace(&mut self.is_begun, true) {
            flags |= SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32;
            let defaults = PerfSampleDefaults {
                timebase: ferretto_proto::messages::MessageField::some(self.timebase.clone()),
                ..PerfSampleDefaults::default()
            };
            packet
                .writer()
                .nested(TracePacket::TRACE_PACKET_DEFAULTS, |packet_defaults| {
                    packet_defaults.bytes_field(
                        TracePacketDefaults::PERF_SAMPLE_DEFAULTS,
                        &defaults.encode_to_vec(),
                    );
                });
        }
        packet.sequence_flags(flags);
        if !self.pending.is_empty() {
            packet
                .writer()
                .bytes_field(TracePacket::INTERNED_DATA, self.pending.as_slice());
            self.pending.clear();
        }
        packet.perf_sample(|entry| sample_fields(entry, sample, stack));
        write(writer.as_slice())
    }
}

fn sample_fields(entry: &mut PerfSample<'_>, sample: &Sample<'_>, stack: Option<u64>) {
    entry.pid(sample.pid).tid(sample.tid);
    if let Some(cpu) = sample.cpu {
        entry.cpu(cpu);
    }
    if let Some(mode) = sample.mode {
        entry.cpu_mode(mode);
    }
    if let Some(count) = sample.count {
        entry.timebase_count(count);
    }
    if let Some(stack) = stack {
        entry.callstack_iid(stack);
    }
    if sample.is_cut {
        entry.unwind_error(StackUnwindError::UNWIND_ERROR_UNSUPPORTED);
    }
}

/// Returns the id of a string, which it describes if it is new; 0 for the empty one.
fn text(ids: &mut Ids<Vec<u8>>, pending: &mut Writer, field: u32, text: &[u8]) -> u64 {
    if text.is_empty() {
        return 0;
    }
    let (id, is_new) = ids.id(text.to_vec());
    if is_new {
        pending.nested(field, |entry| {
            entry.varint_field(ferretto_proto::write::InternedString::IID, id);
            entry.bytes_field(ferretto_proto::write::InternedString::STR, text);
        });
    }
    id
}
