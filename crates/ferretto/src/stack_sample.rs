//! Samples of call stacks that a program takes of itself: `stack_sample` packets.
//!
//! A profiler in the program is a [data source](crate::data_source) whose incremental state is [`StackSamples`]. That writes the samples, each with a
//! stack, the thread that it is of, and a weight: how much the sample stands for, in the unit of a [`Counter`].
//!
//! ```
//! use ferretto::callstack::Callstack;
//! use ferretto::data_source::{DataSource, DataSourceHandle, SetUp};
//! use ferretto::stack_sample::{Counter, Sample, StackSamples, Unit};
//!
//! struct Reads;
//!
//! impl DataSource for Reads {
//!     const NAME: &'static str = "com.example.reads";
//!     type Incremental = StackSamples;
//!     type Thread = ();
//!
//!     fn set_up(_: &SetUp<'_>) -> Self {
//!         Reads
//!     }
//! }
//!
//! static READS: DataSourceHandle<Reads> = DataSourceHandle::new();
//! const BYTES: Counter = Counter::new("bytes read", Unit::Bytes);
//!
//! fn on_read(bytes: u64) {
//!     if READS.is_active() {
//!         let stack = Callstack::capture();
//!         READS.trace(|ctx| ctx.stack_sample(&Sample::new(&stack, BYTES, bytes)));
//!     }
//! }
//! # READS.register();
//! # on_read(7);
//! ```
//!
//! Such a data source writes no other packets that need incremental state. `StackSamples` begins a sequence when it writes the first sample, and again later,
//! which clears what other packets have told the readers of the sequence.
//!
//! The data source's name is the source of the samples in the trace. `ferretto::callstack` has the forms of stacks. Perfetto's UI and trace processor know
//! such packets since version 58 (August 2026), which has them in a table `stack_sample`; earlier ones ignore them. Threads have names in the trace if
//! the session records track events or the kernel's list of processes beside the samples.

use std::collections::HashMap;

use ferretto_client::trace_writer::TraceWriter;
use ferretto_proto::messages::stack_sample::Unit as WireUnit;
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::stack_sample::CounterDescriptor;
use ferretto_proto::write::{InternedData, TracePacket};
use ferretto_wire::Writer;

use crate::callstack::{self, Frames, InternedStacks};
use crate::clock;
use crate::data_source::{DataSource, TraceContext};
use crate::starting_over::StartsOver;
use crate::system;
use crate::track_event::Timestamp;

/// The most threads, and the most counters, that a sequence remembers. For one more it starts over.
const MAX_TASKS: usize = 4096;
const MAX_COUNTERS: usize = 64;

/// The quantity that samples are weighed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    name: &'static str,
    unit: Unit,
    description: Option<&'static str>,
}

impl Counter {
    /// A counter with this name.
    pub const fn new(name: &'static str, unit: Unit) -> Self {
        Self {
            name,
            unit,
            description: None,
        }
    }

    /// The same counter, with a text that says what it counts.
    #[must_use]
    pub const fn description(self, description: &'static str) -> Self {
        Self {
            description: Some(description),
            ..self
        }
    }

    fn write(&self, id: u64, out: &mut CounterDescriptor<'_>) {
        out.iid(id).name(self.name);
        let unit = match self.unit {
            Unit::Other(name) => {
                out.unit_str(name);
                None
            }
            Unit::Nanoseconds => Some(WireUnit::UNIT_NANOSECONDS),
            Unit::CpuCycles => Some(WireUnit::UNIT_CPU_CYCLES),
            Unit::Instructions => Some(WireUnit::UNIT_INSTRUCTIONS),
            Unit::Bytes => Some(WireUnit::UNIT_BYTES),
            Unit::PageFaults => Some(WireUnit::UNIT_PAGE_FAULTS),
            Unit::CacheMisses => Some(WireUnit::UNIT_CACHE_MISSES),
            Unit::CacheReferences => Some(WireUnit::UNIT_CACHE_REFERENCES),
            Unit::BranchMisses => Some(WireUnit::UNIT_BRANCH_MISSES),
            Unit::Count => Some(WireUnit::UNIT_COUNT),
        };
        if let Some(unit) = unit {
            out.unit(unit);
        }
        if let Some(description) = self.description {
            out.description(description);
        }
    }
}

/// The unit of a [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Unit {
    Nanoseconds,
    CpuCycles,
    Instructions,
    Bytes,
    PageFaults,
    CacheMisses,
    CacheReferences,
    BranchMisses,
    /// A number of something.
    Count,
    /// A unit with this name.
    Other(&'static str),
}

/// A sample: a call stack, and how much it stands for.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    stack: &'a dyn Frames,
    counter: Counter,
    weight: u64,
    task: Task,
    timestamp: Option<Timestamp>,
    cpu: Option<u32>,
}

/// The process and thread that a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Task {
    pid: u32,
    tid: u32,
}

impl std::fmt::Debug for Sample<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample")
            .field("counter", &self.counter)
            .field("weight", &self.weight)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

impl<'a> Sample<'a> {
    /// A sample of the calling thread, taken now, which stands for this much of a counter. Without frames it is recorded without a stack. A slice of
    /// frames is passed by a reference to it: `&&frames[..]`.
    pub fn new(stack: &'a dyn Frames, counter: Counter, weight: u64) -> Self {
        Self {
            stack,
            counter,
            weight,
            task: Task {
                pid: system::process_id(),
                tid: system::thread_id(),
            },
            timestamp: None,
            cpu: None,
        }
    }

