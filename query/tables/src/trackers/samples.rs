//! Samples of call stacks: of linux.perf, of programs that sample themselves, and of heaps.

use std::collections::BTreeMap;

use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples};
use ferretto_proto::write::{PerfSample, PerfSampleDefaults, ProfilePacket};
use ferretto_wire::take_varint;
use hashbrown::{HashMap, HashSet};

use super::Trackers;
use super::args::Value;
use super::processes::Upid;
use super::stacks::Callsite;
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::clocks::MONOTONIC_COARSE;
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number, number_of};
use crate::rows::Cell;
use crate::schema::{
    CPU_PROFILE_STACK_SAMPLE, HEAP_PROFILE_ALLOCATION, PERF_SAMPLE, PERF_SESSION, PROFILER_SMAPS,
};
use crate::strings::StringId;
use crate::tokenizer::stacks::NO_STACK;

/// The states of sequences whose heaps are remembered.
const MOST_GENERATIONS: usize = 64;
/// The most samples of heaps that wait for the end of their dump.
const MOST_PENDING: usize = 1 << 22;
/// The heap of Android's runtime, of which only allocations are known.
const ART: &str = "com.android.art";
const CPU_MODES: [&str; 6] = [
    "unknown",
    "kernel",
    "user",
    "hypervisor",
    "guest_kernel",
    "guest_user",
];
const UNWIND_ERRORS: [&str; 16] = [
    "unknown",
    "none",
    "memory_invalid",
    "unwind_info",
    "unsupported",
    "invalid_map",
    "max_frames_exceeded",
    "repeated_frame",
    "invalid_elf",
    "system_call",
    "thread_timeout",
    "thread_does_not_exist",
    "bad_arch",
    "maps_parse",
    "invalid_parameter",
    "ptrace_call",
];
/// Names of the kernel's counters, by `PerfEvents.Counter`.
const COUNTERS: [(u64, &str); 20] = [
    (1, "cpu-clock"),
    (2, "page-faults"),
    (3, "task-clock"),
    (4, "context-switches"),
    (5, "cpu-migrations"),
    (6, "minor-faults"),
    (7, "major-faults"),
    (8, "alignment-faults"),
    (9, "emulation-faults"),
    (20, "dummy"),
    (10, "cpu-cycles"),
    (11, "instructions"),
    (12, "cache-references"),
    (13, "cache-misses"),
    (14, "branch-instructions"),
    (15, "branch-misses"),
    (16, "bus-cycles"),
    (17, "stalled-cycles-frontend"),
    (18, "stalled-cycles-backend"),
    (19, "ref-cycles"),
];

/// The state of a sequence, as the tokenizer puts it in front of samples.
#[derive(Debug, Clone, Copy)]
struct State {
    sequence: u32,
    generation: u32,
    defaults: Option<usize>,
}

impl State {
    fn take(from: &mut &[u8]) -> Option<State> {
        Some(State {
            sequence: take_varint(from)? as u32,
            generation: take_varint(from)? as u32,
            defaults: take_varint(from)?
                .checked_sub(1)
                .map(|defaults| defaults as usize),
        })
    }
}

/// The counters of a CPU in a session of linux.perf.
#[derive(Debug, Clone)]
struct Counters {
    timebase: TrackId,
    followers: Vec<TrackId>,
}

/// A count of allocations and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sum {
    count: i64,
    size: i64,
}

impl Sum {
    fn plus(self, other: Sum) -> Sum {
        Sum {
            count: self.count.wrapping_add(other.count),
            size: self.size.wrapping_add(other.size),
        }
    }

    fn minus(self, other: Sum) -> Sum {
        Sum {
            count: self.count.wrapping_sub(other.count),
            size: self.size.wrapping_sub(other.size),
        }
    }
}

/// A sample of a heap whose dump is not complete.
#[derive(Debug, Clone, Copy)]
struct Allocation {
    ts: i64,
    pid: i64,
    heap: StringId,
    iid: u64,
    stack: u32,
    allocated: Sum,
    freed: Sum,
}

