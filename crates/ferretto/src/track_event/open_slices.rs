//! Slices of which an event was lost: the state that the threads of the process share about them.
//!
//! **Lost beginnings of slices without a handle.** [`trace_event_begin!`](crate::trace_event_begin) and [`trace_event_end!`](crate::trace_event_end)
//! know nothing of each other, and may be on different threads. If the beginning was lost, the end must be left out, or readers would end another
//! slice. So the process remembers, for each instance, on which tracks a beginning was lost whose end is still to come, and which of the later slices
//! on these tracks were recorded. An end belongs to the slice that began last on its track.
//!
//! **Lost ends on tracks that threads share.** The process owes them, and the next thread that records on such a track writes them first. Lost ends
//! on a thread's own track wait for that thread, because no other thread records there.
//!
//! Called by [`super::sequence`] on its slow path. The fast path asks only whether there is anything to remember. While nothing was lost there is
//! not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::timestamp::Timestamp;
use crate::source::MAX_INSTANCES;

/// The number of tracks with a lost beginning that are remembered for an instance. On further tracks the end of a lost slice is written, and may end
/// another slice.
const MAX_LOST_TRACKS: usize = 4096;

/// The most ends that are owed to an instance.
const MAX_OWED: usize = 4096;

/// Whether the beginning of a slice was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Readers see the slice begin.
    Recorded,
    /// Readers do not see it begin, so they must not see it end.
    Lost,
}

/// The instance that a slice was to be recorded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceKey {
    pub(super) slot: usize,
    /// Grows with each instance of the process.
    pub(super) serial: u32,
}

/// The open slices of a track, from the outermost lost one inwards. The slices around it need not be known.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// A bit for each, set if it was recorded. The outermost has the lowest.
    recorded: u64,
    /// The number of these slices. A slice that is nested too deep for a bit counts as lost.
    depth: u32,
}

impl Open {
    const OUTERMOST: Self = Self {
        recorded: 0,
        depth: 1,
    };

    fn begin(&mut self, fate: Fate) {
        if fate == Fate::Recorded && self.depth < u64::BITS {
            self.recorded |= 1 << self.depth;
        }
        self.depth = self.depth.saturating_add(1);
    }

    fn end(&mut self) -> Fate {
        self.depth -= 1;
        if self.depth >= u64::BITS || self.recorded & 1 << self.depth == 0 {
            return Fate::Lost;
        }
        self.recorded &= !(1 << self.depth);
        Fate::Recorded
    }
}

/// The end of a slice that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwedEnd {
    /// The uuid of the track; `None` for the thread's.
    pub(super) track: Option<u64>,
    pub(super) timestamp: Timestamp,
}

/// Tracks by their ids: a sorted vector, because it takes the compiler far less time than a B-tree.
struct Tracks(Vec<(u64, Open)>);

impl Tracks {
    /// Where the track is, or else would be.
    fn place(&self, track: u64) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(&track))
    }

    fn get(&self, track: u64) -> Option<&Open> {
        let at = self.place(track).ok()?;
        Some(&self.0[at].1)
    }

    fn get_mut(&mut self, track: u64) -> Option<&mut Open> {
        let at = self.place(track).ok()?;
        Some(&mut self.0[at].1)
    }

    /// There is no such track yet.
    fn insert(&mut self, track: u64, open: Open) {
        let (Ok(at) | Err(at)) = self.place(track);
        self.0.insert(at, (track, open));
    }

    fn remove(&mut self, track: u64) {
        if let Ok(at) = self.place(track) {
            self.0.remove(at);
        }
    }
}

/// The state that is remembered for one instance.
struct Memory {
    serial: u32,
    /// Tracks where a beginning was lost.
    open: Tracks,
    /// In their order.
    owed: Vec<OwedEnd>,
}

impl Memory {
    const fn new(serial: u32) -> Self {
        Self {
            serial,
            open: Tracks(Vec::new()),
            owed: Vec::new(),
        }
    }
}

