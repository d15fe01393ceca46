//! The exact set of sampled allocations that are alive: only their releases are told.
//!
//! A release first looks into the *filter*, one byte for each *grain* of address space (modulo its size): how many members are there. Nearly always that
//! is none. Neighbours in memory are neighbours in the filter, so its bytes are as warm as the program's own data. A grain is a 128th of the sampling
//! interval: then one release in a hundred finds a member that is another allocation, and the filter takes as little of the processor's caches as it can.
//! Below an interval of 16 KiB it stays at 128 bytes, and more releases find one: at 4 KiB, one in thirty. Above 2 MiB it stays at 16 KiB, and fewer do.
//!
//! Heaps of the program's own may count their allocations, 1, 2, 3, …, rather than tell addresses. An id that is too small for an address of a 64-bit
//! program has a byte that it does not share with thousands of neighbours.
//!
//! The set itself is tables of lines of 64 bytes: seven members each, and a word with the heap of each. In a table a member is in one of two lines, by its
//! hash; the emptier one is chosen. When both are full the next table is tried, which is larger: each page of a table costs the program a page fault, and
//! most programs need the pages of the smallest. When there is no next table the set refuses the member, and the allocation is not sampled. Members are
//! inserted and removed without locks. The owner of an allocation inserts and removes it, so no two threads do so with the same member at a time.
//!
//! `report` calls this. The memory is the session's.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::heaps::ALLOCATOR;

/// Bytes of the filter.
pub(crate) const FILTER_BYTES: usize = 4 << 20;

/// The bytes of address space that share a byte of the filter: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain {
    shift: u8,
}

impl Grain {
    /// 128 bytes: the filter covers 512 MiB.
    pub(crate) const LEAST: Grain = Grain { shift: 7 };
    /// 16 KiB: the filter covers 64 GiB.
    pub(crate) const MOST: Grain = Grain { shift: 14 };
    /// Shifts are less than this.
    pub(crate) const SHIFTS: usize = 64;

    /// For samples that are so many bytes apart on average.
    pub(crate) const fn of(interval: u64) -> Grain {
        let shift = (interval / 128).checked_ilog2();
        match shift {
            Some(shift) if shift > Grain::MOST.shift as u32 => Grain::MOST,
            Some(shift) if shift > Grain::LEAST.shift as u32 => Grain { shift: shift as u8 },
            _ => Grain::LEAST,
        }
    }

    /// By which number of bits an address is shifted.
    pub(crate) const fn shift(self) -> usize {
        self.shift as usize
    }

    /// Takes what [`shift`](Grain::shift) returned.
    pub(crate) const fn of_shift(shift: usize) -> Grain {
        Grain {
            shift: (shift % Grain::SHIFTS) as u8,
        }
    }

    /// The place of an allocation in the filter.
    #[inline(always)]
    pub(crate) const fn place(self, id: u64) -> usize {
        (id >> (self.shift & 63)) as usize & (FILTER_BYTES - 1)
    }

    /// The place of an allocation of this heap, which may be one of the program's own.
    #[inline(always)]
    pub(crate) const fn place_in(self, heap: u8, id: u64) -> usize {
        if heap == ALLOCATOR || id > u32::MAX as u64 {
            self.place(id)
        } else {
            id as usize & (FILTER_BYTES - 1)
        }
    }
}

/// Lines of each table, for up to 1,792, 28,672 and 917,504 members. Powers of two.
const TABLES: [usize; 3] = [1 << 8, 1 << 12, 1 << 17];

/// Lines of all tables. Their memory is only there once a member has been.
pub(crate) const LINES: usize = TABLES[0] + TABLES[1] + TABLES[2];

const MEMBERS: usize = 7;

/// A line of the table.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    /// Byte `n` is the heap of member `n`, 0 if there is none. Bit `56 + n` is set while the member is being written.
    heaps: AtomicU64,
    members: [AtomicU64; MEMBERS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// The set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live<'a> {
    filter: &'a [AtomicU8],
    grain: Grain,
    lines: &'a [Line],
    /// The last table that has had a member. A thread that has an allocation knows of all that came before it.
    last: &'a AtomicU8,
}

