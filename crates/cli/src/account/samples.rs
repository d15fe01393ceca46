//! What `linux.perf` says about samples that are missing.
//!
//! [`Evidence`](super::evidence::Evidence) fills it from `PerfSample`s. The service's counters do not cover this, because samples that the kernel's
//! ring buffers had no room for never reached the service.

use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::write::PerfSample;
use ferretto_wire::{Reader, Value};

/// The report from the packets of one trace.
#[derive(Debug, Default)]
pub(crate) struct SampleReport {
    /// Records that did not fit into the kernel's rings.
    pub(super) lost: u64,
    /// Samples whose stack the profiler had no time for.
    pub(super) without_time: u64,
    /// Samples of processes that could not be looked at any more.
    pub(super) unreadable: u64,
    /// Whether the profiler gave up, because it needed more memory than the config allows.
    pub(super) has_given_up: bool,
}

impl SampleReport {
    /// Takes in an encoded `PerfSample`.
    pub(super) fn take(&mut self, sample: &[u8]) {
        for field in Reader::new(sample).map_while(Result::ok) {
            match (field.number, field.value) {
                (PerfSample::KERNEL_RECORDS_LOST, Value::Varint(records)) => {
                    self.lost = self.lost.saturating_add(records);
                }
                (PerfSample::SAMPLE_SKIPPED_REASON, Value::Varint(reason)) => match reason {
                    _ if reason == SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE as u64 => {
                        self.without_time += 1
                    }
                    _ if reason == SampleSkipReason::PROFILER_SKIP_READ_STAGE as u64
                        || reason == SampleSkipReason::PROFILER_SKIP_UNWIND_STAGE as u64 =>
                    {
                        self.unreadable += 1;
                    }
                    // The config did not ask for the stacks of that process.
                    _ => {}
                },
                (PerfSample::PRODUCER_EVENT, _) => self.has_given_up = true,
                _ => {}
            }
        }
    }
}