static MEMORIES: Mutex<[Memory; MAX_INSTANCES]> = Mutex::new([const { Memory::new(0) }; MAX_INSTANCES]);

/// For each slot, whether there is such a track. Read without the lock: a thread that ends a slice knows that it has begun, and so sees the stores of
/// its beginning. The same holds for a thread that records on a track after others.
static HAS_OPEN: [AtomicBool; MAX_INSTANCES] = [const { AtomicBool::new(false) }; MAX_INSTANCES];

/// For each slot, whether ends are owed.
static HAS_OWED: [AtomicBool; MAX_INSTANCES] = [const { AtomicBool::new(false) }; MAX_INSTANCES];

/// Whether this module has to be told of the beginnings and ends of slices without a handle.
#[inline(always)]
pub(super) fn any_lost(slot: usize) -> bool {
    HAS_OPEN[slot].load(Ordering::Relaxed)
}

/// Whether ends on shared tracks are owed, which have to be written before anything else there.
#[inline(always)]
pub(super) fn any_owed(slot: usize) -> bool {
    HAS_OWED[slot].load(Ordering::Relaxed)
}

/// Notes that the end of a slice on a shared track was lost. False if there are too many.
pub(super) fn owe(instance: InstanceKey, end: OwedEnd) -> bool {
    let owe = |memory: &mut Memory| {
        let has_room = memory.owed.len() < MAX_OWED;
        if has_room {
            memory.owed.push(end);
        }
        has_room
    };
    // Ends that are owed to an instance that is over do not matter.
    with(instance, owe).unwrap_or(true)
}

/// Takes the owed ends, for the caller to write.
pub(super) fn take_owed(instance: InstanceKey) -> Vec<OwedEnd> {
    let take = |memory: &mut Memory| std::mem::take(&mut memory.owed);
    with(instance, take).unwrap_or_default()
}

/// Returns ends that could not be written. Other threads may have added others in the meantime.
pub(super) fn owe_again(instance: InstanceKey, unwritten: &[OwedEnd]) {
    with(instance, |memory| {
        drop(memory.owed.splice(0..0, unwritten.iter().copied()))
    });
}

/// Whether a beginning may be recorded. If not, leave it out as if it had been lost, because its end could not be told from others.
pub(super) fn may_begin(instance: InstanceKey, track: u64) -> bool {
    if !any_lost(instance.slot) {
        return true;
    }
    let of_track = |memory: &mut Memory| {
        let open = memory.open.get(track);
        open.is_none_or(|open| open.depth < u64::BITS)
    };
    with(instance, of_track).unwrap_or(true)
}

/// A slice has begun. Returns whether this module still has to be told of slices on the track.
pub(super) fn begin(instance: InstanceKey, track: u64, fate: Fate) -> bool {
    if fate == Fate::Recorded && !any_lost(instance.slot) {
        return false;
    }
    let of_track = |memory: &mut Memory| {
        if let Some(open) = memory.open.get_mut(track) {
            open.begin(fate);
            return true;
        }
        let is_news = fate == Fate::Lost && memory.open.0.len() < MAX_LOST_TRACKS;
        if is_news {
            memory.open.insert(track, Open::OUTERMOST);
        }
        is_news
    };
    with(instance, of_track).unwrap_or(false)
}

/// A slice ends. Returns the fate of its beginning, and whether this module still has to be told of slices on the track.
pub(super) fn end(instance: InstanceKey, track: u64) -> (Fate, bool) {
    if !any_lost(instance.slot) {
        return (Fate::Recorded, false);
    }
    let of_track = |memory: &mut Memory| {
        let Some(open) = memory.open.get_mut(track) else {
            return (Fate::Recorded, false);
        };
        let fate = open.end();
        let is_over = open.depth == 0;
        if is_over {
            memory.open.remove(track);
        }
        (fate, !is_over)
    };
    with(instance, of_track).unwrap_or((Fate::Recorded, false))
}

