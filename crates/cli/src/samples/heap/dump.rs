//! A heap profiler's statements about one heap of one process: a `ProcessHeapSamples`, as `android.heapprofd` writes it.
//!
//! The [reader](super) of profiles, `info` and the account of a recording call it. It keeps nothing: a dump refers to the packet that it was read
//! from.

use ferretto_proto::write::ProfilePacket;
use ferretto_proto::write::profile_packet::process_heap_samples::Losses;
use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples, ProcessStats};
use ferretto_wire::{Reader, Value};

use crate::packet::varint;

/// `ClientError`: the program gave up waiting for room in the shared memory.
const HIT_TIMEOUT: u64 = 1;
/// `ClientError`: the program did not find the bounds of a stack.
const INVALID_STACK_BOUNDS: u64 = 2;

/// One dump of one heap, without its samples. A dump may be spread over several packets, each with all of this.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dump<'a> {
    pub(crate) pid: u32,
    /// Empty in traces of old profilers.
    pub(crate) heap: &'a [u8],
    /// In ns of `CLOCK_MONOTONIC_COARSE`.
    pub(crate) time: u64,
    /// Bytes between two samples, on average.
    pub(crate) interval: u64,
    /// The same as the config had it; 0 in traces of old profilers.
    pub(crate) asked_interval: u64,
    /// Samples so far. The next two count from the beginning of the process's profile as well.
    pub(crate) samples: u64,
    /// Samples whose stack ends too early.
    pub(crate) unwinding_errors: u64,
    /// The process has ended, or no longer reports.
    pub(crate) is_disconnected: bool,
    /// The mishaps.
    pub(crate) troubles: Troubles,
    /// How much is missing; only our own profiler tells.
    pub(crate) missing: Missing,
    encoded: &'a [u8],
}

/// The mishaps of a process's profile so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Troubles {
    /// The shared memory was full, and samples were lost.
    pub(crate) overran: bool,
    /// The program waited too long for room in the shared memory, and gave up.
    pub(crate) timed_out: bool,
    /// The program found the shared memory full and the profiler gone, or out of its sight, and gave up; only our own profiler tells.
    pub(crate) out_of_reach: bool,
    /// The bounds of stacks were not known, and such samples were lost.
    pub(crate) lost_stacks: bool,
    /// The shared memory was damaged.
    pub(crate) corrupted: bool,
    /// The profiler stopped, to keep within a limit of the config.
    pub(crate) guardrail: bool,
    /// Somebody else profiled the process.
    pub(crate) rejected: bool,
}

/// How much is missing from a process's profile so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Samples for which the shared memory had no room, and the bytes that they stood for.
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    /// Sampled allocations whose release could not be told, so that they count as live.
    pub(crate) frees: u64,
    /// Samples that were left out because too many sampled allocations were live.
    pub(crate) untracked: u64,
    /// Samples that count for a stack that stands for all for which there was no room.
    pub(crate) merged: u64,
    /// Samples whose stack was not found, because the recording had to end.
    pub(crate) not_unwound: u64,
}

impl Missing {
    /// Reads an encoded `Losses`.
    fn of(encoded: &[u8]) -> Missing {
        let mut missing = Missing::default();
        for field in Reader::new(encoded).map_while(Result::ok) {
            let Value::Varint(count) = field.value else {
                continue;
            };
            match field.number {
                Losses::SAMPLES => missing.samples = count,
                Losses::BYTES => missing.bytes = count,
                Losses::FREES => missing.frees = count,
                Losses::UNTRACKED => missing.untracked = count,
                Losses::MERGED => missing.merged = count,
                Losses::NOT_UNWOUND => missing.not_unwound = count,
                _ => {}
            }
        }
        missing
    }

    /// Returns each number's larger one. Numbers only grow, and each heap of a process repeats them.
    pub(super) fn max(self, other: Missing) -> Missing {
        Missing {
            samples: self.samples.max(other.samples),
            bytes: self.bytes.max(other.bytes),
            frees: self.frees.max(other.frees),
            untracked: self.untracked.max(other.untracked),
            merged: self.merged.max(other.merged),
            not_unwound: self.not_unwound.max(other.not_unwound),
        }
    }

    /// Returns the sums.
    pub(super) fn plus(self, other: Missing) -> Missing {
        Missing {
            samples: self.samples.saturating_add(other.samples),
            bytes: self.bytes.saturating_add(other.bytes),
            frees: self.frees.saturating_add(other.frees),
            untracked: self.untracked.saturating_add(other.untracked),
            merged: self.merged.saturating_add(other.merged),
            not_unwound: self.not_unwound.saturating_add(other.not_unwound),
        }
    }
}

/// The counts of a call stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// In bytes.
    pub(crate) allocated: u64,
    pub(crate) freed: u64,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
}

/// The counts of one call stack in one dump. They count from the beginning of the process's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StackCounts {
    /// The id of the call stack.
    pub(crate) stack: u64,
    pub(crate) counts: Counts,
    /// Whether the counts are those of the time at which the heap was largest.
    pub(crate) is_at_max: bool,
}

