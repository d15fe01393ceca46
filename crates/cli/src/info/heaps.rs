//! The heap profiles of a trace: processes, heaps, and how much they hold.
//!
//! The [summary](super::summary) gathers them from `ProfilePacket`s. It knows the last dump of each heap only, because the history of all call stacks
//! grows with the trace; so it says what was live, and leaves what was allocated and freed to `ferretto convert`.

use std::collections::BTreeMap;

use crate::samples::{Dump, Heap, dumps, name_of};

/// The most heaps that are stored.
const MAX_HEAPS: usize = 1 << 10;

/// The heap profiles of a trace.
#[derive(Debug, Default)]
pub(super) struct Heaps {
    /// By process and name.
    heaps: BTreeMap<(u32, String), LastDump>,
}

/// A heap with the sums of its last dump.
#[derive(Debug)]
pub(super) struct LastDump {
    pub(super) heap: Heap,
    /// Bytes that were not freed; of profiles at the maximum, the bytes at that time.
    pub(super) live: u64,
    /// Allocations that were not freed.
    pub(super) live_count: u64,
}

impl Heaps {
    /// Takes in an encoded `ProfilePacket`.
    pub(super) fn take(&mut self, packet: &[u8]) {
        for dump in dumps(packet).filter(|dump| !dump.is_rejection()) {
            let key = (dump.pid, name_of(&dump));
            let is_known = self.heaps.contains_key(&key);
            if is_known || self.heaps.len() < MAX_HEAPS {
                let heap = self.heaps.entry(key).or_insert_with(|| LastDump {
                    heap: Heap::new(&dump),
                    live: 0,
                    live_count: 0,
                });
                heap.take(&dump);
            }
        }
    }

    /// Returns them, those with most live memory first.
    pub(super) fn largest_first(&self) -> Vec<&LastDump> {
        let mut heaps: Vec<&LastDump> = self.heaps.values().collect();
        heaps.sort_by_key(|heap| std::cmp::Reverse(heap.live));
        heaps
    }
}

impl LastDump {
    fn take(&mut self, dump: &Dump<'_>) {
        let dumps_before = self.heap.dumps;
        self.heap.take(dump);
        if self.heap.dumps > dumps_before {
            (self.live, self.live_count) = (0, 0);
        }
        for stack in dump.stacks() {
            let counts = stack.counts;
            let live = counts.allocated.saturating_sub(counts.freed);
            self.live = self.live.saturating_add(live);
            let live_count = counts.allocations.saturating_sub(counts.frees);
            self.live_count = self.live_count.saturating_add(live_count);
            self.heap.is_at_max |= stack.is_at_max;
        }
    }
}
