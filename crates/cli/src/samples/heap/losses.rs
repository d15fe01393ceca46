//! Allocations that are missing from a heap profile, and why.
//!
//! Profiles and the [account](crate::account) of a recording add them up from dumps.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{Dump, Missing};

/// The most processes of which each set of them remembers.
const MAX_PROCESSES: usize = 1 << 12;

/// What is missing from heap profiles: processes, by the reason.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct HeapLosses {
    /// The shared memory was full, and samples were lost.
    pub(crate) overran: BTreeSet<u32>,
    /// The program waited too long for room in the shared memory, and gave up.
    pub(crate) timed_out: BTreeSet<u32>,
    /// The bounds of stacks were not known, and such samples were lost.
    pub(crate) lost_stacks: BTreeSet<u32>,
    /// The shared memory was damaged.
    pub(crate) corrupted: BTreeSet<u32>,
    /// The profiler stopped, to keep within a limit of the config.
    pub(crate) guardrail: BTreeSet<u32>,
    /// Somebody else profiled the process.
    pub(crate) rejected: BTreeSet<u32>,
    /// Samples whose stack ends too early, and what our own profiler says to be missing, by process.
    counted: BTreeMap<u32, (u64, Missing)>,
    /// Samples of a stack that the trace does not have.
    pub(crate) unreadable: u64,
    /// `ProfilePacket`s that are not in the trace.
    pub(crate) missing_packets: u64,
}

impl HeapLosses {
    /// Adds what a dump says of its process. Dumps repeat what was so before.
    pub(crate) fn add(&mut self, dump: &Dump<'_>) {
        let troubles = dump.troubles;
        for (is_so, processes) in [
            (troubles.overran, &mut self.overran),
            (troubles.timed_out, &mut self.timed_out),
            (troubles.lost_stacks, &mut self.lost_stacks),
            (troubles.corrupted, &mut self.corrupted),
            (troubles.guardrail, &mut self.guardrail),
            (troubles.rejected, &mut self.rejected),
        ] {
            if is_so && processes.len() < MAX_PROCESSES {
                processes.insert(dump.pid);
            }
        }
        let says_something = dump.unwinding_errors > 0 || dump.missing != Missing::default();
        let is_known = self.counted.contains_key(&dump.pid);
        if says_something && (is_known || self.counted.len() < MAX_PROCESSES) {
            let (truncated, missing) = self.counted.entry(dump.pid).or_default();
            *truncated = dump.unwinding_errors.max(*truncated);
            *missing = dump.missing.max(*missing);
        }
    }

    /// Returns the number of samples whose stack ends too early.
    pub(crate) fn truncated(&self) -> u64 {
        let counts = self.counted.values();
        counts.fold(0, |all, (truncated, _)| all.saturating_add(*truncated))
    }

    /// Returns what our own profiler says to be missing, of all processes.
    pub(crate) fn missing(&self) -> Missing {
        let missing = self.counted.values();
        missing.fold(Missing::default(), |all, (_, missing)| all.plus(*missing))
    }
}
