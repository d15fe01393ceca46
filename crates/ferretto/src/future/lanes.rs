//! Lanes: tracks for slices that are bound to no thread.
//!
//! Slices of one track must nest. A slice that begins in the poll of another's future, its *parent*, stands on that one's lane, above it, unless
//! something else stands there already; then it has a lane of its own, below the parent's. A slice without a parent has a lane below `Async`.
//! [`trace_async!`](crate::trace_async) has a static [`Lanes`] for each place in the code, which numbers those lanes. Lanes are used again, so a
//! trace has as many tracks as there were slices at a time, and not as many as there were slices in all. This matters because each track costs a
//! descriptor in the trace and a row in each viewer.
//!
//! A slice on a track that was chosen for it has a lane too, which is drawn on that track.
//!
//! # A parent that ends first
//! Futures and slices can be moved out of their parents. When a slice ends while others stand above it, the others end with it on that lane, and go
//! on at once on another one, under their names but without arguments. So the tree shows at each moment which slices were under way, and a slice
//! above another is always within it. The old lane knows where they went, and is used again when they have ended.
//!
//! # Threads
//! The thread that has a lane's [turn](super::turn) knows the slices on it. No thread waits for a turn: a child whose parent's lane is in use goes to
//! a lane of its own, and an end is left to the thread that uses the lane. A lane is freed after the end of its slice was written, and the next slice
//! begins after the lane was taken; the processor is kept from reading the time any earlier. So slices on a lane do not overlap, whatever threads
//! they are on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferretto_wire::Writer;

use super::current;
use super::turn::{Held, MARKS, Marked, Turn};
use crate::clock;
use crate::split_mix::scatter;
use crate::track::{KeptTrack, NamedTrack, Parent, SiblingMerge, Track, TrackLike};
use crate::track_event::private::OpenSlice;
use ferretto_client::atomic_word::AtomicWord;

#[cfg(test)]
mod tests;

/// The parent of all lanes in a process.
static ASYNC: NamedTrack<'static> =
    NamedTrack::new("Async").description("What is not bound to a thread: each task has a line to itself");

/// Numbers that are used again; `64 * WORDS` of them. Higher numbers are not used again, because nobody looks at that many slices at a time.
#[derive(Debug)]
pub(super) struct Numbers<const WORDS: usize> {
    /// A bit for each number that is taken.
    taken: [AtomicU64; WORDS],
    /// The count of higher numbers given out so far.
    beyond: AtomicU32,
}

impl<const WORDS: usize> Numbers<WORDS> {
    /// Numbers below this are used again.
    const REUSED: u32 = 64 * WORDS as u32;

    pub(super) const fn new() -> Self {
        Self {
            taken: [const { AtomicU64::new(0) }; WORDS],
            beyond: AtomicU32::new(0),
        }
    }

    pub(super) fn take(&self) -> u32 {
        for (word, first) in self.taken.iter().zip((0..).step_by(64)) {
            if let Some(lowest) = take_bit(word) {
                return first + lowest;
            }
        }
        let beyond = self.beyond.fetch_add(1, Ordering::Relaxed);
        Self::REUSED.saturating_add(beyond)
    }

    pub(super) fn give_back(&self, number: u32) {
        if let Some(word) = self.taken.get(number as usize / 64) {
            give_back_bit(word, number % 64);
        }
    }
}

