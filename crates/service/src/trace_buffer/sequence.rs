//! The trace buffer's state of each sequence: the chunks it holds, in the order of their ids, and the position of reading. Used by the write and the
//! read path.
//!
//! Sequences live in slots that chunk headers refer to, so only a commit looks one up by its key. A sequence without chunks is *idle*. The most
//! recent [`MAX_IDLE`] idle ones are kept, because their state shows losses before their next chunk. Of those that are forgotten, [`WriterStats`] keeps
//! the losses that are known. Everything but the end of a producer is O(1) in the number of sequences.

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;

use super::record::Slot;
use super::stats::{WriterSlot, WriterStats};
use super::{LossReasons, ProducerIdentity, SequenceInfo};
use crate::ids::{ChunkId, IdHasher, ProducerId, WriterId};

/// Idle sequences that are remembered. The same number as upstream's.
pub(super) const MAX_IDLE: u32 = 1024;

/// A list of chunks that has grown beyond this gives its memory back when it becomes empty.
const MAX_IDLE_CAPACITY: usize = 256;

/// How many chunks `id` comes after `other`: negative when it comes before.
pub(super) fn distance(id: ChunkId, other: ChunkId) -> i32 {
    id.distance_from(other)
}

/// Names a sequence within a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequenceKey {
    pub(super) producer: ProducerId,
    pub(super) writer: WriterId,
}

impl std::hash::Hash for SequenceKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.producer.0) << 16 | u64::from(self.writer.0));
    }
}

/// The chunk that last left a sequence, read or overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) id: ChunkId,
    pub(super) payload: u16,
    /// Whether it was a scraped copy, and the rest of the chunk had not come yet.
    pub(super) incomplete: bool,
}

/// A chunk that a sequence holds. Its id is here too, because looking up a chunk's place would otherwise touch memory in the ring that has long left
/// the caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) id: ChunkId,
    /// Its position in the ring.
    pub(super) at: u32,
}

/// State of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) info: SequenceInfo,
    pub(super) writer_slot: Option<WriterSlot>,
    /// Its chunks, by ascending id. First and last are less than half the id space apart, so that
    /// the order is total. Reading and overwriting take from the front only.
    pub(super) chunks: VecDeque<Held>,
    pub(super) last_taken: Option<Taken>,
    /// The smallest id ever accepted: chunks before it were never seen.
    pub(super) first_seen: ChunkId,
    /// It may have begun in the buffer whose place this one has taken.
    pub(super) may_continue: bool,
    /// The front chunk for which [`Sequence::arrive_at`] has been called.
    arrived_at: Option<ChunkId>,
    /// Losses since the last packet that was read.
    pub(super) losses: LossReasons,
    /// The read cycle in which this sequence has nothing more to give.
    pub(super) stalled_in: u64,
    /// The rest of the packet at the front was looked for and is not here yet; nothing has come since. To look again would take as long
    /// as the packet has pieces, at every read.
    pub(super) waits: bool,
    /// Its producer is gone, so no more patches will come.
    pub(super) abandoned: bool,
    idle: Idle,
}

/// Neighbours in the list of idle sequences.
#[derive(Clone, Copy, Debug, Default)]
struct Idle {
    older: Option<u32>,
    newer: Option<u32>,
}

impl Sequence {
    /// Notes the losses between the last chunk taken and `id`, the chunk now at the front.
    pub(super) fn arrive_at(&mut self, id: ChunkId) {
        if self.arrived_at == Some(id) {
            return;
        }
        self.arrived_at = Some(id);
        let Some(taken) = self.last_taken else {
            // Writers number their chunks from 0.
            if self.may_continue && id != ChunkId(0) {
                self.losses.add(LossReasons::PRESENT);
            }
            return;
        };
        if taken.incomplete && taken.id == id {
            // The rest of a chunk whose scraped copy is gone, so nothing lies between.
        } else if id != taken.id.next() {
            self.losses.add(LossReasons::READ_GAP);
        } else if taken.incomplete {
            // The scraped copy was overwritten and the rest never came. A scrape withholds the fragment that was
            // being written, so at least that one is lost.
            self.losses.add(LossReasons::OVERWRITE);
        }
    }

    /// Takes the front chunk off the list, which gives memory back as it becomes shorter.
    pub(super) fn pop_front(&mut self) -> Option<Held> {
        let front = self.chunks.pop_front();
        let (len, capacity) = (self.chunks.len(), self.chunks.capacity());
        if capacity > MAX_IDLE_CAPACITY && len < capacity / 4 {
            self.chunks.shrink_to(len * 2);
        }
        front
    }

