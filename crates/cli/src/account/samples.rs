//! Findings from the reports of `linux.perf` about missing samples.
//!
//! [`sources`](super::sources) calls it with what [`Evidence`](super::evidence::Evidence) has added up. The service's counters do not cover this,
//! because samples that the kernel's ring buffers had no room for never reached the service.

use std::collections::BTreeSet;

use super::{Account, Severity, listed};
use crate::figures::Counted;
use crate::samples::Losses;

/// How to sample less often, in the words of `ferretto profile` and of a config.
const LESS_OFTEN: &str = "sample less often: -F, or timebase { frequency } in a config";

/// Adds the findings.
pub(super) fn add_to(losses: &Losses, account: &mut Account) {
    if losses.kernel > 0 {
        let what = format!("{} of linux.perf", Counted(losses.kernel, "record"));
        let why = "the kernel's ring buffers were full before they were read";
        let advice = format!("{LESS_OFTEN}, where ring_buffer_pages makes them larger");
        account.add(Severity::Loss, "perf_ring_overrun", what, why, Some(advice));
    }
    if losses.throttled > 0 {
        let what = format!("samples of linux.perf, {}", Counted(losses.throttled, "time"));
        let why =
            "there were more than the kernel allows, so it stopped sampling that CPU until the next tick";
        let advice = format!("{LESS_OFTEN}; or raise /proc/sys/kernel/perf_event_max_sample_rate");
        account.add(Severity::Loss, "perf_throttled", what, why, Some(advice));
    }
    if losses.overload > 0 {
        let what = format!("the stacks of {}", Counted(losses.overload, "sample"));
        let why = "the profiler had no time for them";
        let advice = format!(
            "{LESS_OFTEN}; or sample fewer processes: -p, or callstack_sampling {{ scope }} in a config"
        );
        account.add(Severity::Loss, "perf_samples_skipped", what, why, Some(advice));
    }
    if losses.skipped > 0 {
        let what = format!("the stacks of {}", Counted(losses.skipped, "sample"));
        let why = "their processes could not be looked at, as when they have ended";
        account.add(Severity::Missing, "perf_processes_gone", what, why, None);
    }
    if let Some(cpus) = listed_cpus(&losses.gone_cpus) {
        let what = format!("what linux.perf would have recorded on CPU {cpus} after it went offline");
        let why = "the CPU went offline, or the machine slept, and the kernel closed the CPU's events";
        account.add(Severity::Missing, "perf_cpu_gone", what, why, None);
    }
    if let Some(cpus) = listed_cpus(&losses.unavailable_cpus) {
        let what = format!("what linux.perf would have recorded on CPU {cpus}");
        let why = "its events could not be opened; traced_perf says in its log why";
        account.add(Severity::Missing, "perf_cpu_unavailable", what, why, None);
    }
    if losses.counters > 0 {
        let what = format!("{} of counters", Counted(losses.counters, "reading"));
        let why = "the kernel could not read them, as when others use the processor's counters";
        account.add(Severity::Missing, "perf_counters_unreadable", what, why, None);
    }
    if losses.guardrail > 0 {
        let what = "the rest of the samples";
        let why = "the profiler needed more memory than max_daemon_memory_kb allows, and stopped";
        account.add(Severity::Missing, "perf_guardrail", what, why, None);
    }
}

fn listed_cpus(cpus: &BTreeSet<u32>) -> Option<String> {
    let cpus: Vec<&u32> = cpus.iter().collect();
    listed(&cpus, ToString::to_string)
}