/// Nothing will end on this track any more.
pub(super) fn forget_track(instance: InstanceKey, track: u64) {
    if any_lost(instance.slot) {
        with(instance, |memory| memory.open.remove(track));
    }
}

/// Calls `look` with the state of an instance. `None` if another instance has taken its place.
fn with<R>(instance: InstanceKey, look: impl FnOnce(&mut Memory) -> R) -> Option<R> {
    let mut all = lock();
    let memory = &mut all[instance.slot];
    let newer = instance.serial.wrapping_sub(memory.serial).cast_signed();
    if newer < 0 {
        return None;
    }
    if newer > 0 {
        *memory = Memory::new(instance.serial);
    }
    let result = look(memory);
    HAS_OPEN[instance.slot].store(!memory.open.0.is_empty(), Ordering::Relaxed);
    HAS_OWED[instance.slot].store(!memory.owed.is_empty(), Ordering::Relaxed);
    Some(result)
}

fn lock() -> MutexGuard<'static, [Memory; MAX_INSTANCES]> {
    // Nothing panics while it holds the lock.
    MEMORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, while a thread forks.
pub(super) struct Held {
    _memories: MutexGuard<'static, [Memory; MAX_INSTANCES]>,
}

impl Held {
    /// To be called after all other locks of the SDK's are taken.
    pub(super) fn hold() -> Self {
        Self { _memories: lock() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot that no recording of a test uses.
    const SLOT: usize = MAX_INSTANCES - 1;

    /// One after the other, for they share the slot.
    #[test]
    fn ends_belong_to_the_latest_open_slice_since_the_first_loss() {
        let instance = InstanceKey {
            slot: SLOT,
            serial: 10,
        };
        let other = InstanceKey {
            slot: SLOT,
            serial: 9,
        };
        const TRACK: u64 = 1;
        assert!(!begin(instance, TRACK, Fate::Recorded) && !any_lost(SLOT));
        assert_eq!(end(instance, TRACK), (Fate::Recorded, false));

        assert!(begin(instance, TRACK, Fate::Lost));
        assert!(begin(instance, TRACK, Fate::Recorded));
        assert!(begin(instance, TRACK, Fate::Lost));
        assert_eq!(end(other, TRACK), (Fate::Recorded, false), "an older instance");
        assert_eq!(end(instance, 2), (Fate::Recorded, false), "another track");
        assert_eq!(end(instance, TRACK), (Fate::Lost, true));
        assert_eq!(end(instance, TRACK), (Fate::Recorded, true));
        assert_eq!(end(instance, TRACK), (Fate::Lost, false));
        assert_eq!(end(instance, TRACK), (Fate::Recorded, false));
        assert!(!any_lost(SLOT));

        // Deeper than there are bits for.
        assert!(begin(instance, TRACK, Fate::Lost));
        for depth in 1..100 {
            let may_begin = may_begin(instance, TRACK);
            assert_eq!(may_begin, depth < u64::BITS, "{depth}");
            begin(
                instance,
                TRACK,
                if may_begin { Fate::Recorded } else { Fate::Lost },
            );
        }
        for depth in (1..100).rev() {
            let fate = if depth < u64::BITS {
                Fate::Recorded
            } else {
                Fate::Lost
            };
            assert_eq!(end(instance, TRACK), (fate, true), "{depth}");
        }
        assert_eq!(end(instance, TRACK), (Fate::Lost, false));

        // So many tracks and no more, until a newer instance takes over.
        for track in 0..2 * MAX_LOST_TRACKS as u64 {
            assert_eq!(begin(instance, track, Fate::Lost), track < MAX_LOST_TRACKS as u64);
        }
        forget_track(instance, 7);
        assert_eq!(end(instance, 7), (Fate::Recorded, false));
        let newer = InstanceKey {
            slot: SLOT,
            serial: 11,
        };
        assert_eq!(end(newer, 8), (Fate::Recorded, false));
        assert!(!any_lost(SLOT) && !any_owed(SLOT));
    }
}
