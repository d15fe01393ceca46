//! Samples that programs take of themselves (`StackSample`): what a sequence says of their threads, of where these ran, and of what samples are weighed in.
//!
//! The reader of samples has one [`Weighing`] for each sequence.

use std::collections::HashMap;

use ferretto_proto::messages::stack_sample::Unit;
use ferretto_proto::write::stack_sample::{CounterDescriptor, ExecutionContext, TaskContext};
use ferretto_proto::write::{
    InternedData, StackSample, StackSampleDefaults, TracePacketDefaults, inline_callstack,
};
use ferretto_wire::{Reader, Value};

use super::counted::{Event, Period, Places};
use super::model::{Frame, FrameId, MAX_FRAMES, Profile, StackId};
use super::{EventId, Mode, Thread};
use crate::packet::{bytes, varint};

/// What samples of a sequence refer to, as its packets had it.
#[derive(Debug, Default)]
pub(super) struct Weighing {
    tasks: HashMap<u64, Thread>,
    executions: HashMap<u64, Execution>,
    counters: HashMap<u64, Descriptor>,
    default: Option<Descriptor>,
}

/// Where a sample was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Execution {
    pub(super) cpu: Option<u32>,
    pub(super) mode: Mode,
}

/// What samples are weighed in, as an encoded `CounterDescriptor` says.
#[derive(Debug)]
struct Descriptor {
    event: Event,
    multiplier: u64,
    /// From the first sample on. Inside, `None` if the trace has too many events.
    place: Option<Option<EventId>>,
}

impl Descriptor {
    fn of(encoded: &[u8]) -> Descriptor {
        let multiplier = varint(encoded, CounterDescriptor::UNIT_MULTIPLIER);
        Descriptor {
            event: event_of(encoded),
            multiplier: multiplier.filter(|multiplier| *multiplier != 0).unwrap_or(1),
            place: None,
        }
    }

    fn counter(&mut self, places: &mut Places, events: &mut Vec<Event>) -> Counter {
        let event = &self.event;
        let place = self.place.get_or_insert_with(|| places.of(event.clone(), events));
        Counter {
            event: *place,
            multiplier: self.multiplier,
        }
    }
}

/// The counter of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    /// `None` if the trace has too many events.
    pub(super) event: Option<EventId>,
    /// How many of the event's units a weight of 1 is.
    multiplier: u64,
}

impl Counter {
    /// The weight of an encoded sample, in the event's unit.
    pub(super) fn weight(self, sample: &[u8]) -> u64 {
        let weight = varint(sample, StackSample::PRIMARY_WEIGHT);
        weight.map_or(1, |weight| weight.saturating_mul(self.multiplier))
    }
}

impl Weighing {
    /// Takes in an encoded `TracePacketDefaults`.
    pub(super) fn take_defaults(&mut self, encoded: &[u8]) {
        let defaults = bytes(encoded, TracePacketDefaults::STACK_SAMPLE_DEFAULTS);
        let counter = defaults.and_then(|defaults| bytes(defaults, StackSampleDefaults::PRIMARY_DESCRIPTOR));
        self.default = counter.map(Descriptor::of);
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
                InternedData::STACK_SAMPLE_EXECUTION_CONTEXTS => {
                    let iid = varint(entry, ExecutionContext::IID).unwrap_or(0);
                    self.executions.entry(iid).or_insert_with(|| execution_of(entry));
                }
                InternedData::STACK_SAMPLE_COUNTER_DESCRIPTORS => {
                    let iid = varint(entry, CounterDescriptor::IID).unwrap_or(0);
                    let counters = self.counters.entry(iid);
                    counters.or_insert_with(|| Descriptor::of(entry));
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

    /// Where a sample was taken.
    pub(super) fn execution(&self, sample: &[u8]) -> Execution {
        let inline = bytes(sample, StackSample::EXECUTION_CONTEXT).map(execution_of);
        let interned = varint(sample, StackSample::EXECUTION_CONTEXT_IID)
            .and_then(|iid| self.executions.get(&iid).copied());
        inline.or(interned).unwrap_or_else(|| execution_of(&[]))
    }

    /// What a sample is weighed in. An event has a place from its first sample on.
    pub(super) fn counter(&mut self, sample: &[u8], places: &mut Places, events: &mut Vec<Event>) -> Counter {
        if let Some(inline) = bytes(sample, StackSample::PRIMARY_DESCRIPTOR) {
            return Descriptor::of(inline).counter(places, events);
        }
        let interned =
            varint(sample, StackSample::PRIMARY_DESCRIPTOR_IID).and_then(|iid| self.counters.get_mut(&iid));
        match interned.or(self.default.as_mut()) {
            Some(known) => known.counter(places, events),
            None => Descriptor::of(&[]).counter(places, events),
        }
    }
}

fn execution_of(execution: &[u8]) -> Execution {
    Execution {
        cpu: varint(execution, ExecutionContext::CPU).map(|cpu| cpu as u32),
        mode: match varint(execution, ExecutionContext::MODE) {
            Some(1 | 4) => Mode::User,
            Some(2 | 3 | 5) => Mode::Kernel,
            _ => Mode::Unknown,
        },
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
    // As upstream, whose trace processor passes over a unit that says nothing.
    let own_unit = match unit {
        None | Some(0) => bytes(counter, CounterDescriptor::UNIT_STR).unwrap_or_default(),
        Some(_) => &[],
    };
    Event {
        name: match name {
            b"" => "samples".to_owned(),
            name => String::from_utf8_lossy(name).into_owned(),
        },
        unit: match () {
            () if is(Unit::UNIT_NANOSECONDS) => "nanoseconds".into(),
            () if is(Unit::UNIT_CPU_CYCLES) => "cycles".into(),
            () if is(Unit::UNIT_INSTRUCTIONS) => "instructions".into(),
            () if is(Unit::UNIT_BYTES) => "bytes".into(),
            () if !own_unit.is_empty() => String::from_utf8_lossy(own_unit).into_owned().into(),
            () => "count".into(),
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
