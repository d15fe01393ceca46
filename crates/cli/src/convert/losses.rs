//! Sentences about the losses of a profile.
//!
//! [`convert`](super) says it about each trace of samples, `ferretto profile` and `ferretto heap` about their recordings, and pprof profiles
//! have it as comments.

use crate::figures::Counted;
use crate::samples::Profile;

/// Says what is missing from a profile, in one sentence for each reason.
pub(crate) fn losses(profile: &Profile) -> Vec<String> {
    let losses = &profile.losses;
    let reasons = [
        (
            losses.kernel,
            "sample",
            "lost, of whatever process: the kernel's ring buffer was full",
        ),
        (
            losses.overload,
            "sample",
            "without a call stack: the profiler did not keep up",
        ),
        (
            losses.skipped,
            "sample",
            "without a call stack: the profiler could not read the process",
        ),
        (
            losses.unreadable,
            "sample",
            "unreadable: packets that they refer to were lost",
        ),
        (
            losses.of_other_events,
            "sample",
            "left out: the trace has too many events or counters",
        ),
        (losses.stackless, "sample", "without a call stack"),
        (losses.truncated, "call stack", "incomplete"),
        (
            losses.throttled,
            "time",
            "the kernel took no samples of a CPU until its next tick: there were more than it allows",
        ),
        (
            losses.gone_cpus.len() as u64,
            "CPU",
            "offline for a part of the recording, and not sampled then",
        ),
        (
            losses.unavailable_cpus.len() as u64,
            "CPU",
            "not sampled: its events could not be opened",
        ),
        (
            losses.counters,
            "reading",
            "of counters missing: the kernel could not read them",
        ),
        (
            losses.guardrail,
            "profiler",
            "stopped early, to keep within a limit of the config",
        ),
    ];
    let heaps = &losses.heaps;
    let missing = heaps.missing();
    let of_heaps = [
        (
            heaps.overran.len() as u64,
            "process",
            "with allocations that are missing: the shared memory was full",
        ),
        (
            missing.samples,
            "sample",
            "of allocations lost: the shared memory was full",
        ),
        (
            missing.frees,
            "allocation",
            "counted as live though it may be freed: the shared memory was full",
        ),
        (
            missing.untracked,
            "sample",
            "of allocations left out: too many sampled ones were live",
        ),
        (
            missing.merged,
            "sample",
            "of allocations without a call stack of its own: there were too many",
        ),
        (
            missing.not_unwound,
            "sample",
            "of allocations without a call stack: the recording had to end",
        ),
        (
            heaps.timed_out.len() as u64,
            "process",
            "profiled in part: the shared memory was full, and the profile ended there",
        ),
        (
            heaps.out_of_reach.len() as u64,
            "process",
            "profiled in part: the shared memory was full, and the program did not find the profiler any more, as after chroot",
        ),
        (
            heaps.lost_stacks.len() as u64,
            "process",
            "with allocations that are missing: the bounds of a stack were not known",
        ),
        (
            heaps.corrupted.len() as u64,
            "process",
            "profiled in part: the shared memory was damaged",
        ),
        (
            heaps.guardrail.len() as u64,
            "process",
            "profiled in part, to keep within a limit of the config",
        ),
        (
            heaps.rejected.len() as u64,
            "process",
            "not profiled: another recording did so",
        ),
        (heaps.truncated(), "call stack", "of allocations incomplete"),
        (
            heaps.unreadable,
            "call stack",
            "of allocations unreadable: packets that these refer to were lost",
        ),
        (
            heaps.missing_packets,
            "packet",
            "of the heap profiler missing, so that sums may be too low",
        ),
    ];
    let reasons = reasons.into_iter().chain(of_heaps);
    let there = reasons.filter(|(count, ..)| *count > 0);
    there
        .map(|(count, noun, reason)| format!("{} {reason}", Counted(count, noun)))
        .collect()
}