/// What a sequence has said about heaps, until it starts over.
#[derive(Debug, Default)]
struct Heaps {
    pending: Vec<Allocation>,
    before: HashMap<(Upid, Callsite), [Sum; 2]>,
    seen: HashSet<(Upid, u64, StringId, Callsite)>,
    /// What was counted already when a stack came under this number, by number.
    corrections: HashMap<u64, [Sum; 2]>,
}

/// All samples so far.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    sessions: HashMap<u32, i64>,
    counters: HashMap<(i64, u32), Counters>,
    rows: i64,
    streamed: i64,
    allocations: i64,
    smaps: i64,
    heaps: BTreeMap<u32, Heaps>,
}

impl Trackers {
    /// A sample of linux.perf.
    pub(crate) fn perf_sample(&mut self, ts: i64, mut event: &[u8], context: &mut Context<'_>) -> Option<()> {
        let state = State::take(&mut event)?;
        let stack = take_varint(&mut event)? as u32;
        let sample = event;
        let get = |field| number_of(sample, field);
        let cpu = get(PerfSample::CPU).unwrap_or(0) as u32;
        let session = self.perf_session(state.sequence, context);
        let counters = self.perf_counters(session, cpu, state.defaults, context);
        if let Some(lost @ 1..) = get(PerfSample::KERNEL_RECORDS_LOST) {
            context
                .stats
                .add("perf_cpu_lost_records", Some(cpu.into()), lost as i64);
            return None;
        }
        if bytes_of(sample, PerfSample::PRODUCER_EVENT).is_some() {
            return None;
        }
        match get(PerfSample::SAMPLE_SKIPPED_REASON) {
            Some(1 | 2) => context.stats.add("perf_samples_skipped", None, 1),
            Some(3) => context.stats.add("perf_samples_skipped_dataloss", None, 1),
            _ => {}
        }
        let mut count = |track, value: u64, context: &mut Context<'_>| {
            let Context { strings, output, .. } = context;
            self.tracks.count(ts, track, value as f64, None, strings, output);
        };
        if let Some(value) = get(PerfSample::TIMEBASE_COUNT) {
            count(counters.timebase, value, context);
        }
        let mut followers = counters.followers.iter();
        for field in fields(sample).filter(|field| field.number == PerfSample::FOLLOWER_COUNTS) {
            each_varint(field.value, |value| {
                if let Some(track) = followers.next() {
                    count(*track, value, context);
                }
            });
        }
        let pid = i64::from(get(PerfSample::PID).unwrap_or(0) as u32);
        let tid = i64::from(get(PerfSample::TID).unwrap_or(0) as u32);
        let utid = self.processes.thread_of(tid, pid);
        let upid = self.processes.process(pid);
        let callsite = match get(PerfSample::CALLSTACK_IID) {
            Some(_) => self.stacks.callsite(state.generation, upid, stack, context),
            None => None,
        };
        let named = |field, names: &[&'static str]| {
            get(field).map(|number| names.get(number as usize).copied().unwrap_or("unknown"))
        };
        let mode = named(PerfSample::CPU_MODE, &CPU_MODES).unwrap_or("unknown");
        let error = named(PerfSample::UNWIND_ERROR, &UNWIND_ERRORS);
        let row = [
            Cell::from(self.samples.rows),
            Cell::from(ts),
            Cell::from(utid),
            Cell::from(cpu),
            context.output.text(&PERF_SAMPLE, mode),
            Cell::from(callsite),
            error.map_or(Cell::NULL, |error| context.output.text(&PERF_SAMPLE, error)),
            Cell::from(session),
        ];
        self.samples.rows += 1;
        context.output.time(ts, 0);
        context.output.push(&PERF_SAMPLE, &row, &context.strings);
        Some(())
    }

    fn perf_session(&mut self, sequence: u32, context: &mut Context<'_>) -> i64 {
        let sessions = &mut self.samples.sessions;
        let next = sessions.len() as i64;
        let session = *sessions.entry(sequence).or_insert(next);
        if session == next {
            let row = [Cell::from(session), Cell::NULL, Cell::from(session)];
            context.output.push(&PERF_SESSION, &row, &context.strings);
        }
        session
    }

    fn perf_counters(
        &mut self,
        session: i64,
        cpu: u32,
        defaults: Option<usize>,
        context: &mut Context<'_>,
    ) -> Counters {
        if let Some(counters) = self.samples.counters.get(&(session, cpu)) {
            return counters.clone();
        }
        let defaults = defaults
            .and_then(|defaults| context.stacks.defaults.get(defaults))
            .cloned();
        let timebase = match &defaults {
            Some(defaults) => counter_name(
                bytes_of(defaults, PerfSampleDefaults::TIMEBASE).unwrap_or(&[]),
                OF_TIMEBASE,
            ),
            None => COUNTERS[0].1.to_owned(),
        };
        let timebase = self.perf_track(session, cpu, &timebase, true, context);
        let followers = defaults.iter().flat_map(|defaults| {
            all_bytes(defaults, PerfSampleDefaults::FOLLOWERS)
                .map(|follower| counter_name(follower, OF_FOLLOWER))
        });
        let followers = followers
            .map(|name| self.perf_track(session, cpu, &name, false, context))
            .collect();
        let counters = Counters { timebase, followers };
        self.samples.counters.insert((session, cpu), counters.clone());
        counters
    }

    fn perf_track(
        &mut self,
        session: i64,
        cpu: u32,
        name: &str,
        is_timebase: bool,
        context: &mut Context<'_>,
    ) -> TrackId {
        let name = context.strings.intern(name);
        let key = Key::new(
            "perf_cpu_counter",
            &[
                ("cpu", Dimension::Int(cpu.into())),
                ("perf_session_id", Dimension::Int(session)),
                ("name", Dimension::Text(name)),
            ],
        );
        let has = Has::Counter { unit: None };
        let track = self.tracks.intern(&key, has, |_| Some(name), context);
        if !self.tracks.is_described(track) {
            let key = context.strings.intern("is_timebase");
            context.args.add(key, key, Value::Bool(is_timebase));
            let source = context.args.finish(&context.strings, &mut context.output);
            self.tracks.describe(track, source, None);
            self.tracks.set_timebase(track, is_timebase);
        }
        track
    }

    /// Samples that a program made of one of its threads.
    pub(crate) fn streaming_profile(
        &mut self,
        mut ts: i64,
        mut event: &[u8],
        context: &mut Context<'_>,
    ) -> Option<()> {
        let state = State::take(&mut event)?;
        let pid = i64::from(take_varint(&mut event)? as u32);
        let tid = i64::from(take_varint(&mut event)? as u32);
        let priority = take_varint(&mut event)? as i32;
        let utid = self.processes.thread_of(tid, pid);
        let upid = self.processes.process(pid);
        while let (Some(stack), Some(delta)) = (take_varint(&mut event), take_varint(&mut event)) {
            let callsite = self
                .stacks
                .callsite(state.generation, upid, stack as u32, context);
            let Some(callsite) = callsite else {
                context.stats.add("stackprofile_parser_error", None, 1);
                continue;
            };
            ts = ts.wrapping_add(delta as i64);
            let row = [
                Cell::from(self.samples.streamed),
                Cell::from(ts),
                Cell::from(callsite),
                Cell::from(utid),
                Cell::from(priority),
            ];
            self.samples.streamed += 1;
            context.output.time(ts, 0);
            context
                .output
                .push(&CPU_PROFILE_STACK_SAMPLE, &row, &context.strings);
        }
        Some(())
    }

    /// A dump of heaps, or a part of one.
    pub(crate) fn heap_profile(&mut self, mut event: &[u8], context: &mut Context<'_>) -> Option<()> {
        let state = State::take(&mut event)?;
        let count = take_varint(&mut event)?;
        let mut stacks = Vec::new();
        for _ in 0..count {
            stacks.push(take_varint(&mut event)? as u32);
        }
        let mut stacks = stacks.into_iter();
        let packet = event;
        let mut added = Vec::new();
        for dump in all_bytes(packet, ProfilePacket::PROCESS_DUMPS) {
            let mut samples = all_bytes(dump, ProcessHeapSamples::SAMPLES);
            let get = |field| number_of(dump, field);
            let time = get(ProcessHeapSamples::TIMESTAMP).unwrap_or(0) as i64;
            let Some(ts) = context.clocks.trace_time(MONOTONIC_COARSE, time) else {
                let passed = samples.by_ref().count();
                stacks.by_ref().take(passed).for_each(|_| {});
                continue;
            };
            let heap = bytes_of(dump, ProcessHeapSamples::HEAP_NAME).filter(|name| !name.is_empty());
            let heap = context.strings.intern_bytes(heap.unwrap_or(b"unknown"));
            let pid = i64::from(get(ProcessHeapSamples::PID).unwrap_or(0) as u32);
            let counts_are_right = get(ProcessHeapSamples::ORIG_SAMPLING_INTERVAL_BYTES).unwrap_or(0) > 0;
            for sample in samples {
                let get = |field| number_of(sample, field);
                let or_zero = |field| get(field).unwrap_or(0) as i64;
                let (allocated, freed) = match get(HeapSample::SELF_MAX) {
                    Some(size) => {
                        let count = match counts_are_right {
                            true => or_zero(HeapSample::SELF_MAX_COUNT),
                            false => 0,
                        };
                        let size = size as i64;
                        (Sum { count, size }, Sum::default())
                    }
                    None => (
                        Sum {
                            count: or_zero(HeapSample::ALLOC_COUNT),
                            size: or_zero(HeapSample::SELF_ALLOCATED),
                        },
                        Sum {
                            count: or_zero(HeapSample::FREE_COUNT).wrapping_neg(),
                            size: or_zero(HeapSample::SELF_FREED).wrapping_neg(),
                        },
                    ),
                };
                added.push(Allocation {
                    ts,
                    pid,
                    heap,
                    iid: get(HeapSample::CALLSTACK_ID).unwrap_or(0),
                    stack: stacks.next().unwrap_or(NO_STACK),
                    allocated,
                    freed,
                });
            }
        }
        let heaps = &mut self.samples.heaps;
        if heaps.len() >= MOST_GENERATIONS && !heaps.contains_key(&state.generation) {
            heaps.pop_first();
        }
        let mut of_sequence = heaps.remove(&state.generation).unwrap_or_default();
        if of_sequence.pending.len() < MOST_PENDING {
            of_sequence.pending.append(&mut added);
        }
        if number_of(packet, ProfilePacket::CONTINUED).unwrap_or(0) == 0 {
            for allocation in std::mem::take(&mut of_sequence.pending) {
                self.allocation(&allocation, state.generation, &mut of_sequence, context);
            }
        }
        self.samples.heaps.insert(state.generation, of_sequence);
        Some(())
    }

    fn allocation(&mut self, it: &Allocation, generation: u32, heaps: &mut Heaps, context: &mut Context<'_>) {
        let upid = self.processes.process(it.pid);
        let Some(callsite) = self.stacks.callsite(generation, upid, it.stack, context) else {
            return;
        };
        let before = heaps.before.entry((upid, callsite)).or_default();
        if heaps.seen.insert((upid, it.iid, it.heap, callsite)) {
            heaps.corrections.insert(it.iid, *before);
        }
        let correction = heaps.corrections.get(&it.iid).copied().unwrap_or_default();
        let now = [it.allocated.plus(correction[0]), it.freed.plus(correction[1])];
        let more = [now[0].minus(before[0]), now[1].minus(before[1])];
        if more[0].count < 0 || more[0].size < 0 || more[1].count > 0 || more[1].size > 0 {
            context
                .stats
                .add("heapprofd_malformed_packet", Some(upid.into()), 1);
            return;
        }
        *before = now;
        let knows_frees = context.strings.get(it.heap) != ART;
        let mut write = |sum: Sum| {
            let row = [
                Cell::from(self.samples.allocations),
                Cell::from(it.ts),
                Cell::from(upid),
                Cell::from(it.heap),
                Cell::from(callsite),
                Cell::from(sum.count),
                Cell::from(sum.size),
            ];
            self.samples.allocations += 1;
            context.output.time(it.ts, 0);
            context
                .output
                .push(&HEAP_PROFILE_ALLOCATION, &row, &context.strings);
        };
        if more[0] != Sum::default() {
            write(more[0]);
        }
        if more[1] != Sum::default() && knows_frees {
            write(more[1]);
        }
    }

    /// The mappings of a process, with what of them is in memory.
    pub(crate) fn smaps(&mut self, ts: i64, packet: &[u8], context: &mut Context<'_>) {
        const PID: u32 = 1;
        const ENTRIES: u32 = 2;
        const PATH: u32 = 1;
        const FILE_NAME: u32 = 5;
        const DEBUG_ID: u32 = 8;
        const DEBUG_PATH: u32 = 9;
        let upid = self
            .processes
            .process(i64::from(number_of(packet, PID).unwrap_or(0) as u32));
        for entry in all_bytes(packet, ENTRIES) {
            let mut numbers = [0_i64; 17];
            for field in fields(entry) {
                if let (Some(place), Some(value)) =
                    (numbers.get_mut(field.number as usize), number(field.value))
                {
                    *place = value as i64;
                }
            }
            let texts = [PATH, FILE_NAME, DEBUG_ID, DEBUG_PATH].map(|field| {
                let text = bytes_of(entry, field);
                Cell::from(text.map(|text| context.strings.intern_bytes(text)))
            });
            let at = |field: usize| Cell::from(numbers[field]);
            let row = [
                Cell::from(self.samples.smaps),
                Cell::from(upid),
                Cell::from(ts),
                texts[0],
                at(2),
                at(3),
                at(4),
                texts[1],
                at(6),
                at(7),
                texts[2],
                texts[3],
                at(10),
                at(11),
                at(12),
                at(13),
                at(14),
                at(15),
            ];
            self.samples.smaps += 1;
            context.output.push(&PROFILER_SMAPS, &row, &context.strings);
        }
    }
}

