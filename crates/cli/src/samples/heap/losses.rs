//! Allocations that are missing from a heap profile, and why.
//!
//! Profiles and the [account](crate::account) of a recording add them up from dumps.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{Dump, Missing};

/// The most processes of which each set of them remembers.
const MAX_PROCESSES: usize = 1 << 12;

/// The most heaps of a process that are remembered.
const MAX_HEAPS: usize = 1 << 8;

/// The losses of heap profiles: processes, by the reason.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct HeapLosses {
    /// The shared memory was full, and samples were lost.
    pub(crate) overran: BTreeSet<u32>,
    /// The program waited too long for room in the shared memory, and gave up.
    pub(crate) timed_out: BTreeSet<u32>,
    /// The program found the shared memory full and the profiler gone, or out of its sight, and gave up.
    pub(crate) out_of_reach: BTreeSet<u32>,
    /// The bounds of stacks were not known, and such samples were lost.
    pub(crate) lost_stacks: BTreeSet<u32>,
    /// The shared memory was damaged.
    pub(crate) corrupted: BTreeSet<u32>,
    /// The profiler stopped, to keep within a limit of the config.
    pub(crate) guardrail: BTreeSet<u32>,
    /// Somebody else profiled the process.
    pub(crate) rejected: BTreeSet<u32>,
    /// By process, and by the sequence that tells of it.
    counted: BTreeMap<(u32, u64), Counted>,
    /// Samples of a stack that the trace does not have.
    pub(crate) unreadable: u64,
    /// `ProfilePacket`s that are not in the trace.
    pub(crate) missing_packets: u64,
}

/// The losses of the profiles of processes that had the same id, one after the other.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counted {
    /// The processes that have ended.
    before: Amounts,
    /// The last one.
    last: Amounts,
    /// The heaps whose final dumps there were, and the times of these.
    ended: BTreeMap<Vec<u8>, u64>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    /// Samples whose stack ends too early.
    truncated: u64,
    /// The losses that our own profiler reports.
    missing: Missing,
}

impl Amounts {
    fn plus(self, other: Amounts) -> Amounts {
        Amounts {
            truncated: self.truncated.saturating_add(other.truncated),
            missing: self.missing.plus(other.missing),
        }
    }
}

impl Counted {
    fn add(&mut self, dump: &Dump<'_>) {
        // The final dump of each heap says that it is one. So another dump of such a heap is of the next process, and so is one that is not final.
        let is_of_next = match self.ended.get(dump.heap) {
            Some(time) => *time != dump.time,
            None => !self.ended.is_empty() && !dump.is_disconnected,
        };
        if is_of_next {
            self.before = self.sum();
            self.last = Amounts::default();
            self.ended.clear();
        }
        self.last.truncated = self.last.truncated.max(dump.unwinding_errors);
        self.last.missing = self.last.missing.max(dump.missing);
        if dump.is_disconnected && self.ended.len() < MAX_HEAPS {
            self.ended.insert(dump.heap.to_vec(), dump.time);
        }
    }

    fn sum(&self) -> Amounts {
        self.before.plus(self.last)
    }
}

impl HeapLosses {
    /// Adds what a dump on this sequence says of its process. Dumps repeat what was so before.
    pub(crate) fn add(&mut self, sequence: u64, dump: &Dump<'_>) {
        let troubles = dump.troubles;
        for (is_so, processes) in [
            (troubles.overran, &mut self.overran),
            (troubles.timed_out, &mut self.timed_out),
            (troubles.out_of_reach, &mut self.out_of_reach),
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
        let key = (dump.pid, sequence);
        let is_known = self.counted.contains_key(&key);
        if is_known || (says_something && self.counted.len() < MAX_PROCESSES) {
            self.counted.entry(key).or_default().add(dump);
        }
    }

    /// Forgets processes that are not wanted.
    pub(super) fn keep(&mut self, mut wants: impl FnMut(u32) -> bool) {
        for processes in [
            &mut self.overran,
            &mut self.timed_out,
            &mut self.out_of_reach,
            &mut self.lost_stacks,
            &mut self.corrupted,
            &mut self.guardrail,
            &mut self.rejected,
        ] {
            processes.retain(|pid| wants(*pid));
        }
        self.counted.retain(|(pid, _), _| wants(*pid));
    }

    fn sum(&self) -> Amounts {
        let counted = self.counted.values();
        counted.fold(Amounts::default(), |all, counted| all.plus(counted.sum()))
    }

    /// Returns the number of samples whose stack ends too early.
    pub(crate) fn truncated(&self) -> u64 {
        self.sum().truncated
    }

    /// Returns what our own profiler says to be missing, of all processes.
    pub(crate) fn missing(&self) -> Missing {
        self.sum().missing
    }
}