/// Takes the lowest bit that is not taken, if there is one.
fn take_bit(word: &impl AtomicWord) -> Option<u32> {
    let mut taken = word.load(Ordering::Relaxed);
    while taken != u64::MAX {
        let lowest = taken.trailing_ones();
        // Acquires the writes of the bit's previous holder.
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

/// Words of the numbers of lanes without a parent, for each kind: 512 are used again.
const LANES: usize = 8;

/// Words of the numbers of lanes below each lane: 64 are used again.
const LANES_BELOW: usize = 1;

/// The lanes for one kind of slice.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lanes {
    name: &'static str,
    /// The track of the lanes below `Async`, without the id.
    track: NamedTrack<'static>,
    /// The number that tells these lanes from others of that name; 0 until the first lane is made.
    kind: AtomicU32,
    numbers: Numbers<LANES>,
}

impl Lanes {
    /// Lanes of this name.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            track: NamedTrack::new(name).child_of(&ASYNC),
            kind: AtomicU32::new(0),
            numbers: Numbers::new(),
        }
    }

    /// Takes a place for a slice that begins now; returns the lane to draw it on.
    pub fn take_for<'a>(&'static self, place: &'a mut Option<Taken>) -> &'a Lane {
        let taken = match current::parent() {
            Some(parent) => self.below_parent(parent),
            None => self.own(None),
        };
        clock::finish_earlier_instructions();
        &place.insert(taken).lane.turn.0
    }

    fn below_parent(&'static self, parent: ParentSlice) -> Taken {
        let at = match parent.children {
            Children::Above => match parent.at.above(self) {
                Ok(taken) => return taken,
                Err(at) => at,
            },
            Children::Beside => parent.at,
        };
        self.own(Some(at.lane))
    }

    /// The first place on a lane of its own.
    fn own(&'static self, parent: Option<Arc<Lane>>) -> Taken {
        loop {
            if let Some(taken) = self.first_place(self.identity(parent.clone())) {
                return taken;
            }
        }
    }

    fn first_place(&'static self, identity: Identity) -> Option<Taken> {
        let lane = Arc::new(Lane(Turn::new(identity, Stack::default())));
        // No other thread knows the lane yet, so it has no holder.
        Turn::try_take(Use(lane)).ok().map(|lane| Taken {
            lane,
            position: 0,
            kind: self,
        })
    }

    fn identity(&'static self, parent: Option<Arc<Lane>>) -> Identity {
        let number = match &parent {
            None => self.numbers.take(),
            Some(parent) => parent.0.shared.below.take(),
        };
        Identity {
            chosen: None,
            kind: self,
            track: self.track_of(parent.as_deref(), number).track(),
            parent,
            number,
            below: Numbers::new(),
        }
    }

    /// Returns the track of the lane with this number, among the lanes below `parent`, or among those without one.
    fn track_of(&self, parent: Option<&Lane>, number: u32) -> NamedTrack<'static> {
        let id = u64::from(self.kind()) << 32 | u64::from(number);
        let (track, reused) = match parent {
            None => (self.track.id(id), Numbers::<LANES>::REUSED),
            Some(parent) => {
                // A uuid is the exclusive or of its ancestors, so small numbers would collide.
                let track = self.track.id(scatter(id ^ scatter(parent.0.shared.seed())));
                (track.parent(parent.track()), Numbers::<LANES_BELOW>::REUSED)
            }
        };
        match number < reused {
            // Viewers merge tracks of one name, and could not tell which slice the lanes below belong to.
            true => track.sibling_merge(SiblingMerge::Never),
            // Each of these lanes has one slice, so one line for all of them is better than one line each.
            false => track,
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
        // Another thread may have been first. Its number is as good, and this one is lost.
        match self
            .kind
            .compare_exchange(0, kind, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => kind,
            Err(first) => first,
        }
    }
}

/// A track with slices, each above the one before.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lane(Turn<Identity, Stack>);

/// The properties of a lane that do not change.
#[derive(Debug)]
struct Identity {
    /// Its track, if that was chosen for the slice at the bottom.
    chosen: Option<KeptTrack>,
    /// The kind of the slice at the bottom.
    kind: &'static Lanes,
    /// The lane that this one is below, which stays taken as long as this one.
    parent: Option<Arc<Lane>>,
    /// The lane's number among those of its kind, or of its parent.
    number: u32,
    track: Track,
    /// The numbers of the lanes below this one.
    below: Numbers<LANES_BELOW>,
}

impl Identity {
    /// A number that tells the lanes below this one from those below others.
    fn seed(&self) -> u64 {
        match self.chosen {
            None => self.track.uuid(),
            // Several slices at a time may be on a chosen track.
            Some(_) => self.track.uuid() ^ scatter(u64::from(self.number) + 1),
        }
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        match &self.parent {
            None => self.kind.numbers.give_back(self.number),
            Some(parent) => parent.0.shared.below.give_back(self.number),
        }
    }
}

impl TrackLike for Lane {
    fn track(&self) -> Track {
        self.0.shared.track
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        self.0.shared.write_descriptor(descriptor);
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        self.0.shared.known_parent()
    }
}

impl TrackLike for Identity {
    fn track(&self) -> Track {
        self.track
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        match &self.chosen {
            Some(chosen) => chosen.write_descriptor(descriptor),
            None => self
                .kind
                .track_of(self.parent.as_deref(), self.number)
                .write_descriptor(descriptor),
        }
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        match (&self.chosen, &self.parent) {
            (Some(chosen), _) => chosen.known_parent(),
            (None, None) => Some(Parent::named(&ASYNC)),
            (None, Some(parent)) => Some(Parent::like(&**parent)),
        }
    }
}

/// A reference to a lane that keeps it taken.
struct Use<P>(P);

impl std::ops::Deref for Use<Arc<Lane>> {
    type Target = Turn<Identity, Stack>;

    fn deref(&self) -> &Self::Target {
        &self.0.0
    }
}

/// A place on a lane where a slice is about to begin; the lane's turn is held until it has.
#[doc(hidden)]
pub struct Taken {
    lane: Held<Identity, Stack, Use<Arc<Lane>>>,
    position: u32,
    kind: &'static Lanes,
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("lane", &self.lane.turn.shared)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// The lanes of slices on chosen tracks. Only their numbers are theirs.
static CHOSEN: Lanes = Lanes::new("");

impl Taken {
    /// A place for a slice that has begun on `track`, on a lane that is drawn there.
    pub(super) fn on(track: &dyn TrackLike) -> Self {
        loop {
            let chosen = KeptTrack::of(track);
            let taken = CHOSEN.first_place(Identity {
                track: chosen.track(),
                chosen: Some(chosen),
                kind: &CHOSEN,
                parent: None,
                number: CHOSEN.numbers.take(),
                below: Numbers::new(),
            });
            if let Some(taken) = taken {
                return taken;
            }
        }
    }