    /// Records that the front chunk is gone, and the losses before it.
    pub(super) fn take(&mut self, taken: Taken) {
        self.waits = false;
        self.arrive_at(taken.id);
        self.last_taken = Some(taken);
        self.arrived_at = None;
    }
}

/// All sequences of a buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequences {
    slots: Vec<Sequence>,
    index: HashMap<SequenceKey, u32, IdHasher>,
    vacant: Vec<u32>,
    oldest_idle: Option<u32>,
    newest_idle: Option<u32>,
    idle_count: u32,
}

impl Sequences {
    pub(super) fn find(&self, key: SequenceKey) -> Option<Slot> {
        self.index.get(&key).copied().map(Slot)
    }

    /// Adds a sequence, idle until [`Sequences::wake`] is called, and forgets the longest idle ones beyond
    /// [`MAX_IDLE`]. Slots of idle sequences are invalid after this call.
    pub(super) fn add(
        &mut self,
        key: SequenceKey,
        identity: ProducerIdentity,
        first_seen: ChunkId,
        writer_slot: Option<WriterSlot>,
        writers: &mut WriterStats,
    ) -> Slot {
        while self.idle_count >= MAX_IDLE {
            let Some(oldest) = self.oldest_idle else { break };
            self.unlink_idle(oldest);
            let Sequence {
                info,
                writer_slot,
                losses,
                ..
            } = self.slots[oldest as usize];
            if let Some(writer) = writer_slot {
                writers.keep_losses(writer, losses);
            }
            self.index.remove(&SequenceKey {
                producer: info.producer,
                writer: info.writer,
            });
            self.vacant.push(oldest);
        }
        let sequence = Sequence {
            info: SequenceInfo {
                producer: key.producer,
                writer: key.writer,
                identity,
            },
            writer_slot,
            chunks: VecDeque::new(),
            last_taken: None,
            first_seen,
            may_continue: false,
            arrived_at: None,
            losses: writer_slot.map_or(LossReasons::NONE, |writer| writers.take_losses(writer)),
            stalled_in: 0,
            waits: false,
            abandoned: false,
            idle: Idle::default(),
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = sequence;
                slot
            }
            None => {
                self.slots.push(sequence);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(key, slot);
        self.link_idle(slot);
        Slot(slot)
    }

    pub(super) fn get(&self, slot: Slot) -> &Sequence {
        &self.slots[slot.0 as usize]
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Sequence {
        &mut self.slots[slot.0 as usize]
    }

    /// Looks at all there are.
    pub(super) fn of_producer_mut(&mut self, producer: ProducerId) -> impl Iterator<Item = &mut Sequence> {
        self.iter_mut()
            .filter(move |sequence| sequence.info.producer == producer)
    }

    /// All there are, and vacant slots, to which no change matters.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut()
    }

    /// To be called when an idle sequence gets a chunk.
    pub(super) fn wake(&mut self, slot: Slot) {
        self.unlink_idle(slot.0);
    }

    /// To be called when a sequence has lost its last chunk.
    pub(super) fn rest(&mut self, slot: Slot) {
        let sequence = self.get_mut(slot);
        debug_assert!(sequence.chunks.is_empty());
        if sequence.chunks.capacity() > MAX_IDLE_CAPACITY {
            sequence.chunks = VecDeque::new();
        }
        self.link_idle(slot.0);
    }

    fn link_idle(&mut self, slot: u32) {
        let older = self.newest_idle.replace(slot);
        self.slots[slot as usize].idle = Idle { older, newer: None };
        match older {
            Some(older) => self.slots[older as usize].idle.newer = Some(slot),
            None => self.oldest_idle = Some(slot),
        }
        self.idle_count += 1;
    }

    fn unlink_idle(&mut self, slot: u32) {
        let Idle { older, newer } = std::mem::take(&mut self.slots[slot as usize].idle);
        match older {
            Some(older) => self.slots[older as usize].idle.newer = newer,
            None => self.oldest_idle = newer,
        }
        match newer {
            Some(newer) => self.slots[newer as usize].idle.older = older,
            None => self.newest_idle = older,
        }
        self.idle_count -= 1;
    }

    /// The memory of all states and lists, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let lists = self
            .slots
            .iter()
            .map(|sequence| sequence.chunks.capacity() * size_of::<Held>());
        (self.slots.len() * size_of::<Sequence>() + lists.sum::<usize>()) as u64
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.index.values().map(|&slot| &self.slots[slot as usize])
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn idle_count(&self) -> u32 {
        self.idle_count
    }
}