/// Returns the dumps of an encoded `ProfilePacket`.
pub(crate) fn dumps(packet: &[u8]) -> impl Iterator<Item = Dump<'_>> {
    let fields = Reader::new(packet).map_while(Result::ok);
    fields.filter_map(|field| match (field.number, field.value) {
        (ProfilePacket::PROCESS_DUMPS, Value::Bytes(dump)) => Some(Dump::of(dump)),
        _ => None,
    })
}

impl<'a> Dump<'a> {
    /// Reads an encoded `ProcessHeapSamples`.
    fn of(encoded: &'a [u8]) -> Dump<'a> {
        let mut dump = Dump {
            encoded,
            ..Dump::default()
        };
        let troubles = &mut dump.troubles;
        for field in Reader::new(encoded).map_while(Result::ok) {
            match (field.number, field.value) {
                (ProcessHeapSamples::PID, Value::Varint(pid)) => dump.pid = pid as u32,
                (ProcessHeapSamples::HEAP_NAME, Value::Bytes(name)) => dump.heap = name,
                (ProcessHeapSamples::TIMESTAMP, Value::Varint(time)) => dump.time = time,
                (ProcessHeapSamples::SAMPLING_INTERVAL_BYTES, Value::Varint(bytes)) => dump.interval = bytes,
                (ProcessHeapSamples::ORIG_SAMPLING_INTERVAL_BYTES, Value::Varint(bytes)) => {
                    dump.asked_interval = bytes;
                }
                (ProcessHeapSamples::STATS, Value::Bytes(stats)) => {
                    dump.samples = varint(stats, ProcessStats::HEAP_SAMPLES).unwrap_or(0);
                    dump.unwinding_errors = varint(stats, ProcessStats::UNWINDING_ERRORS).unwrap_or(0);
                }
                (ProcessHeapSamples::LOSSES, Value::Bytes(losses)) => {
                    dump.missing = Missing::of(losses);
                    troubles.out_of_reach = varint(losses, Losses::OUT_OF_REACH).unwrap_or(0) != 0;
                }
                (ProcessHeapSamples::DISCONNECTED, Value::Varint(1..)) => dump.is_disconnected = true,
                (ProcessHeapSamples::BUFFER_OVERRAN, Value::Varint(1..)) => troubles.overran = true,
                (ProcessHeapSamples::CLIENT_ERROR, Value::Varint(HIT_TIMEOUT)) => troubles.timed_out = true,
                (ProcessHeapSamples::CLIENT_ERROR, Value::Varint(INVALID_STACK_BOUNDS)) => {
                    troubles.lost_stacks = true;
                }
                (ProcessHeapSamples::BUFFER_CORRUPTED, Value::Varint(1..)) => troubles.corrupted = true,
                (ProcessHeapSamples::HIT_GUARDRAIL, Value::Varint(1..)) => troubles.guardrail = true,
                (ProcessHeapSamples::REJECTED_CONCURRENT, Value::Varint(1..)) => troubles.rejected = true,
                _ => {}
            }
        }
        dump
    }

    /// Whether it only says that another recording profiled the process.
    pub(crate) fn is_rejection(&self) -> bool {
        self.troubles.rejected && self.time == 0
    }

    /// Returns the counts of its call stacks.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = StackCounts> + 'a {
        // Profilers that do not say what was asked for counted allocations at the maximum wrongly, as upstream's trace processor has it.
        let counts_at_max = self.asked_interval > 0;
        let fields = Reader::new(self.encoded).map_while(Result::ok);
        fields.filter_map(move |field| match (field.number, field.value) {
            (ProcessHeapSamples::SAMPLES, Value::Bytes(sample)) => {
                let mut sample = stack_counts(sample);
                if sample.is_at_max && !counts_at_max {
                    sample.counts.allocations = 0;
                }
                Some(sample)
            }
            _ => None,
        })
    }
}

/// Reads an encoded `HeapSample`.
fn stack_counts(sample: &[u8]) -> StackCounts {
    let (mut stack, mut counts, mut max, mut max_count) = (0, Counts::default(), None, 0);
    for field in Reader::new(sample).map_while(Result::ok) {
        let Value::Varint(value) = field.value else {
            continue;
        };
        match field.number {
            HeapSample::CALLSTACK_ID => stack = value,
            HeapSample::SELF_ALLOCATED => counts.allocated = value,
            HeapSample::SELF_FREED => counts.freed = value,
            HeapSample::ALLOC_COUNT => counts.allocations = value,
            HeapSample::FREE_COUNT => counts.frees = value,
            HeapSample::SELF_MAX => max = Some(value),
            HeapSample::SELF_MAX_COUNT => max_count = value,
            _ => {}
        }
    }
    if let Some(allocated) = max {
        counts = Counts {
            allocated,
            allocations: max_count,
            ..Counts::default()
        };
    }
    StackCounts {
        stack,
        counts,
        is_at_max: max.is_some(),
    }
}
