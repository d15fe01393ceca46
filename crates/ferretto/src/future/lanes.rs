//! Tracks for slices that overlap: each has one to itself while it lasts.
//!
//! [`trace_async!`](crate::trace_async) has a static [`Lanes`] for each place that it is used at, and takes a [`Lane`] of it for each slice
//! that is recorded. Lanes are used again, so that a trace has as many tracks as there were slices at a time, and not as many
//! as there were slices: for each track a descriptor is written, and each is a row of a table to whoever reads the trace.
//!
//! No lock, no allocation. A lane is freed after the end of its slice was written, and the next is begun after it was taken; the
//! processor is kept from reading the time of that any earlier. So slices on a lane do not overlap, whatever threads they are on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::atomic_word::AtomicWord;
use crate::clock;
use crate::track::{NamedTrack, Parent, Track, TrackLike};

#[cfg(test)]
mod tests;

/// Lanes that are used again. Those beyond are not: so many slices at a time are nothing to look at anyhow.
const MAX_REUSED: usize = 64 * WORDS;
const WORDS: usize = 8;

/// What all lanes in a process are below.
static ASYNC: NamedTrack<'static> =
    NamedTrack::new("Async").description("What is not bound to a thread: each slice has a line to itself");

/// The lanes for one kind of slice.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lanes {
    /// What all of the lanes are but for the id. Viewers draw tracks of one name as one.
    track: NamedTrack<'static>,
    /// Tells these lanes from others of that name; 0 until there is a first.
    kind: AtomicU32,
    /// A bit for each lane that is taken.
    taken: [AtomicU64; WORDS],
    /// How many lanes there were beyond those.
    beyond: AtomicU32,
}

impl Lanes {
    /// Lanes of this name.
    pub const fn new(name: &'static str) -> Self {
        Self {
            track: NamedTrack::new(name).child_of(&ASYNC),
            kind: AtomicU32::new(0),
            taken: [const { AtomicU64::new(0) }; WORDS],
            beyond: AtomicU32::new(0),
        }
    }

    /// Takes a lane for `holder`; what to draw on.
    pub fn take_for(&'static self, holder: &mut Option<Lane>) -> NamedTrack<'static> {
        holder.insert(self.take()).named_track()
    }

    fn take(&'static self) -> Lane {
        for (word, first) in self.taken.iter().zip((0..).step_by(64)) {
            if let Some(lowest) = take_bit(word) {
                clock::finish_earlier_instructions();
                return Lane {
                    lanes: self,
                    number: first + lowest,
                };
            }
        }
        let beyond = self.beyond.fetch_add(1, Ordering::Relaxed);
        Lane {
            lanes: self,
            number: (MAX_REUSED as u32).saturating_add(beyond),
        }
    }

    fn kind(&self) -> u32 {
        match self.kind.load(Ordering::Relaxed) {
            0 => self.number_kind(),
            kind => kind,
        }
    }

    #[cold]
    fn number_kind(&self) -> u32 {
        static KINDS: AtomicU32 = AtomicU32::new(0);
        let kind = KINDS.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread may have been first; its number is as good, and the one here is lost.
        match self
            .kind
            .compare_exchange(0, kind, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => kind,
            Err(first) => first,
        }
    }
}

/// Takes the lowest bit that nobody has, if there is one.
fn take_bit(word: &impl AtomicWord) -> Option<u32> {
    let mut taken = word.load(Ordering::Relaxed);
    while taken != u64::MAX {
        let lowest = taken.trailing_ones();
        // Acquires what whoever had it before did.
        taken = word.fetch_or(1 << lowest, Ordering::Acquire);
        if taken & 1 << lowest == 0 {
            return Some(lowest);
        }
    }
    None
}

fn give_back_bit(word: &impl AtomicWord, bit: u32) {
    word.fetch_and(!(1 << bit), Ordering::Release);
}

/// A track that nobody else has, until this is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lane {
    lanes: &'static Lanes,
    number: u32,
}

impl Lane {
    fn named_track(&self) -> NamedTrack<'static> {
        self.lanes
            .track
            .id(u64::from(self.lanes.kind()) << 32 | u64::from(self.number))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(word) = self.lanes.taken.get(self.number as usize / 64) {
            give_back_bit(word, self.number % 64);
        }
    }
}

impl TrackLike for Lane {
    fn track(&self) -> Track {
        self.named_track().track()
    }

    fn write_descriptor(&self, descriptor: &mut ferretto_proto::write::TrackDescriptor<'_>) {
        self.named_track().write_descriptor(descriptor);
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        Some(Parent::named(&ASYNC))
    }
}