/// Where the messages of the timebase and of followers have their parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    counter: u32,
    tracepoint: u32,
    raw_event: u32,
    name: u32,
    modifiers: u32,
}

const OF_TIMEBASE: Parts = Parts {
    counter: 4,
    tracepoint: 3,
    raw_event: 5,
    name: 10,
    modifiers: 12,
};
const OF_FOLLOWER: Parts = Parts {
    counter: 1,
    tracepoint: 2,
    raw_event: 3,
    name: 4,
    modifiers: 5,
};

/// Returns the name of a counter of linux.perf from its part of the config.
fn counter_name(message: &[u8], parts: Parts) -> String {
    const TRACEPOINT_NAME: u32 = 1;
    const LETTERS: [&str; 4] = ["", "u", "k", "h"];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let of_config = bytes_of(message, parts.name).filter(|name| !name.is_empty());
    let mut name = if let Some(name) = of_config {
        text(name)
    } else if let Some(counter) = number_of(message, parts.counter) {
        let known = COUNTERS.iter().find(|(number, _)| *number == counter);
        known.map_or("unknown", |(_, name)| name).to_owned()
    } else if let Some(tracepoint) = bytes_of(message, parts.tracepoint) {
        text(bytes_of(tracepoint, TRACEPOINT_NAME).unwrap_or(&[]))
    } else if let Some(raw) = bytes_of(message, parts.raw_event) {
        let get = |field| number_of(raw, field).unwrap_or(0);
        let (kind, config) = (get(1) as u32, [get(2), get(3), get(4)]);
        format!("raw.{kind:#x}.{:#x}.{:#x}.{:#x}", config[0], config[1], config[2])
    } else {
        "unknown".to_owned()
    };
    let mut letters = String::new();
    for field in fields(message).filter(|field| field.number == parts.modifiers) {
        each_varint(field.value, |modifier| {
            letters.push_str(LETTERS.get(modifier as usize).copied().unwrap_or(""));
        });
    }
    if !letters.is_empty() {
        name = format!("{name}:{letters}");
    }
    name
}
