//! Findings from the reports of `android.heapprofd` about missing allocations.
//!
//! [`sources`](super::sources) calls it with what [`Evidence`](super::evidence::Evidence) has added up. The service's counters do not cover this,
//! because samples that a program's shared memory had no room for never reached the service.

use std::collections::BTreeSet;

use super::{Account, Severity, listed};
use crate::figures::{Bytes, Counted};
use crate::samples::HeapLosses;

/// Adds the findings.
pub(super) fn add_to(losses: &HeapLosses, account: &mut Account) {
    let missing = losses.missing();
    let larger = || {
        "more memory holds more: shmem_size_bytes; or sample less often: sampling_interval_bytes; or have programs wait: block_client (for `ferretto heap`: --shmem-size, -i, --block-client)"
            .to_owned()
    };
    // Without counts it is a trace of upstream's.
    let is_overrun = missing.samples > 0 || missing.frees == 0;
    let overran = processes(&losses.overran).filter(|_| is_overrun);
    if let Some(processes) = overran.or((missing.samples > 0).then(String::new)) {
        let what = match missing.samples {
            0 => format!("allocations{processes}"),
            samples => format!(
                "{} of allocations, {}{processes}",
                Counted(samples, "sample"),
                Bytes(missing.bytes)
            ),
        };
        let why = "the memory that programs share with the heap profiler was full";
        account.add(Severity::Loss, "heap_buffer_overran", what, why, Some(larger()));
    }
    if missing.frees > 0 {
        let what = format!("the release of {}", Counted(missing.frees, "allocation"));
        let why = "the memory that programs share with the heap profiler was full, so they count as live";
        account.add(Severity::Loss, "heap_frees_lost", what, why, Some(larger()));
    }
    if let Some(processes) = processes(&losses.timed_out) {
        let what = format!("the rest of the allocations{processes}");
        let why =
            "the memory that programs share with the heap profiler was full, and their profile ended there";
        account.add(
            Severity::Missing,
            "heap_client_timeout",
            what,
            why,
            Some(larger()),
        );
    }
    if let Some(processes) = processes(&losses.out_of_reach) {
        let what = format!("the rest of the allocations{processes}");
        let why = "the memory that programs share with the heap profiler was full, and the program did not find the profiler any more";
        let advice = "after chroot, or in another mount namespace, a program does not see the profiler's socket: name one in the abstract namespace, FERRETTO_HEAP_SOCK_NAME=@NAME, or have more memory: shmem_size_bytes".to_owned();
        account.add(
            Severity::Missing,
            "heap_client_out_of_reach",
            what,
            why,
            Some(advice),
        );
    }
    if missing.untracked > 0 {
        let what = format!("{} of allocations", Counted(missing.untracked, "sample"));
        let why = "too many sampled allocations were live";
        let advice = "sample less often: sampling_interval_bytes".to_owned();
        account.add(Severity::Loss, "heap_samples_untracked", what, why, Some(advice));
    }
    if missing.merged > 0 {
        let what = format!(
            "the stacks of {} of allocations",
            Counted(missing.merged, "sample")
        );
        let why = "there were too many different ones for the memory of the profiler";
        let advice = "raise max_heapprofd_memory_kb, or profile fewer programs".to_owned();
        account.add(Severity::Loss, "heap_stacks_merged", what, why, Some(advice));
    }
    if missing.not_unwound > 0 {
        let what = format!(
            "the stacks of {} of allocations",
            Counted(missing.not_unwound, "sample")
        );
        let why = "the recording had to end before they were found";
        account.add(Severity::Loss, "heap_stacks_not_unwound", what, why, None);
    }
    if let Some(processes) = processes(&losses.lost_stacks) {
        let what = format!("allocations{processes}");
        let why = "the bounds of a stack were not known, as on a stack that the program made itself";
        account.add(Severity::Loss, "heap_stack_bounds", what, why, None);
    }
    if let Some(processes) = processes(&losses.corrupted) {
        let what = format!("the rest of the allocations{processes}");
        let why = "the memory shared with the heap profiler was damaged";
        let advice = "the program may write where it should not: try it with a memory checker".to_owned();
        account.add(Severity::Loss, "heap_buffer_corrupted", what, why, Some(advice));
    }
    if let Some(processes) = processes(&losses.guardrail) {
        let what = format!("the rest of the allocations{processes}");
        let why = "the heap profiler needed more than max_heapprofd_memory_kb or max_heapprofd_cpu_secs allows, and stopped";
        account.add(Severity::Missing, "heap_guardrail", what, why, None);
    }
    if let Some(processes) = processes(&losses.rejected) {
        let what = format!("the allocations{processes}");
        let why = "another recording profiled the same process";
        let advice = "record again when the other recording has ended".to_owned();
        account.add(
            Severity::Missing,
            "heap_rejected_concurrent",
            what,
            why,
            Some(advice),
        );
    }
}

