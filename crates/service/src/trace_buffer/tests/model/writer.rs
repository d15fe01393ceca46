//! The writers of the model: the chunks that each writes, and the list of its chunks that should be in the buffer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferretto_wire::{put_padded_varint, varint_len};

use super::{ChunkId, Random};

/// A fragment, as its writer wrote it.
#[derive(Clone, Debug)]
pub(super) struct Fragment {
    pub(super) packet: usize,
    /// Position within the packet.
    pub(super) index: usize,
    pub(super) ends_packet: bool,
    pub(super) bytes: Vec<u8>,
    /// The length prefix takes four bytes, as trace writers do when they do not know the length yet.
    pub(super) padded_prefix: bool,
}

/// A chunk in shared memory.
#[derive(Clone, Debug)]
pub(super) struct SharedChunk {
    /// Position in the sequence, from 0 and without wrap-around.
    pub(super) number: u64,
    pub(super) fragments: Vec<Fragment>,
    /// Bytes of payload it has room for.
    pub(super) room: usize,
    /// The bytes of the last fragment that the producer fills in by patches, from this offset of the fragment.
    pub(super) hole: Option<usize>,
    /// Whether it ends with the mark of a dropped packet.
    pub(super) aborted: bool,
    /// Whether the producer is still writing the last fragment.
    pub(super) open: bool,
}

impl SharedChunk {
    /// The payload as it is in shared memory, and where in it the hole is.
    pub(super) fn encode(&self) -> (Vec<u8>, Option<u32>) {
        let mut payload = Vec::new();
        let mut hole = None;
        for (index, fragment) in self.fragments.iter().enumerate() {
            let size = fragment.bytes.len();
            let start = payload.len() + prefix_size(fragment);
            payload.resize(start, 0);
            put_padded_varint(&mut payload[start - prefix_size(fragment)..], size as u64);
            payload.extend(&fragment.bytes);
            if let (Some(offset), true) = (self.hole, index + 1 == self.fragments.len()) {
                payload[start + offset..start + offset + 4].fill(0);
                hole = Some((start + offset) as u32);
            }
        }
        if self.aborted {
            payload.extend([0xff, 0xff, 0xff, 0x7f]);
        }
        (payload, hole)
    }

    pub(super) fn flags(&self) -> u8 {
        let continues = self.fragments.first().is_some_and(|fragment| fragment.index > 0);
        let goes_on = self
            .fragments
            .last()
            .is_some_and(|fragment| !fragment.ends_packet);
        u8::from(continues) | u8::from(goes_on) << 1 | u8::from(self.hole.is_some()) << 2
    }
}

/// A chunk that should be in the buffer.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) fragments: Vec<Fragment>,
    /// How many of them were read, or passed over as lost.
    pub(super) taken: usize,
    pub(super) incomplete: bool,
    pub(super) awaits_patch: bool,
    /// Its position.
    pub(super) start: u32,
    pub(super) end: u32,
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) producer: u32,
    pub(super) writer: u16,
    /// The id of chunk number 0.
    pub(super) base: u32,
    pub(super) next_number: u64,
    /// Bytes of every packet ever begun.
    pub(super) packets: Vec<Vec<u8>>,
    /// The packet whose next fragment goes into the next chunk: its number and how many fragments it has.
    pub(super) open_packet: Option<(usize, usize)>,
    /// Not yet committed.
    pub(super) in_flight: VecDeque<SharedChunk>,
    /// Committed with a hole: the chunk's number and where in its payload.
    pub(super) unpatched: Vec<(u64, u32)>,

    // The state that the buffer should have.
    pub(super) held: BTreeMap<u64, Held>,
    /// Fragments that had been seen of scraped chunks when they were overwritten.
    pub(super) evicted_incomplete: BTreeMap<u64, usize>,
    /// Numbers that came to the buffer complete.
    pub(super) completed: BTreeSet<u64>,
    /// The largest number that left the buffer.
    pub(super) gone: Option<u64>,
    pub(super) next_packet: usize,
    /// Whether it has disconnected. The packets that it had not sent are lost.
    pub(super) is_gone: bool,
    /// The last empty chunk that was refused: the gap it leaves is marked although it costs no packet.
    pub(super) refused_empty: Option<u64>,
}

