//! Samples that are missing, and why.
//!
//! `linux.perf` tells of them in `PerfSample`s, some of which are no samples: a [`Remark`]. [`Losses`] adds remarks up, for profiles and for the
//! [account](crate::account) of a recording. The losses of heap profiles are part of it ([`HeapLosses`]).

use std::collections::BTreeSet;

use ferretto_proto::messages::Enumeration;
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::{CpuEvent, DataSourceStopReason};
use ferretto_proto::write::PerfSample;
use ferretto_proto::write::perf_sample::ProducerEvent;
use ferretto_wire::{Reader, Value};

use super::heap::HeapLosses;

/// The most CPUs of which each set of them remembers.
const MAX_CPUS: usize = 1 << 12;

/// A `PerfSample`'s statement about a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remark {
    /// A sample has no call stack, for this reason.
    Skipped(SampleSkipReason),
    /// It is no sample: so many records did not fit into the kernel's ring.
    Lost(u64),
    /// It is no sample: the profiler stopped, to keep within its limits.
    Stopped,
    /// It is no sample: this happened to a CPU.
    Cpu(u32, CpuEvent),
    /// It is no sample, but this version does not know what it says.
    Unknown,
}

impl Remark {
    /// Reads an encoded `PerfSample`. `None` if nothing is missing.
    pub(crate) fn of(sample: &[u8]) -> Option<Remark> {
        let (mut remark, mut cpu) = (None, 0);
        for field in Reader::new(sample).map_while(Result::ok) {
            match (field.number, field.value) {
                (PerfSample::CPU, Value::Varint(number)) => cpu = number as u32,
                (PerfSample::KERNEL_RECORDS_LOST, Value::Varint(records @ 1..)) => {
                    remark = Some(Remark::Lost(records));
                }
                (PerfSample::SAMPLE_SKIPPED_REASON, Value::Varint(reason)) => {
                    remark = Some(Remark::Skipped(known(reason).unwrap_or_default()));
                }
                (PerfSample::PRODUCER_EVENT, Value::Bytes(event)) => remark = Some(Remark::event(event)),
                _ => {}
            }
        }
        match remark? {
            Remark::Cpu(_, event) => Some(Remark::Cpu(cpu, event)),
            remark => Some(remark),
        }
    }

    /// Reads an encoded `ProducerEvent`, which does not have the CPU.
    fn event(event: &[u8]) -> Remark {
        for field in Reader::new(event).map_while(Result::ok) {
            match (field.number, field.value) {
                (ProducerEvent::SOURCE_STOP_REASON, Value::Varint(reason))
                    if known(reason) == Some(DataSourceStopReason::PROFILER_STOP_GUARDRAIL) =>
                {
                    return Remark::Stopped;
                }
                (ProducerEvent::CPU_EVENT, Value::Varint(event)) => {
                    return known(event).map_or(Remark::Unknown, |event| Remark::Cpu(0, event));
                }
                _ => {}
            }
        }
        Remark::Unknown
    }
}

/// The enum's value with this number.
fn known<E: Enumeration>(number: u64) -> Option<E> {
    i32::try_from(number).ok().and_then(E::from_i32)
}

/// Samples that are missing, and why.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Losses {
    /// The kernel dropped them, because its ring buffer was full.
    pub(crate) kernel: u64,
    /// The profiler dropped the call stack, because unwinding did not keep up.
    pub(crate) overload: u64,
    /// The profiler could not read the process or did not look at it.
    pub(crate) skipped: u64,
    /// The sampled process was not asked for. Nothing is missing.
    pub(crate) out_of_scope: u64,
    /// Packets of the profiler were lost, so the sample refers to something unknown.
    pub(crate) unreadable: u64,
    /// The trace has too many events, and the sample is of one that has no place.
    pub(crate) of_other_events: u64,
    /// The call stack is not complete.
    pub(crate) truncated: u64,
    /// The sample has no call stack, for no reason given.
    pub(crate) stackless: u64,
    /// The profiler stopped early, to keep within its limits.
    pub(crate) guardrail: u64,
    /// The kernel took no samples of a CPU until its next tick, because there were too many.
    pub(crate) throttled: u64,
    /// Polled counters could not be read.
    pub(crate) counters: u64,
    /// CPUs that went offline.
    pub(crate) gone_cpus: BTreeSet<u32>,
    /// CPUs whose events could not be opened.
    pub(crate) unavailable_cpus: BTreeSet<u32>,
    /// The losses of heap profiles.
    pub(crate) heaps: HeapLosses,
}

impl Losses {
    /// Adds a remark.
    pub(crate) fn add(&mut self, remark: Remark) {
        match remark {
            Remark::Skipped(SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE) => self.out_of_scope += 1,
            Remark::Skipped(SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE) => self.overload += 1,
            Remark::Skipped(
                SampleSkipReason::PROFILER_SKIP_READ_STAGE
                | SampleSkipReason::PROFILER_SKIP_UNWIND_STAGE
                | SampleSkipReason::PROFILER_SKIP_UNKNOWN,
            ) => self.skipped += 1,
            Remark::Lost(records) => self.kernel = self.kernel.saturating_add(records),
            Remark::Stopped => self.guardrail += 1,
            Remark::Cpu(_, CpuEvent::CPU_THROTTLED) => self.throttled += 1,
            Remark::Cpu(_, CpuEvent::CPU_UNREADABLE) => self.counters += 1,
            Remark::Cpu(cpu, CpuEvent::CPU_GONE) => remember(&mut self.gone_cpus, cpu),
            Remark::Cpu(cpu, CpuEvent::CPU_UNAVAILABLE) => remember(&mut self.unavailable_cpus, cpu),
            Remark::Cpu(_, CpuEvent::CPU_SAMPLED | CpuEvent::CPU_UNTHROTTLED | CpuEvent::CPU_UNKNOWN)
            | Remark::Unknown => {}
        }
    }
}

fn remember(cpus: &mut BTreeSet<u32>, cpu: u32) {
    if cpus.len() < MAX_CPUS {
        cpus.insert(cpu);
    }
}
