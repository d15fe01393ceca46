//! Reading: packets in the order of the buffer, put together in the order of their sequence.
//!
//! A read cycle walks the records from the oldest to the newest. Arriving at a chunk it reads that chunk's sequence, from the front up to this chunk:
//! normally that is this chunk alone, after commits out of order it may be several. The end of a packet that begins there is fetched from later
//! chunks; the rest of these chunks is left until the walk arrives there, which keeps sequences interleaved as they were written.
//!
//! The walk joins the free runs it passes, so that the next cycle steps over them at once.

use super::fragment::{self, Part, Token};
use super::record::{Chunk, Flags, HEADER_SIZE, Record, Slot};
use super::sequence::Held;
use super::{LossReasons, ReadPacket, Span, TraceBuffer};
use crate::ids::ChunkId;
use crate::limits;

/// The position of a read cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    at: u32,
    /// The end of the current leg.
    end: u32,
    /// The end of the second leg, which starts at 0. 0 once that has begun, or when there is none.
    second_end: u32,
    /// Start of the free run that ends at `at`.
    free_run: Option<u32>,
    /// The sequence being read up to the chunk at `at`.
    reading: Option<Reading>,
}

/// A sequence being read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    slot: Slot,
    /// Its front chunk, once reading has got to whole packets in it: most packets come out of here without another look
    /// at the sequence.
    front: Option<Front>,
}

/// The chunk at the front of the sequence being read.
#[derive(Clone, Copy, Debug)]
struct Front {
    /// Its position.
    at: u32,
    /// `consumed` is kept up to date here only, until reading leaves the chunk ([`TraceBuffer::settle`]).
    chunk: Chunk,
    /// Whether the processor has been told to fetch the rest of it.
    prefetched: bool,
}

/// A fragment found while looking for the rest of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookahead {
    /// Offset of its chunk.
    pub(super) chunk_at: u32,
    pub(super) span: Span,
    /// Its end in the chunk's payload.
    pub(super) end: u16,
}

/// Outcome of looking for the rest of a packet.
pub(super) enum Reassembly {
    Done,
    /// The fragment is not here yet.
    Missing,
    Lost(LossReasons),
}

impl TraceBuffer {
    /// Starts a read cycle. Call it again after a write, or to retry sequences that had nothing to give.
    pub fn begin_read(&mut self) {
        self.end_walk();
        self.read_cycle += 1;
        self.was_read = true;
        let (write_at, used) = (self.write_at, self.ring.used());
        let (at, second_end) = if write_at < used {
            (write_at, write_at)
        } else {
            (0, 0)
        };
        self.walk = Some(Walk {
            at,
            end: used,
            second_end,
            free_run: None,
            reading: None,
        });
    }