/// The next item that a sequence should give.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// A packet, by its number, and the chunk it starts in.
    Packet(usize, u64),
    Nothing,
}

impl Writer {
    pub(super) fn id(&self, number: u64) -> ChunkId {
        ChunkId(self.base.wrapping_add(number as u32))
    }

    /// Writes one more chunk.
    pub(super) fn write(&mut self, random: &mut Random, max_fragment: usize) {
        if self.is_gone || self.in_flight.back().is_some_and(|chunk| chunk.open) {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let mut chunk = SharedChunk {
            number,
            fragments: Vec::new(),
            room: 0,
            hole: None,
            aborted: false,
            open: false,
        };
        let count = if self.open_packet.is_none() && random.one_in(12) {
            0
        } else {
            1 + random.below(5)
        };
        for position in 0..count {
            let (packet, index) = self.open_packet.take().unwrap_or_else(|| {
                self.packets.push(Vec::new());
                (self.packets.len() - 1, 0)
            });
            let size = 5 + random.below(max_fragment);
            let bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
            self.packets[packet].extend(&bytes);
            let ends_packet = position + 1 < count || random.one_in(2);
            if !ends_packet {
                self.open_packet = Some((packet, index + 1));
                if random.one_in(2) {
                    chunk.hole = Some(random.below(size - 4));
                }
            }
            let padded_prefix = random.one_in(2);
            chunk.fragments.push(Fragment {
                packet,
                index,
                ends_packet,
                bytes,
                padded_prefix,
            });
        }
        if count > 0 && self.open_packet.is_none() && random.one_in(10) {
            chunk.aborted = true;
            self.packets.push(Vec::new());
        }
        chunk.open = count > 0 && !chunk.aborted && random.one_in(3);
        chunk.room = chunk.encode().0.len() + random.below(40);
        self.in_flight.push_back(chunk);
    }

    /// Reads the next packet, its fragments one after the other; passes over lost ones.
    pub(super) fn take_next(&mut self) -> Next {
        let numbers: Vec<u64> = self.held.keys().copied().collect();
        for (position, number) in numbers.iter().enumerate() {
            while self.held[number].taken < self.held[number].fragments.len() {
                let held = &self.held[number];
                let first = held.fragments[held.taken].clone();
                let mut chain = vec![*number];
                let mut last = first.clone();
                let unpatched = !first.ends_packet && held.awaits_patch;
                let mut broken = first.index > 0 || unpatched && self.is_gone;
                let mut waits = !broken && unpatched;
                let mut later = numbers[position + 1..].iter();
                let mut expected = *number;
                while !broken && !waits && !last.ends_packet {
                    expected += 1;
                    let Some(next) = later.next() else {
                        waits = true;
                        break;
                    };
                    let chunk = &self.held[next];
                    if *next != expected {
                        broken = true;
                    } else if let Some(fragment) = chunk.fragments.get(chunk.taken) {
                        broken = fragment.packet != first.packet || fragment.index != chain.len();
                        let unpatched = !fragment.ends_packet && chunk.awaits_patch;
                        broken |= unpatched && self.is_gone;
                        waits = !broken && unpatched;
                        if !broken {
                            chain.push(*next);
                            last = fragment.clone();
                        }
                    } else {
                        // Empty chunks are written between packets only, so this one was cut short by a scrape.
                        assert!(chunk.incomplete);
                        waits = true;
                    }
                }
                if waits {
                    return Next::Nothing;
                }
                for number in chain {
                    self.held.get_mut(&number).unwrap().taken += 1;
                }
                if !broken {
                    return Next::Packet(first.packet, *number);
                }
            }
            if self.held[number].incomplete {
                return Next::Nothing;
            }
            self.held.remove(number);
            self.gone = self.gone.max(Some(*number));
        }
        Next::Nothing
    }

    /// Everything up to `number` is overwritten.
    pub(super) fn evict(&mut self, number: u64) {
        let later = self.held.split_off(&(number + 1));
        for (number, held) in std::mem::replace(&mut self.held, later) {
            if held.incomplete {
                self.evicted_incomplete.insert(number, held.fragments.len());
            }
            self.gone = self.gone.max(Some(number));
        }
    }
}

pub(super) fn prefix_size(fragment: &Fragment) -> usize {
    if fragment.padded_prefix {
        4
    } else {
        varint_len(fragment.bytes.len() as u64)
    }
}
