//! Samples that programs take of themselves (`StackSample`): what a sequence says of their threads and of what they are weighed in.
//!
//! The reader of samples has one [`Weighing`] for each sequence.

use std::collections::HashMap;

use ferretto_proto::messages::stack_sample::Unit;
use ferretto_proto::write::stack_sample::{CounterDescriptor, TaskContext};
use ferretto_proto::write::{
    InternedData, StackSample, StackSampleDefaults, TracePacketDefaults, inline_callstack,
};
use ferretto_wire::{Reader, Value};

use super::Thread;
use super::counted::{Event, Period};
use super::model::{Frame, FrameId, MAX_FRAMES, Profile, StackId};
use crate::packet::{bytes, varint};

/// What samples of a sequence refer to, as its packets had it.
#[derive(Debug, Default)]
pub(super) struct Weighing {
    tasks: HashMap<u64, Thread>,
    counters: HashMap<u64, Event>,
    default: Option<Event>,
}

impl Weighing {
    /// Takes in an encoded `TracePacketDefaults`.
    pub(super) fn take_defaults(&mut self, encoded: &[u8]) {
        let defaults = bytes(encoded, TracePacketDefaults::STACK_SAMPLE_DEFAULTS);
        let counter = defaults.and_then(|defaults| bytes(defaults, StackSampleDefaults::PRIMARY_DESCRIPTOR));
        self.default = counter.map(event_of);
    }

    /// Takes in an encoded `InternedData`. Of two entries with one id, the first holds, as for upstream's trace processor.
    pub(super) fn take(&mut self, encoded: &[u8]) {
        for field in Reader::new(encoded).map_while(Result::ok) {
            let Value::Bytes(entry) = field.value else {
                continue;
            };
            match field.number {
                InternedData::STACK_SAMPLE_TASK_CONTEXTS => {
                    let iid = varint(entry, TaskContext::IID).unwrap_or(0);
                    self.tasks.entry(iid).or_insert_with(|| thread_of(entry));
                }
                InternedData::STACK_SAMPLE_COUNTER_DESCRIPTORS => {
                    let iid = varint(entry, CounterDescriptor::IID).unwrap_or(0);
                    self.counters.entry(iid).or_insert_with(|| event_of(entry));
                }
                _ => {}
            }
        }
    }

    /// The thread that a sample is of.
    pub(super) fn thread(&self, sample: &[u8]) -> Thread {
        let inline = bytes(sample, StackSample::TASK_CONTEXT).map(thread_of);
        let interned =
            varint(sample, StackSample::TASK_CONTEXT_IID).and_then(|iid| self.tasks.get(&iid).copied());
        inline.or(interned).unwrap_or(Thread { pid: 0, tid: 0 })
    }

    /// The event that a sample counts.
    pub(super) fn event(&self, sample: &[u8]) -> Event {
        let inline = bytes(sample, StackSample::PRIMARY_DESCRIPTOR).map(event_of);
        let interned = varint(sample, StackSample::PRIMARY_DESCRIPTOR_IID)
            .and_then(|iid| self.counters.get(&iid).cloned());
        let known = inline.or(interned).or_else(|| self.default.clone());
        known.unwrap_or_else(|| event_of(&[]))
    }
}

fn thread_of(task: &[u8]) -> Thread {
    let number = |field| varint(task, field).unwrap_or(0) as u32;
    Thread {
        pid: number(TaskContext::PID),
        tid: number(TaskContext::TID),
    }
}

fn event_of(counter: &[u8]) -> Event {
    let name = bytes(counter, CounterDescriptor::NAME).unwrap_or_default();
    let unit = varint(counter, CounterDescriptor::UNIT);
    let is = |of: Unit| unit == Some(of as u64);
    Event {
        name: match name {
            b"" => "samples".to_owned(),
            name => String::from_utf8_lossy(name).into_owned(),
        },
        unit: match () {
            () if is(Unit::UNIT_NANOSECONDS) => "nanoseconds",
            () if is(Unit::UNIT_CPU_CYCLES) => "cycles",
            () if is(Unit::UNIT_INSTRUCTIONS) => "instructions",
            () if is(Unit::UNIT_BYTES) => "bytes",
            () => "count",
        },
        period: Some(Period::Weighted),
        measure: None,
    }
}

impl Profile {
    /// The call stack of an encoded `InlineCallstack`; `None` if it has no frames, or too many.
    pub(super) fn inline_stack(&mut self, encoded: &[u8]) -> Option<StackId> {
        let frames = Reader::new(encoded).map_while(Result::ok);
        let frames = frames
            .filter_map(|field| field.value.as_bytes())
            .take(MAX_FRAMES + 1);
        let frames: Vec<FrameId> = frames.map(|frame| self.inline_frame(frame)).collect();
        if frames.len() > MAX_FRAMES {
            return None;
        }
        self.stacks.intern(&frames)
    }

    fn inline_frame(&mut self, encoded: &[u8]) -> FrameId {
        let mut text = |field| self.strings.intern(bytes(encoded, field).unwrap_or_default());
        let (name, file) = (
            text(inline_callstack::Frame::FUNCTION_NAME),
            text(inline_callstack::Frame::SOURCE_FILE),
        );
        self.intern_frame(Frame {
            module: None,
            rel_pc: 0,
            name,
            file,
            line: varint(encoded, inline_callstack::Frame::LINE_NUMBER).map(|line| line as u32),
            is_kernel: false,
        })
    }
}
