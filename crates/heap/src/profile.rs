//! The state of one process: its heaps with their books, and how the profiling went.
//!
//! [`Collector`](crate::collector::Collector) enters each record here. Memory is bounded: there are [`MOST_HEAPS`] heaps, and as many live
//! allocations as the caller has room for. The rest is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use ferretto_heap_client::MOST_HEAPS;
use ferretto_profile::interning::CallstackId;

use crate::books::Books;
use crate::histogram::LogHistogram;
use crate::records::Allocation;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Profile {
    heaps: BTreeMap<u32, Heap>,
    /// Live allocations of all heaps.
    live: usize,
    pub(crate) stats: Stats,
    pub(crate) losses: Losses,
}

/// One heap.
#[derive(Debug, Default)]
pub struct Heap {
    /// Empty if it was not told.
    pub name: String,
    /// Bytes between two samples now; 0 if it was not told.
    pub interval: u64,
    /// The same in the beginning.
    pub first_interval: u64,
    /// Its allocations.
    pub books: Books,
    /// The end of the time that the last dump covered.
    pub(crate) told_until: Option<u64>,
}

/// How unwinding went, as upstream counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) samples: u64,
    pub(crate) unwinding_errors: u64,
    pub(crate) map_reparses: u64,
    pub(crate) unwinding_time: LogHistogram,
    pub(crate) total_unwinding_us: u64,
}

impl Stats {
    /// A sample was unwound in this time.
    pub(crate) fn add(&mut self, took: Duration) {
        let took = took.as_micros() as u64;
        self.samples += 1;
        self.total_unwinding_us += took;
        self.unwinding_time.add(took);
    }
}

/// The gaps in the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Samples that found no space in the ring.
    pub samples: u64,
    /// Bytes that these stood for.
    pub bytes: u64,
    /// Sampled allocations of which the release could not be told.
    pub frees: u64,
    /// Samples that were left out because too many sampled allocations were live.
    pub untracked: u64,
    /// Samples that count for the one call stack of those without room.
    pub merged: u64,
    /// Samples that were not unwound.
    pub not_unwound: u64,
}

impl Profile {
    /// The heaps, by their number.
    pub(crate) fn heaps(&mut self) -> &mut BTreeMap<u32, Heap> {
        &mut self.heaps
    }

    /// Call stacks that are in the books of any heap.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = CallstackId> {
        self.heaps.values().flat_map(|heap| heap.books.stacks())
    }

    /// How many allocations are live.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// A heap by its number, which is new if there is room for one more.
    fn heap(&mut self, number: u32) -> Option<&mut Heap> {
        if self.heaps.len() >= MOST_HEAPS && !self.heaps.contains_key(&number) {
            return None;
        }
        Some(self.heaps.entry(number).or_default())
    }

    /// Enters that a heap is sampled, with this interval if it is not 0, and under this name if it has one.
    pub(crate) fn announce(&mut self, number: u32, interval: u64, name: &[u8]) {
        let Some(heap) = self.heap(number) else { return };
        if !name.is_empty() {
            heap.name = String::from_utf8_lossy(name).into_owned();
        }
        if interval != 0 {
            if heap.interval == 0 {
                heap.first_interval = interval;
            }
            heap.interval = interval;
        }
    }

    /// Enters an allocation with its call stack, if not more than `most_live` are live with it.
    pub(crate) fn allocate(&mut self, allocation: &Allocation<'_>, stack: CallstackId, most_live: usize) {
        let &Allocation {
            address,
            sample_bytes,
            timestamp,
            ..
        } = allocation;
        let (live, most) = (self.live, most_live);
        let Some(heap) = self.heap(allocation.heap) else {
            self.losses.untracked += 1;
            return;
        };
        let is_replaced = heap.books.is_live(address);
        if live >= most && !is_replaced {
            self.losses.untracked += 1;
            return;
        }
        heap.books.allocate(address, sample_bytes, stack, timestamp);
        self.live += usize::from(!is_replaced);
    }

    /// Enters a release.
    pub(crate) fn free(&mut self, heap: u32, address: u64) {
        if let Some(heap) = self.heaps.get_mut(&heap) {
            let before = heap.books.live();
            heap.books.free(address);
            self.live -= before - heap.books.live();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(heap: u32, address: u64) -> Allocation<'static> {
        Allocation {
            timestamp: 1,
            address,
            bytes: 1,
            sample_bytes: 10,
            heap,
            tid: 1,
            registers: &[],
            stack: &[],
            is_stack_cut: false,
        }
    }

    #[test]
    fn allocations_and_heaps_without_room_are_counted_and_not_entered() {
        let mut profile = Profile::default();
        for address in 0..5 {
            profile.allocate(&allocation(0, address), CallstackId(1), 3);
        }
        assert_eq!((profile.live(), profile.losses.untracked), (3, 2));
        // In place of one that is live.
        profile.allocate(&allocation(0, 1), CallstackId(1), 3);
        assert_eq!((profile.live(), profile.losses.untracked), (3, 2));
        profile.free(0, 1);
        profile.free(0, 1);
        profile.free(9, 1);
        profile.allocate(&allocation(0, 7), CallstackId(1), 3);
        assert_eq!((profile.live(), profile.losses.untracked), (3, 2));
        for heap in 0..1000 {
            profile.announce(heap, 4096, b"a heap");
            profile.allocate(&allocation(heap, 100), CallstackId(1), 10_000);
        }
        assert_eq!(profile.heaps().len(), MOST_HEAPS);
        assert_eq!(profile.losses.untracked, 2 + 1000 - MOST_HEAPS as u64);
    }

    #[test]
    fn a_heap_keeps_its_first_interval() {
        let mut profile = Profile::default();
        profile.announce(1, 4096, b"malloc");
        profile.announce(1, 8192, b"");
        let heap = &profile.heaps()[&1];
        assert_eq!((heap.first_interval, heap.interval), (4096, 8192));
        assert_eq!(heap.name, "malloc");
    }
}
