//! Heap profiles: what `android.heapprofd` counted for each call stack, by process and heap.
//!
//! [`Reader`](super::Reader) passes the `ProfilePacket`s of a trace on. A dump counts from the beginning of a process's profile, so the last dump of a
//! stack has everything. A stack that the profiler had forgotten, and then saw again, has a new id and counts from zero: the counts of all ids of a
//! stack are added up, as by upstream's trace processor.
//!
//! Samples are kept until the packet that ends their dump, because the stacks that they refer to may come after them. Old profilers write strings,
//! mappings, frames and stacks into the `ProfilePacket` itself, where they hold until the end of the dump.

mod dump;
mod losses;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ferretto_heap_client::MALLOC;
use ferretto_proto::write::ProfilePacket;

pub(crate) use dump::{Counts, Dump, dumps};
pub(crate) use losses::HeapLosses;

use super::model::{Profile, StackId};
use super::sequence::Interned;
use crate::packet::varint;

/// The heap of Android's runtime. Upstream's trace processor ignores the frees in its dumps.
const ART: &str = "com.android.art";
/// The name that upstream's trace processor gives to heaps without one.
const UNKNOWN: &str = "unknown";

/// The place of a heap in [`Profile::heaps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HeapId(u32);

impl Profile {
    /// Returns a heap.
    pub(crate) fn heap(&self, heap: HeapId) -> Option<&Heap> {
        self.heaps.get(heap.0 as usize)
    }

    /// Forgets the heaps of processes that are not wanted, and their losses. Returns the new places of the others.
    pub(super) fn keep_heaps(&mut self, mut wants: impl FnMut(u32) -> bool) -> HashMap<HeapId, HeapId> {
        let mut places = HashMap::new();
        for (before, heap) in (0..).zip(std::mem::take(&mut self.heaps)) {
            if wants(heap.pid) {
                places.insert(HeapId(before), HeapId(self.heaps.len() as u32));
                self.heaps.push(heap);
            }
        }
        self.losses.heaps.keep(wants);
        places
    }
}

/// One heap of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heap {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// Bytes between two samples on average, as last told.
    pub(crate) interval: u64,
    /// How often it was dumped.
    pub(crate) dumps: u64,
    /// Samples in all.
    pub(crate) samples: u64,
    /// Whether its counts are those of the time at which it was largest.
    pub(crate) is_at_max: bool,
    /// The time of the last dump, to know parts of one dump from another.
    last_dump: Option<u64>,
}

impl Heap {
    /// A heap of which nothing is known yet.
    pub(crate) fn new(dump: &Dump<'_>) -> Heap {
        Heap {
            pid: dump.pid,
            name: name_of(dump),
            ..Heap::default()
        }
    }

    /// Takes in a dump, or a part of one.
    pub(crate) fn take(&mut self, dump: &Dump<'_>) {
        self.interval = dump.interval;
        self.samples = self.samples.max(dump.samples);
        self.dumps += u64::from(self.last_dump != Some(dump.time));
        self.last_dump = Some(dump.time);
    }
}

/// Returns the name of a dump's heap.
pub(crate) fn name_of(dump: &Dump<'_>) -> String {
    match dump.heap {
        b"" => UNKNOWN.to_owned(),
        name => String::from_utf8_lossy(name).into_owned(),
    }
}

/// All that is counted by: a stack under one of its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source {
    heap: HeapId,
    /// Which of the process's profiles it is: one ends when the process ends, or runs another program.
    life: u32,
    sequence: u32,
    id: u64,
    stack: StackId,
}

/// A sample whose stack is not looked up yet.
#[derive(Debug)]
struct Pending {
    heap: HeapId,
    life: u32,
    id: u64,
    counts: Counts,
}

/// The state of a sequence of `ProfilePacket`s.
#[derive(Debug, Default)]
struct Sequence {
    /// The entries in the packets of this dump.
    own: Interned,
    pending: Vec<Pending>,
    /// The index of the next packet.
    next: u64,
    lives: HashMap<HeapId, Life>,
}

/// How often a heap's profile has ended so far.
#[derive(Debug, Default, Clone, Copy)]
struct Life {
    number: u32,
    /// The time of the dump that ended it.
    ended: Option<u64>,
}

/// Reads the `ProfilePacket`s of a trace.
#[derive(Debug, Default)]
pub(super) struct Heaps {
    places: HashMap<(u32, String), HeapId>,
    sequences: HashMap<u32, Sequence>,
    counts: HashMap<Source, Counts>,
}

impl Heaps {
    /// Takes in an encoded `ProfilePacket`, and looks up the stacks of a dump that it ends.
    pub(super) fn packet(
        &mut self,
        profile: &mut Profile,
        sequence: u32,
        interned: &mut Interned,
        packet: &[u8],
    ) {
        let state = self.sequences.entry(sequence).or_default();
        let index = varint(packet, ProfilePacket::INDEX).unwrap_or(0);
        profile.losses.heaps.missing_packets += index.saturating_sub(state.next);
        state.next = index.saturating_add(1);
        state.own.take_profile_packet(profile, packet);
        for dump in dumps(packet) {
            profile.losses.heaps.add(sequence.into(), &dump);
            if dump.is_rejection() {
                continue;
            }
            let heap = *self.places.entry((dump.pid, name_of(&dump))).or_insert_with(|| {
                profile.heaps.push(Heap::new(&dump));
                HeapId(profile.heaps.len() as u32 - 1)
            });
            let life = state.lives.entry(heap).or_default();
            if life.ended.is_some_and(|ended| ended != dump.time) {
                *life = Life {
                    number: life.number + 1,
                    ended: None,
                };
            }
            if dump.is_disconnected {
                life.ended = Some(dump.time);
            }
            let mut is_at_max = false;
            for sample in dump.stacks() {
                is_at_max |= sample.is_at_max;
                let mut counts = sample.counts;
                if dump.heap == ART.as_bytes() {
                    (counts.freed, counts.frees) = (0, 0);
                }
                state.pending.push(Pending {
                    heap,
                    life: life.number,
                    id: sample.stack,
                    counts,
                });
            }
            if let Some(heap) = profile.heaps.get_mut(heap.0 as usize) {
                heap.take(&dump);
                heap.is_at_max |= is_at_max;
            }
        }
        if varint(packet, ProfilePacket::CONTINUED).unwrap_or(0) == 0 {
            self.end(profile, sequence, interned);
        }
    }