impl<'a> Live<'a> {
    /// The set in this memory, which is zeroes at first. `None` if the memory has another size. The grain stays the same until it is zeroes again.
    pub(crate) fn new(
        filter: &'a [AtomicU8],
        grain: Grain,
        lines: &'a [Line],
        last: &'a AtomicU8,
    ) -> Option<Live<'a>> {
        (filter.len() == FILTER_BYTES && lines.len() == LINES).then_some(Live {
            filter,
            grain,
            lines,
            last,
        })
    }

    /// Whether the allocation is a member. `heap` is from 1 to 255.
    pub(crate) fn contains(self, heap: u8, id: u64) -> bool {
        let mut lines = self.used(heap, id);
        lines.any(|line| line.find(heap, id).is_some())
    }

    /// Makes the allocation a member. `false` if there is no place for it.
    #[must_use]
    pub(crate) fn insert(self, heap: u8, id: u64) -> bool {
        let mut tables = self.tables(heap, id).zip(0_u8..);
        let inserted = tables.any(|([first, second], table)| {
            if self.last.load(Relaxed) < table {
                self.last.fetch_max(table, Relaxed);
            }
            let (emptier, fuller) = if first.len() <= second.len() {
                (first, second)
            } else {
                (second, first)
            };
            emptier.insert(heap, id) || fuller.insert(heap, id)
        });
        if inserted && let Some(count) = self.filter.get(self.grain.place_in(heap, id)) {
            // A byte that is full stays so: it says that there may be members.
            let _ = count.fetch_update(Relaxed, Relaxed, |count| count.checked_add(1));
        }
        inserted
    }

    /// Makes the allocation no member. `false` if it was none.
    pub(crate) fn remove(self, heap: u8, id: u64) -> bool {
        let mut lines = self.used(heap, id);
        let removed = lines.any(|line| line.remove(heap, id));
        if removed && let Some(count) = self.filter.get(self.grain.place_in(heap, id)) {
            let less = |count: u8| {
                if count == u8::MAX {
                    None
                } else {
                    count.checked_sub(1)
                }
            };
            let _ = count.fetch_update(Relaxed, Relaxed, less);
        }
        removed
    }

    /// The lines of the allocation in the tables that have had members.
    fn used(self, heap: u8, id: u64) -> impl Iterator<Item = &'a Line> {
        let tables = usize::from(self.last.load(Relaxed)) + 1;
        self.tables(heap, id).take(tables).flatten()
    }

    /// The two lines of the allocation in each table.
    fn tables(self, heap: u8, id: u64) -> impl Iterator<Item = [&'a Line; 2]> {
        let hash = (id ^ u64::from(heap).rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut rest = self.lines;
        TABLES.iter().map_while(move |lines| {
            let (table, others) = rest.split_at_checked(*lines)?;
            rest = others;
            // The length is a power of two.
            let line = |bits: u64| table.get(bits as usize & (lines - 1));
            Some([line(hash >> 47)?, line(hash >> 30)?])
        })
    }
}

impl Line {
    fn len(&self) -> u32 {
        let heaps = self.heaps.load(Relaxed);
        (0..MEMBERS).map(|place| u32::from(byte(heaps, place) != 0)).sum()
    }

    fn find(&self, heap: u8, id: u64) -> Option<usize> {
        // Acquire: a member whose heap is there has been written.
        let heaps = self.heaps.load(Acquire);
        self.members
            .iter()
            .enumerate()
            .find(|(place, member)| byte(heaps, *place) == heap && member.load(Relaxed) == id)
            .map(|(place, _)| place)
    }

    fn insert(&self, heap: u8, id: u64) -> bool {
        let mut heaps = self.heaps.load(Relaxed);
        for (place, member) in self.members.iter().enumerate() {
            let busy = 1 << (56 + place);
            while byte(heaps, place) == 0 && heaps & busy == 0 {
                // Acquire: the member's old value is not read or written after this.
                if let Err(now) = self
                    .heaps
                    .compare_exchange_weak(heaps, heaps | busy, AcqRel, Relaxed)
                {
                    heaps = now;
                    continue;
                }
                member.store(id, Relaxed);
                // The heap appears and the mark goes in one step. Neither carries into other bits: the byte was 0, the bit is 1.
                let step = (u64::from(heap) << (8 * place)).wrapping_sub(busy);
                self.heaps.fetch_add(step, Release);
                return true;
            }
        }
        false
    }

    fn remove(&self, heap: u8, id: u64) -> bool {
        let Some(place) = self.find(heap, id) else {
            return false;
        };
        self.heaps
            .fetch_update(Release, Relaxed, |heaps| {
                (byte(heaps, place) == heap).then_some(heaps & !(0xff << (8 * place)))
            })
            .is_ok()
    }
}

const fn byte(word: u64, place: usize) -> u8 {
    (word >> (8 * place)) as u8
}

#[cfg(test)]
mod tests;