    /// The same sample, of another thread of this process: by the number that the kernel gives it ([`thread_id`] on that thread).
    #[must_use]
    pub fn thread(self, tid: u32) -> Self {
        let task = Task { tid, ..self.task };
        Self { task, ..self }
    }

    /// The same sample, taken at another time.
    #[must_use]
    pub fn timestamp(self, timestamp: impl Into<Timestamp>) -> Self {
        Self {
            timestamp: timestamp.into().or_now(),
            ..self
        }
    }

    /// The same sample, taken on this processor.
    #[must_use]
    pub fn cpu(self, cpu: u32) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }
}

/// The number that the kernel gives the calling thread: for [`Sample::thread`]. 0 where nothing is recorded.
pub fn thread_id() -> u32 {
    system::thread_id()
}

/// What readers know of a thread's samples so far: the incremental state of a data source of samples, which [writes nothing else](self) that needs such
/// state.
#[derive(Default)]
pub struct StackSamples {
    /// The first packet was written.
    begun: bool,
    losses: u64,
    starts_over: StartsOver,
    stacks: InternedStacks,
    tasks: HashMap<Task, u64>,
    /// Those with the ids from 1 on.
    counters: Vec<Counter>,
    /// Fields of `InternedData` for the next packet.
    definitions: Writer,
}

impl std::fmt::Debug for StackSamples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StackSamples").finish_non_exhaustive()
    }
}

impl StackSamples {
    /// Writes a sample, after everything that it refers to.
    fn write(&mut self, source: &str, writer: &mut TraceWriter, sample: &Sample<'_>) {
        let is_full = self.tasks.len() >= MAX_TASKS && !self.tasks.contains_key(&sample.task)
            || self.counters.len() >= MAX_COUNTERS && !self.counters.contains(&sample.counter);
        let has_lost = self.losses != writer.losses() || writer.is_losing();
        if !self.begun || has_lost || is_full || self.starts_over.is_due(writer.returned()) {
            self.begin(source, writer);
            if writer.is_losing() {
                return;
            }
        }
        // If the frames' code panics, readers miss definitions that count as written.
        self.begun = false;
        let stack = self.stacks.id(sample.stack, &mut self.definitions);
        let counter = self.counter(sample.counter);
        let task = self.task(sample.task);
        let (time, clock) = match sample.timestamp {
            None => (clock::now(), None),
            Some(Timestamp::TraceTime(time)) => (time, None),
            Some(Timestamp::OnClock { clock_id, value }) => (value, Some(clock_id)),
        };
        writer.packet(|out| {
            let mut packet = TracePacket::new(out);
            packet
                .timestamp(time)
                .sequence_flags(SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32);
            if let Some(clock) = clock {
                packet.timestamp_clock_id(clock);
            }
            packet.stack_sample(|out| {
                out.task_context_iid(task);
                if let Some(cpu) = sample.cpu {
                    out.execution_context(|out| {
                        out.cpu(cpu);
                    });
                }
                if let Some(stack) = stack {
                    out.callstack_iid(stack);
                }
                out.primary_descriptor_iid(counter).primary_weight(sample.weight);
            });
            if !self.definitions.is_empty() {
                packet
                    .writer()
                    .bytes_field(TracePacket::INTERNED_DATA, self.definitions.as_slice());
            }
        });
        self.starts_over.note_told(self.definitions.len());
        callstack::clear(&mut self.definitions);
        self.begun = true;
    }

    /// Starts over: writes the packet that clears all earlier state and sets the defaults.
    #[cold]
    fn begin(&mut self, source: &str, writer: &mut TraceWriter) {
        *self = Self {
            losses: writer.losses(),
            starts_over: StartsOver::again(writer.returned()),
            ..Self::default()
        };
        writer.packet(|out| {
            TracePacket::new(out)
                .timestamp(clock::now())
                .timestamp_clock_id(clock::chosen().id())
                .sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32)
                .trace_packet_defaults(|defaults| {
                    defaults
                        .timestamp_clock_id(clock::chosen().id())
                        .stack_sample_defaults(|defaults| {
                            defaults.source(source);
                        });
                });
        });
    }

    /// The id of a counter.
    fn counter(&mut self, counter: Counter) -> u64 {
        let known = self.counters.iter().position(|known| *known == counter);
        let index = known.unwrap_or_else(|| {
            self.counters.push(counter);
            let id = self.counters.len() as u64;
            InternedData::new(&mut self.definitions)
                .stack_sample_counter_descriptors(|out| counter.write(id, out));
            self.counters.len() - 1
        });
        index as u64 + 1
    }

    /// The id of a thread.
    fn task(&mut self, task: Task) -> u64 {
        let new = self.tasks.len() as u64 + 1;
        *self.tasks.entry(task).or_insert_with(|| {
            InternedData::new(&mut self.definitions).stack_sample_task_contexts(|out| {
                out.iid(new).pid(task.pid).tid(task.tid);
            });
            new
        })
    }
}

impl<D: DataSource<Incremental = StackSamples>> TraceContext<'_, D> {
    /// Writes a sample of a call stack. The source of the samples is the data source's name.
    pub fn stack_sample(&mut self, sample: &Sample<'_>) {
        self.incremental
            .write(D::NAME, self.writer.trace_writer(), sample);
    }
}

#[cfg(test)]
mod tests;