    /// Returns the place of the slice that began there.
    pub(super) fn filled(mut self, slice: OpenSlice) -> At {
        let kind = self.kind;
        self.lane.open.push(Open { slice, kind });
        At {
            lane: self.lane.let_go().0,
            position: self.position,
        }
    }
}

/// The place of a slice. It needs no generation, because each place belongs to one slice until that has ended, even if the slice has moved.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) lane: Arc<Lane>,
    position: u32,
}

/// A slice that others are children of.
#[derive(Clone, Debug)]
pub(super) struct ParentSlice {
    pub(super) at: At,
    pub(super) children: Children,
}

impl From<At> for ParentSlice {
    fn from(at: At) -> Self {
        let children = Children::Above;
        Self { at, children }
    }
}

impl From<ParentSlice> for At {
    fn from(parent: ParentSlice) -> Self {
        parent.at
    }
}

impl ParentSlice {
    /// The same slice, for children that are not polled in it.
    pub(super) fn beside(&self) -> Self {
        Self {
            at: self.at.clone(),
            children: Children::Beside,
        }
    }
}

/// The lanes of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Children {
    /// On the parent's lane, if there is room, because such children usually end first.
    Above,
    /// On lanes of their own, because such children run at the same time, and may last longer.
    Beside,
}

impl At {
    /// Takes the place right above. If it is taken, returns the slice itself.
    fn above(self, kind: &'static Lanes) -> Result<Taken, At> {
        let At { lane, position } = self;
        let held = match Turn::try_take(Use(lane)) {
            Ok(held) => held,
            Err(Use(lane)) => return Err(At { lane, position }),
        };
        if let Some(there) = held.moved(position) {
            let there = there.clone();
            drop(held);
            return there.above(kind);
        }
        let next = position + 1;
        if held.open.len() != next || next >= MARKS || held.moved(next).is_some() {
            let Use(lane) = held.let_go();
            return Err(At { lane, position });
        }
        Ok(Taken {
            lane: held,
            position: next,
            kind,
        })
    }

    #[inline(never)]
    pub(super) fn end_plainly(self) {
        self.end(drop);
    }

    /// Ends the slice with `finish`, or without it if another thread is using the lane at this moment.
    pub(super) fn end(self, finish: impl FnOnce(OpenSlice)) {
        let position = self.position;
        if let Some(mut held) = Turn::take_or_mark(Use(self.lane), position) {
            held.end(position, finish);
        }
    }
}

/// The slices on a lane.
#[derive(Default)]
struct Stack {
    open: OpenSlices,
    /// Slices that stood in these places and have moved to other lanes. The places stay reserved until they have ended.
    moved: Vec<(u32, At)>,
}

struct Open {
    slice: OpenSlice,
    kind: &'static Lanes,
}

/// Slices that stand above one another. Few lanes have more than one, and need no memory for more.
#[derive(Default)]
struct OpenSlices {
    bottom: Option<Open>,
    above: Vec<Open>,
}

impl OpenSlices {
    fn len(&self) -> u32 {
        u32::from(self.bottom.is_some()) + self.above.len() as u32
    }

    fn push(&mut self, slice: Open) {
        match self.bottom {
            None => self.bottom = Some(slice),
            Some(_) => self.above.push(slice),
        }
    }

    fn pop(&mut self) -> Option<Open> {
        self.above.pop().or_else(|| self.bottom.take())
    }
}

impl Stack {
    fn moved(&self, position: u32) -> Option<&At> {
        self.moved
            .iter()
            .find(|(from, _)| *from == position)
            .map(|(_, at)| at)
    }

    fn end(&mut self, position: u32, finish: impl FnOnce(OpenSlice)) {
        if let Some(moved) = self.moved.iter().position(|(from, _)| *from == position) {
            let (_, at) = self.moved.swap_remove(moved);
            return at.end(finish);
        }
        if self.open.len() > position + 1 {
            self.end_below(position, finish);
        } else if let Some(open) = self.open.pop() {
            finish(open.slice);
        }
    }

    /// Ends a slice that others stand above.
    #[cold]
    fn end_below(&mut self, position: u32, finish: impl FnOnce(OpenSlice)) {
        let mut suspended = Vec::new();
        while self.open.len() > position + 1
            && let Some(Open { slice, kind }) = self.open.pop()
        {
            suspended.push((slice.suspend(), kind));
        }
        if let Some(open) = self.open.pop() {
            finish(open.slice);
        }
        let Some(&(_, kind)) = suspended.last() else {
            return;
        };
        let mut place = kind.own(None);
        clock::finish_earlier_instructions();
        let mut next = position;
        while let Some((slice, kind)) = suspended.pop() {
            next += 1;
            let slice = slice.resume(kind.name, &*place.lane.turn.0);
            place.lane.open.push(Open { slice, kind });
            let at = At {
                lane: Arc::clone(&place.lane.turn.0),
                position: next - position - 1,
            };
            self.moved.push((next, at));
        }
    }
}

impl Marked for Stack {
    fn take_care_of(&mut self, position: u32) {
        self.end(position, drop);
    }
}