/// Names the processes, if there are any.
fn processes(pids: &BTreeSet<u32>) -> Option<String> {
    let pids: Vec<&u32> = pids.iter().collect();
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    Some(format!(" of {noun} {}", listed(&pids, ToString::to_string)?))
}

#[cfg(test)]
mod tests {
    use ferretto_proto::write::TracePacket;
    use ferretto_proto::write::profile_packet::ProcessHeapSamples;
    use ferretto_wire::Writer;

    use super::*;
    use crate::account::evidence::Evidence;

    fn evidence(dumps: &[&dyn Fn(&mut ProcessHeapSamples<'_>)]) -> Evidence {
        let mut evidence = Evidence::default();
        for fill in dumps {
            let mut writer = Writer::new();
            TracePacket::new(&mut writer).profile_packet(|packet| {
                packet.process_dumps(|dump| fill(dump));
            });
            evidence.observe(writer.as_slice());
        }
        evidence
    }

    #[test]
    fn each_reason_for_missing_allocations_is_told_once_with_its_processes() {
        let overran = |dump: &mut ProcessHeapSamples<'_>| {
            dump.pid(7).buffer_overran(true).losses(|losses| {
                losses.samples(3).bytes(12_000).frees(2);
            });
        };
        let rejected = |dump: &mut ProcessHeapSamples<'_>| {
            dump.pid(9).rejected_concurrent(true);
        };
        let stopped = |dump: &mut ProcessHeapSamples<'_>| {
            dump.pid(8).hit_guardrail(true).buffer_corrupted(true);
        };
        let out_of_reach = |dump: &mut ProcessHeapSamples<'_>| {
            dump.pid(10).losses(|losses| {
                losses.out_of_reach(true);
            });
        };
        // Dumps repeat what was so before.
        let evidence = evidence(&[&overran, &overran, &rejected, &stopped, &out_of_reach]);
        let mut account = Account::default();
        add_to(&evidence.samples.heaps, &mut account);
        let findings = account.findings.iter();
        let found: Vec<(Severity, &str, &str)> = findings
            .map(|finding| (finding.severity, finding.cause, &*finding.what))
            .collect();
        let expected = [
            (
                Severity::Loss,
                "heap_buffer_overran",
                "3 samples of allocations, 11.7 KiB of process 7",
            ),
            (Severity::Loss, "heap_frees_lost", "the release of 2 allocations"),
            (
                Severity::Loss,
                "heap_buffer_corrupted",
                "the rest of the allocations of process 8",
            ),
            (
                Severity::Missing,
                "heap_client_out_of_reach",
                "the rest of the allocations of process 10",
            ),
            (
                Severity::Missing,
                "heap_guardrail",
                "the rest of the allocations of process 8",
            ),
            (
                Severity::Missing,
                "heap_rejected_concurrent",
                "the allocations of process 9",
            ),
        ];
        assert_eq!(found, expected);
    }
}