    /// Looks up the stacks of a dump, because it has ended.
    pub(super) fn end(&mut self, profile: &mut Profile, sequence: u32, interned: &mut Interned) {
        self.look_up(profile, sequence, interned);
        if let Some(state) = self.sequences.get_mut(&sequence) {
            profile.losses.heaps.unreadable += state.pending.len() as u64;
            state.pending.clear();
            state.own = Interned::default();
        }
    }

    /// Looks up the stacks of a dump that has not ended, as far as they are known, because they are about to be forgotten.
    pub(super) fn look_up(&mut self, profile: &mut Profile, sequence: u32, interned: &mut Interned) {
        let Some(state) = self.sequences.get_mut(&sequence) else {
            return;
        };
        state.pending.retain(|sample| {
            let stack = state
                .own
                .stack(profile, sample.id)
                .or_else(|| interned.stack(profile, sample.id));
            let Some(stack) = stack else { return true };
            let source = Source {
                heap: sample.heap,
                life: sample.life,
                sequence,
                id: sample.id,
                stack,
            };
            self.counts.insert(source, sample.counts);
            false
        });
    }

    /// Returns the sequences with a dump that has not ended.
    pub(super) fn unfinished(&self) -> Vec<u32> {
        let sequences = self.sequences.iter();
        sequences
            .filter(|(_, state)| !state.pending.is_empty())
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns the counts of each heap and call stack.
    pub(super) fn totals(self) -> HashMap<(HeapId, StackId), Counts> {
        let mut totals: HashMap<(HeapId, StackId), Counts> = HashMap::new();
        for (source, counts) in self.counts {
            let total = totals.entry((source.heap, source.stack)).or_default();
            total.allocated = total.allocated.saturating_add(counts.allocated);
            total.freed = total.freed.saturating_add(counts.freed);
            total.allocations = total.allocations.saturating_add(counts.allocations);
            total.frees = total.frees.saturating_add(counts.frees);
        }
        totals
    }
}

/// One of the numbers of a heap profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// Bytes that were not freed.
    LiveSize,
    /// Bytes that were allocated.
    AllocatedSize,
    /// Allocations that were not freed.
    LiveCount,
    /// Allocations.
    AllocatedCount,
}

impl Measure {
    /// All, in the order in which upstream writes them.
    pub(super) const ALL: [Measure; 4] = [
        Measure::AllocatedCount,
        Measure::AllocatedSize,
        Measure::LiveCount,
        Measure::LiveSize,
    ];

    /// Returns the number of these counts.
    pub(super) fn of(self, counts: &Counts) -> u64 {
        match self {
            Measure::LiveSize => counts.allocated.saturating_sub(counts.freed),
            Measure::AllocatedSize => counts.allocated,
            Measure::LiveCount => counts.allocations.saturating_sub(counts.frees),
            Measure::AllocatedCount => counts.allocations,
        }
    }

    /// Returns its unit, as pprof names it.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Measure::LiveSize | Measure::AllocatedSize => "bytes",
            Measure::LiveCount | Measure::AllocatedCount => "count",
        }
    }

    /// Returns the name that upstream's `traceconv` gives it in profiles of such heaps; `None` if these heaps have no such number.
    pub(super) fn name(self, kind: Kind) -> Option<&'static str> {
        Some(match (kind, self) {
            (Kind::Malloc, Measure::AllocatedCount) => "Total malloc count",
            (Kind::Malloc, Measure::AllocatedSize) => "Total malloc size",
            (Kind::Malloc, Measure::LiveCount) => "Unreleased malloc count",
            (Kind::Malloc, Measure::LiveSize) => "Unreleased malloc size",
            (Kind::Java, Measure::AllocatedCount) => "Total allocation count",
            (Kind::Java, Measure::AllocatedSize) => "Total allocation size",
            (Kind::Java, Measure::LiveCount | Measure::LiveSize) => return None,
            (Kind::Any, Measure::AllocatedCount) => "Total count",
            (Kind::Any, Measure::AllocatedSize) => "Total size",
            (Kind::Any, Measure::LiveCount) => "Unreleased count",
            (Kind::Any, Measure::LiveSize) => "Unreleased size",
        })
    }
}

/// The common part of the heaps of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Malloc,
    Java,
    Any,
}

impl Kind {
    pub(super) fn of(heaps: &[Heap]) -> Kind {
        let all = |name: &str| heaps.iter().all(|heap| heap.name == name);
        match (all(MALLOC), all(ART)) {
            (true, _) => Kind::Malloc,
            (_, true) => Kind::Java,
            (false, false) => Kind::Any,
        }
    }
}