    /// Takes the next whole packet out of the buffer. `None` when this cycle has no more, or a write has ended it.
    pub fn read_next_packet(&mut self) -> Option<ReadPacket<'_>> {
        let slot = self.advance()?;
        let sequence = self.sequences.get_mut(slot);
        let losses = std::mem::take(&mut sequence.losses);
        let sequence = sequence.info;
        Some(ReadPacket {
            buffer: self,
            spans: &self.spans,
            sequence,
            losses,
        })
    }

    /// Ends the read cycle, because something is about to be written or copied.
    #[inline]
    pub(super) fn end_walk(&mut self) {
        if let Some(Walk {
            reading: Some(reading),
            ..
        }) = self.walk.take()
        {
            self.settle(&reading);
        }
    }

    /// Notes in the ring how far the front chunk was read.
    fn settle(&mut self, reading: &Reading) {
        if let Some(front) = &reading.front {
            self.ring.put_chunk(front.at, &front.chunk);
        }
    }

    /// The chunk at `at`, if it is being read: the ring does not know yet how far.
    #[cfg(any(test, fuzzing))]
    pub(super) fn as_read(&self, at: u32) -> Option<Chunk> {
        let front = self.walk.as_ref()?.reading.as_ref()?.front.as_ref()?;
        (front.at == at).then_some(front.chunk)
    }

    /// Finds the next packet and leaves its fragments in `spans`; returns its sequence.
    fn advance(&mut self) -> Option<Slot> {
        if let Some(slot) = self.next_in_front_chunk() {
            return Some(slot);
        }
        let mut walk = self.walk.take()?;
        loop {
            if let Some(reading) = &mut walk.reading {
                let slot = reading.slot;
                self.settle(reading);
                reading.front = None;
                if self.read_sequence(reading, walk.at) {
                    self.walk = Some(walk);
                    return Some(slot);
                }
                walk.reading = None;
                self.step(&mut walk);
            }
            if walk.at >= walk.end {
                if walk.second_end == 0 {
                    return None;
                }
                walk = Walk {
                    at: 0,
                    end: walk.second_end,
                    second_end: 0,
                    free_run: None,
                    reading: None,
                };
            }
            match self.ring.record(walk.at) {
                Record::Chunk(chunk) if self.sequences.get(chunk.slot).stalled_in != self.read_cycle => {
                    walk.reading = Some(Reading {
                        slot: chunk.slot,
                        front: None,
                    });
                }
                _ => self.step(&mut walk),
            }
        }
    }

    /// The common case: another whole packet in the chunk that the last one came from.
    #[inline]
    fn next_in_front_chunk(&mut self) -> Option<Slot> {
        let Reading { slot, front } = self.walk.as_mut()?.reading.as_mut()?;
        let Front {
            at,
            chunk,
            prefetched,
        } = front.as_mut()?;
        let start = usize::from(chunk.consumed);
        let Token::Fragment { start: body, end } = fragment::token(self.ring.payload(*at, chunk), start)
        else {
            return None;
        };
        let whole = fragment::part(chunk.flags, start, end, usize::from(chunk.payload)) == Part::Whole;
        if !whole || body == end {
            return None;
        }
        chunk.consumed = end as u16;
        if chunk.is_drained() {
            self.stats.chunks_read += 1;
            self.stats.bytes_read += u64::from(chunk.outer_size());
        }
        let span = Span {
            start: *at + HEADER_SIZE + body as u32,
            len: (end - body) as u16,
        };
        let slot = *slot;
        if !*prefetched && chunk.is_sparse(span.size()) {
            *prefetched = true;
            self.ring.prefetch_rest(*at, chunk);
        }
        self.set_only_span(span);
        Some(slot)
    }

    /// Makes `span` the packet. Leaves the vector's length alone where it can: the reader loads it together with the pointer beside it, and such a
    /// load has to wait for a store to half of its bytes.
    #[inline]
    fn set_only_span(&mut self, span: Span) {
        match &mut self.spans[..] {
            [only] => *only = span,
            _ => {
                self.spans.clear();
                self.spans.push(span);
            }
        }
    }

    /// Steps over the record under the walk, which may have become free meanwhile.
    fn step(&mut self, walk: &mut Walk) {
        match self.ring.record(walk.at) {
            Record::Chunk(chunk) => {
                walk.at += chunk.outer_size();
                walk.free_run = None;
            }
            Record::Free(run) => {
                match walk.free_run {
                    None => walk.free_run = Some(walk.at),
                    Some(first) => self.ring.join_free(first, walk.at),
                }
                walk.at += run.bytes;
            }
        }
    }

    /// Reads a sequence from its front up to the chunk at `until`. Returns whether `spans` holds a packet.
    fn read_sequence(&mut self, reading: &mut Reading, until: u32) -> bool {
        let slot = reading.slot;
        loop {
            let sequence = self.sequences.get_mut(slot);
            let Some(&Held { at, .. }) = sequence.chunks.front() else {
                return false;
            };
            if sequence.waits {
                self.stats.readaheads_failed += 1;
                sequence.stalled_in = self.read_cycle;
                return false;
            }
            let chunk = self.ring.chunk(at);
            sequence.arrive_at(chunk.id);
            let start = usize::from(chunk.consumed);
            let token = fragment::token(self.ring.payload(at, &chunk), start);
            let Token::Fragment { start: body, end } = token else {
                if chunk.flags.has(Flags::INCOMPLETE) {
                    sequence.stalled_in = self.read_cycle;
                    return false;
                }
                if token != Token::End {
                    // Well-formed when it was committed; a patch or a recommit has damaged it since.
                    sequence.losses.add(LossReasons::CHUNK_CORRUPTED);
                    self.stats.abi_violations += 1;
                    self.consume(at, chunk.payload);
                }
                self.take_front(slot);
                if at == until {
                    return false;
                }
                continue;
            };
            let span = Span {
                start: at + HEADER_SIZE + body as u32,
                len: (end - body) as u16,
            };
            match fragment::part(chunk.flags, start, end, usize::from(chunk.payload)) {
                Part::Whole if span.len == 0 => self.consume(at, end as u16),
                Part::Whole => {
                    self.set_only_span(span);
                    let chunk = Chunk {
                        consumed: end as u16,
                        ..chunk
                    };
                    self.count_if_drained(&chunk);
                    let prefetched = chunk.is_sparse(span.size());
                    if prefetched {
                        self.ring.prefetch_rest(at, &chunk);
                    }
                    reading.front = Some(Front {
                        at,
                        chunk,
                        prefetched,
                    });
                    return true;
                }
                Part::Continue | Part::End => {
                    sequence.losses.add(LossReasons::ORPHAN_CONTINUATION);
                    self.consume(at, end as u16);
                }
                Part::Begin => {
                    let needs_patching = chunk.flags.has(Flags::NEEDS_PATCHING);
                    let first = Lookahead {
                        chunk_at: at,
                        span,
                        end: end as u16,
                    };
                    match self.look_ahead(slot, first, chunk.id, needs_patching) {
                        Reassembly::Done => {
                            self.stats.readaheads_succeeded += 1;
                            self.consume_lookahead();
                            self.spans.clear();
                            self.spans.extend(
                                self.lookahead
                                    .iter()
                                    .map(|found| found.span)
                                    .filter(|s| s.len > 0),
                            );
                            if !self.spans.is_empty() {
                                return true;
                            }
                        }
                        Reassembly::Missing => {
                            self.stats.readaheads_failed += 1;
                            let sequence = self.sequences.get_mut(slot);
                            sequence.stalled_in = self.read_cycle;
                            sequence.waits = true;
                            return false;
                        }
                        Reassembly::Lost(reason) => {
                            self.stats.readaheads_failed += 1;
                            self.consume_lookahead();
                            self.sequences.get_mut(slot).losses.add(reason);
                        }
                    }
                }
            }
        }
    }

    /// Collects in `lookahead` the fragments of the packet that begins with `first` in the front chunk.
    pub(super) fn look_ahead(
        &mut self,
        slot: Slot,
        first: Lookahead,
        id: ChunkId,
        needs_patching: bool,
    ) -> Reassembly {
        self.lookahead.clear();
        self.lookahead.push(first);
        let without_patches = if self.sequences.get(slot).abandoned {
            Reassembly::Lost(LossReasons::WRITER_ABORT)
        } else {
            Reassembly::Missing
        };
        if needs_patching {
            return without_patches;
        }
        let mut expected = id;
        for &Held { at, .. } in self.sequences.get(slot).chunks.iter().skip(1) {
            let chunk = self.ring.chunk(at);
            expected = expected.next();
            if chunk.id != expected {
                return Reassembly::Lost(LossReasons::REASSEMBLY_GAP);
            }
            let start = usize::from(chunk.consumed);
            let (body, end) = match fragment::token(self.ring.payload(at, &chunk), start) {
                Token::Fragment { start, end } => (start, end),
                Token::End if chunk.flags.has(Flags::INCOMPLETE) => return Reassembly::Missing,
                Token::End if chunk.flags.has(Flags::CONTINUES_FROM_PREVIOUS) => {
                    // The chunk continues the packet, but the fragment was malformed or given up.
                    return Reassembly::Lost(LossReasons::REASSEMBLY_BROKEN_CHAIN);
                }
                // An empty chunk in the middle of a packet: rare, but a writer may do it.
                Token::End => continue,
                Token::DropMarker | Token::Malformed => {
                    return Reassembly::Lost(LossReasons::CHUNK_CORRUPTED);
                }
            };
            let part = fragment::part(chunk.flags, start, end, usize::from(chunk.payload));
            if matches!(part, Part::Whole | Part::Begin) {
                return Reassembly::Lost(LossReasons::REASSEMBLY_BROKEN_CHAIN);
            }
            if part == Part::Continue && chunk.flags.has(Flags::NEEDS_PATCHING) {
                return without_patches;
            }
            let span = Span {
                start: at + HEADER_SIZE + body as u32,
                len: (end - body) as u16,
            };
            self.lookahead.push(Lookahead {
                chunk_at: at,
                span,
                end: end as u16,
            });
            if part == Part::End {
                return Reassembly::Done;
            }
            if self.lookahead.len() >= limits::MAX_FRAGMENTS_PER_PACKET {
                return Reassembly::Lost(LossReasons::CHUNK_CORRUPTED);
            }
        }
        Reassembly::Missing
    }

    fn consume_lookahead(&mut self) {
        for index in 0..self.lookahead.len() {
            let found = self.lookahead[index];
            self.consume(found.chunk_at, found.end);
        }
    }

    /// Moves the read position of the chunk at `at` to `end`, counting the chunk when that is its end.
    fn consume(&mut self, at: u32, end: u16) {
        let chunk = self.ring.consume(at, end);
        self.count_if_drained(&chunk);
    }

    fn count_if_drained(&mut self, chunk: &Chunk) {
        if chunk.is_drained() {
            self.stats.chunks_read += 1;
            self.stats.bytes_read += u64::from(chunk.outer_size());
        }
    }
}
