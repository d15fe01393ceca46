//! Writing: commits of chunks, recommits of scraped ones, overwriting the oldest, patches.
//!
//! A commit goes to the write cursor unless its sequence already holds the chunk. To make room, the records there are evicted; as a sequence gives up
//! its chunks from the front only, evicting one evicts the earlier ones of its sequence too, wherever they lie.
//!
//! A ring buffer of a session that streams into a file starts over at its beginning if it is read before it is full. So it needs no more memory than
//! comes between two reads: the first write to a page costs more than the chunk in it, and memory that was used lately may still be in caches.

use super::fragment::{self, Cut};
use super::record::{Chunk, Flags, FreeRun, MAX_PAYLOAD, Record, Slot, outer_size};
use super::sequence::{Held, SequenceKey, Taken, distance};
use super::{
    AbiViolation, ChunkInfo, ChunkState, CopyOutcome, Discard, FillPolicy, LossReasons, MorePatches, Patch,
    TraceBuffer,
};
use crate::ids::{ChunkId, ProducerId, WriterId};

/// How many chunk offsets a commit out of order may push aside. Commits are out of order only within one scrape,
/// which covers fewer chunks than this; without a limit a producer could make every commit move megabytes.
const MAX_DISPLACED: usize = 1 << 16;

/// The place of a chunk among the chunks of its sequence.
enum Place {
    /// After all of them.
    Last,
    /// Before the one at this index.
    Before(usize),
    /// It is the chunk at this index.
    Held(usize),
    /// Too far from the others to tell.
    OutOfRange,
}

impl TraceBuffer {
    /// Takes in the payload of one chunk (the bytes after its header in shared memory, already copied to private memory). Ends the read cycle.
    pub fn copy_chunk(&mut self, info: &ChunkInfo, payload: &[u8]) -> CopyOutcome {
        if self.read_only {
            return CopyOutcome::Discarded(Discard::ReadOnly);
        }
        self.end_walk();
        // Finding the fragments takes about as long as memory takes to answer.
        self.ring.prefetch_place(self.write_at, payload.len());
        self.prefetch_to_overwrite();

        let mut flags = Flags::from_abi(info.flags);
        let mut fragments = info.num_fragments;
        if info.state == ChunkState::Incomplete {
            flags.insert(Flags::INCOMPLETE);
            if fragments > 0 {
                // These two are about the last fragment, which is not taken.
                fragments -= 1;
                flags.remove(Flags::CONTINUES_ON_NEXT);
                flags.remove(Flags::NEEDS_PATCHING);
            }
        }
        let measured = fragment::measure(payload, fragments);
        if let Some(cut) = measured.cut_short {
            // The last fragment that is kept is not the one that these two are about.
            flags.remove(Flags::CONTINUES_ON_NEXT);
            flags.remove(Flags::NEEDS_PATCHING);
            flags.insert(match cut {
                Cut::WriterAborted => Flags::WRITER_ABORTED,
                Cut::Malformed => Flags::MALFORMED,
            });
        }
        let payload_room = payload.len();
        let payload = &payload[..measured.bytes];

        let key = SequenceKey {
            producer: info.producer,
            writer: info.writer,
        };
        let known = self.sequences.find(key);
        if self.full && !known.is_some_and(|slot| matches!(self.place(slot, info.chunk_id), Place::Held(_))) {
            return self.refuse(known, info.chunk_id, Discard::Full);
        }

        // A scraped chunk keeps the room it has in shared memory, so that it can grow where it is.
        let reserved = if info.state == ChunkState::Complete {
            payload.len()
        } else {
            payload_room
        };
        if reserved > MAX_PAYLOAD || outer_size(reserved) > self.ring.room(0) {
            return self.violation(AbiViolation::TooLarge);
        }

        let slot = known.unwrap_or_else(|| {
            let is_new = !self.writer_stats.knows(key);
            let writer_slot = self.writer_stats.slot_for(key);
            let (identity, stats) = (info.identity, &mut self.writer_stats);
            let slot = self
                .sequences
                .add(key, identity, info.chunk_id, writer_slot, stats);
            self.sequences.get_mut(slot).may_continue = self.replaces_another && is_new;
            slot
        });
        if let Some(writer_slot) = self.sequences.get(slot).writer_slot {
            self.writer_stats.add(writer_slot, payload.len());
        }
        if flags.has(Flags::WRITER_ABORTED) {
            self.stats.trace_writer_packet_loss += 1;
        }
        let chunk = Chunk {
            id: info.chunk_id,
            slot,
            reserved: reserved as u16,
            payload: payload.len() as u16,
            consumed: 0,
            flags,
        };
        let outcome = self.place_chunk(chunk, payload);
        if flags.has(Flags::MALFORMED) && !matches!(outcome, CopyOutcome::Violation(_)) {
            return self.violation(AbiViolation::MalformedFragments);
        }
        outcome
    }

    /// Applies `patches` to a chunk that is still here, all of them or none. `more` says whether the chunk can be read to its end afterwards. Returns
    /// whether they were applied. Ends the read cycle.
    pub(crate) fn apply_patches(
        &mut self,
        producer: ProducerId,
        writer: WriterId,
        chunk_id: ChunkId,
        patches: &[Patch],
        more: MorePatches,
    ) -> bool {
        if self.read_only {
            return false;
        }
        self.end_walk();
        let held = self
            .sequences
            .find(SequenceKey { producer, writer })
            .and_then(|slot| match self.place(slot, chunk_id) {
                Place::Held(index) => Some(self.sequences.get(slot).chunks[index].at),
                _ => None,
            });
        let Some(at) = held else {
            self.stats.patches_failed += 1;
            return false;
        };
        let mut chunk = self.ring.chunk(at);
        self.sequences.get_mut(chunk.slot).waits = false;
        // Consumed bytes have been given out, so patching them would be too late.
        let patchable = u32::from(chunk.consumed)..=u32::from(chunk.payload);
        let fits = |patch: &Patch| {
            let end = patch.offset.checked_add(patch.data.len() as u32);
            patchable.contains(&patch.offset) && end.is_some_and(|end| patchable.contains(&end))
        };
        if !patches.iter().all(fits) {
            self.stats.patches_failed += 1;
            return false;
        }
        for patch in patches {
            self.ring.patch(at, patch.offset as u16, &patch.data);
        }
        self.stats.patches_succeeded += patches.len() as u64;
        if more == MorePatches::Done {
            chunk.flags.remove(Flags::NEEDS_PATCHING);
            self.ring.put_chunk(at, &chunk);
        }
        true
    }

    /// The producer is gone and sends no patches any more. Packets that wait for patches are lost, and no longer hold up the rest of their
    /// sequences.
    pub(crate) fn producer_gone(&mut self, producer: ProducerId) {
        for sequence in self.sequences.of_producer_mut(producer) {
            sequence.abandoned = true;
            sequence.waits = false;
        }
    }

    /// Decides between a new chunk, a known one and one that comes too late.
    fn place_chunk(&mut self, mut chunk: Chunk, payload: &[u8]) -> CopyOutcome {
        let complete = !chunk.flags.has(Flags::INCOMPLETE);
        let sequence = self.sequences.get_mut(chunk.slot);
        if let Some(taken) = &mut sequence.last_taken {
            let after = distance(chunk.id, taken.id);
            if after == 0 && taken.incomplete && chunk.payload > taken.payload {
                // The scraped copy was evicted; the new part of the chunk is welcome.
                chunk.consumed = taken.payload;
            } else if after <= 0 {
                if after == 0 && complete && std::mem::take(&mut taken.incomplete) {
                    // The rest of the chunk is a packet that the writer dropped, or nothing that makes sense.
                    sequence.losses.add_those_at_the_end_of(chunk.flags);
                }
                return self.refuse(Some(chunk.slot), chunk.id, Discard::TooLate);
            }
        }
        match self.place(chunk.slot, chunk.id) {
            Place::Held(index) => self.recommit(chunk, payload, index),
            Place::OutOfRange => self.violation(AbiViolation::ChunkIdOutOfRange),
            place @ (Place::Last | Place::Before(_)) => {
                let sequence = self.sequences.get(chunk.slot);
                if let Place::Before(index) = place {
                    if index == 0 && self.ring.chunk(sequence.chunks[0].at).consumed > 0 {
                        // Its successor is being read already.
                        return self.refuse(Some(chunk.slot), chunk.id, Discard::TooLate);
                    }
                    if index.min(sequence.chunks.len() - index) > MAX_DISPLACED {
                        return self.violation(AbiViolation::ChunkIdOutOfRange);
                    }
                }
                self.append(chunk, payload)
            }
        }
    }

    fn place(&self, slot: Slot, id: ChunkId) -> Place {
        let chunks = &self.sequences.get(slot).chunks;
        let (Some(front), Some(back)) = (chunks.front(), chunks.back()) else {
            return Place::Last;
        };
        let (front, back) = (front.id, back.id);
        if distance(id, back) > 0 {
            return if distance(id, front) >= 0 {
                Place::Last
            } else {
                Place::OutOfRange
            };
        }
        if distance(id, front) < 0 && distance(back, id) < 0 {
            return Place::OutOfRange;
        }
        match chunks.binary_search_by(|held| distance(held.id, id).cmp(&0)) {
            Ok(index) => Place::Held(index),
            Err(index) => Place::Before(index),
        }
    }

    /// A chunk that is still here comes again, normally because it was scraped the first time.
    fn recommit(&mut self, mut chunk: Chunk, payload: &[u8], index: usize) -> CopyOutcome {
        let sequence = self.sequences.get_mut(chunk.slot);
        sequence.waits = false;
        let at = sequence.chunks[index].at;
        let mut copy = self.ring.chunk(at);
        if chunk.payload < copy.payload
            || chunk.payload > copy.reserved
            || !chunk.flags.keeps_abi_flags_of(copy.flags)
        {
            return self.violation(AbiViolation::BadRecommit);
        }
        let grows = chunk.payload > copy.payload;
        let complete = !chunk.flags.has(Flags::INCOMPLETE);

        // A scraped copy that has been read to its end may lie right in front of the write cursor by now: the new data of the commit would be
        // overwritten before anyone could read it. So it moves to the cursor. Only the first chunk of a sequence can be taken out.
        let moves = grows
            && complete
            && index == 0
            && copy.flags.has(Flags::INCOMPLETE)
            && copy.is_drained()
            && self.may_move_to_cursor(chunk.outer_size());
        if moves {
            chunk.consumed = copy.consumed;
            self.take_front(chunk.slot);
            self.stats.chunks_relocated += 1;
            return self.append(chunk, payload);
        }

        let still_open = !complete && copy.flags.has(Flags::INCOMPLETE);
        if grows {
            self.ring.overwrite(at, payload);
            copy.payload = chunk.payload;
            // The new flags include the producer's flags of the copy. Errors of the copy may have been corrected.
            copy.flags = chunk.flags;
            self.stats.chunks_rewritten += 1;
        } else {
            // The part that the copy left out turns out to be no fragment.
            for flag in [Flags::WRITER_ABORTED, Flags::MALFORMED] {
                if chunk.flags.has(flag) {
                    copy.flags.insert(flag);
                }
            }
        }
        if !still_open {
            copy.flags.remove(Flags::INCOMPLETE);
        }
        self.ring.put_chunk(at, &copy);
        CopyOutcome::Stored
    }

    /// Writes a chunk at the write cursor.
    fn append(&mut self, chunk: Chunk, payload: &[u8]) -> CopyOutcome {
        let outer = chunk.outer_size();
        if self.policy == FillPolicy::StreamedRing && self.stats.write_wrap_count == 0 {
            self.choose_used_memory(outer);
        }
        loop {
            let room = self.ring.room(self.write_at);
            if outer <= room {
                break;
            }
            let is_last = self.write_at + room == self.ring.capacity();
            if is_last && self.policy == FillPolicy::DiscardAtEnd || !self.clear(room) {
                return self.refuse_for_good(&chunk);
            }
            if is_last {
                self.write_at = 0;
                self.stats.write_wrap_count += 1;
            } else {
                self.ring.pad(self.write_at);
                self.stats.padding_bytes_written += u64::from(room);
                self.write_at += room;
            }
        }
        if !self.clear(outer) {
            return self.refuse_for_good(&chunk);
        }

        // Evicting may have taken chunks of this very sequence. A sequence goes forward only: once a later chunk
        // is gone, this one has lost its place.
        let sequence = self.sequences.get_mut(chunk.slot);
        if sequence
            .last_taken
            .is_some_and(|taken| distance(chunk.id, taken.id) < 0)
        {
            sequence.losses.add(LossReasons::OVERWRITE);
            let cleared = outer.min(self.ring.used() - self.write_at);
            if cleared > 0 {
                self.ring.put_free(
                    self.write_at,
                    FreeRun {
                        bytes: cleared,
                        padding: 0,
                    },
                );
            }
            return self.refuse(Some(chunk.slot), chunk.id, Discard::Overtaken);
        }
        self.ring.write(self.write_at, &chunk, payload);
        let place = self.place(chunk.slot, chunk.id);
        let sequence = self.sequences.get_mut(chunk.slot);
        sequence.waits = false;
        let was_idle = sequence.chunks.is_empty();
        let held = Held {
            id: chunk.id,
            at: self.write_at,
        };
        match place {
            Place::Before(index) => {
                sequence.chunks.insert(index, held);
                self.stats.chunks_committed_out_of_order += 1;
            }
            Place::Last | Place::Held(_) | Place::OutOfRange => sequence.chunks.push_back(held),
        }
        if distance(chunk.id, sequence.first_seen) < 0 {
            sequence.first_seen = chunk.id;
        }
        if was_idle {
            self.sequences.wake(chunk.slot);
        }
        self.write_at += outer;
        self.stats.chunks_written += 1;
        self.stats.bytes_written += u64::from(outer);
        CopyOutcome::Stored
    }

    /// Moves the write cursor to used memory where a chunk of so many bytes overwrites nothing, or else behind the used memory, in a ring that has not
    /// come to its end. The other policies are about that end, so it has to come.
    fn choose_used_memory(&mut self, outer: u32) {
        let used = self.ring.used();
        if std::mem::take(&mut self.was_read) && self.write_at > 0 && self.is_nearly_empty() {
            self.write_at = 0;
        }
        if self.write_at < used
            && !self.is_free(self.way(self.write_at, outer))
            && self.is_inside(used, outer)
        {
            // The chunks in the way are older than all that was written since the buffer started over, and now come after it. They belong to few
            // sequences, and each reads and gives up its own chunks in their order.
            self.write_at = used;
        }
    }

    /// The bytes that a chunk of `outer` bytes takes from `at` on, with those that it may have to leave out up to the end of a piece.
    fn way(&self, at: u32, outer: u32) -> u32 {
        match self.ring.room(at) {
            room if outer > room => room + outer,
            _ => outer,
        }
    }

    /// Whether a chunk of `outer` bytes at `at` ends inside the buffer. If it does not, the ring overwrites its oldest chunks, as ever.
    fn is_inside(&self, at: u32, outer: u32) -> bool {
        at < self.ring.capacity() && self.way(at, outer) <= self.ring.capacity() - at
    }

    /// Whether all of the used memory is free but for little in front of the write cursor: usually the beginning of a packet the rest of which has not
    /// been committed. Sees only free runs that reading has joined.
    fn is_nearly_empty(&self) -> bool {
        let behind = self.ring.used() - self.write_at;
        let is_free_behind = behind == 0
            || matches!(self.ring.record(self.write_at), Record::Free(run) if run.bytes == behind);
        let held_at_most = self.write_at / 8;
        is_free_behind
            && matches!(self.ring.record(0), Record::Free(run) if run.bytes >= self.write_at - held_at_most)
    }

    /// Whether no chunk is in the next `bytes` bytes.
    fn is_free(&self, bytes: u32) -> bool {
        let end = (self.write_at + bytes).min(self.ring.used());
        let mut at = self.write_at;
        while at < end {
            match self.ring.record(at) {
                Record::Free(run) => at += run.bytes,
                Record::Chunk(_) => return false,
            }
        }
        true
    }

    /// Whether a chunk that was read may move to the write cursor, where it takes this many bytes. It may not if the buffer could refuse it there.
    fn may_move_to_cursor(&self, outer: u32) -> bool {
        match self.policy {
            FillPolicy::RingBuffer | FillPolicy::StreamedRing => true,
            FillPolicy::Discard => !self.full && self.has_read_what_is_in_the_way_of(outer),
            // This buffer never laps, so the chunk can stay.
            FillPolicy::DiscardAtEnd => false,
        }
    }

    /// Whether the records certainly were read that have to go for a chunk of so many bytes.
    fn has_read_what_is_in_the_way_of(&self, outer: u32) -> bool {
        let (mut start, mut at) = (self.write_at, self.write_at);
        loop {
            let room = self.ring.room(at);
            if outer <= room {
                return self.is_read(start, at + outer - start);
            }
            at += room;
            if at == self.ring.capacity() {
                if !self.is_read(start, at - start) {
                    return false;
                }
                (start, at) = (0, 0);
            }
        }
    }

    /// Whether these `bytes` bytes certainly hold only chunks that were read. May return false although they do.
    fn is_read(&self, start: u32, bytes: u32) -> bool {
        let end = (start + bytes).min(self.ring.used());
        let mut at = start;
        while at < end {
            at += match self.ring.record(at) {
                Record::Free(run) => run.bytes,
                // A later chunk of a sequence may be drained because it is empty, while chunks before it are unread.
                Record::Chunk(chunk) if chunk.is_drained() && self.is_front(chunk.slot, at) => {
                    chunk.outer_size()
                }
                Record::Chunk(_) => return false,
            };
        }
        true
    }

    fn is_front(&self, slot: Slot, at: u32) -> bool {
        let front = self.sequences.get(slot).chunks.front();
        front.is_some_and(|front| front.at == at)
    }

    /// Frees `bytes` bytes at the write cursor, as [`TraceBuffer::evict`] does. Returns whether that worked: a buffer that discards does not
    /// give up unread chunks.
    fn clear(&mut self, bytes: u32) -> bool {
        if !self.policy.overwrites() && !self.take_read(bytes) {
            return false;
        }
        self.evict(bytes);
        true
    }

    /// Removes chunks that were read from the next `bytes` bytes. Returns whether none is left there.
    fn take_read(&mut self, bytes: u32) -> bool {
        let end = (self.write_at + bytes).min(self.ring.used());
        let mut at = self.write_at;
        while at < end {
            match self.ring.record(at) {
                Record::Free(run) => at += run.bytes,
                Record::Chunk(chunk) => {
                    // The chunks before it in its sequence go first.
                    let front = self.sequences.get(chunk.slot).chunks.front();
                    if !front.is_some_and(|front| self.ring.chunk(front.at).is_drained()) {
                        return false;
                    }
                    self.take_front(chunk.slot);
                }
            }
        }
        true
    }

    /// The buffer discards and has no room for this chunk. From now on it accepts nothing.
    fn refuse_for_good(&mut self, chunk: &Chunk) -> CopyOutcome {
        self.full = true;
        self.refuse(Some(chunk.slot), chunk.id, Discard::Full)
    }

    /// Frees `bytes` bytes from the write cursor on, and the rest of the last record that this cuts through. Then one free run of `bytes` bytes is at
    /// the cursor, but for its header, which is up to the caller.
    fn evict(&mut self, bytes: u32) {
        let end = self.write_at + bytes;
        let mut at = self.write_at;
        let mut rest_is_padding = false;
        while at < end && at < self.ring.used() {
            match self.ring.record(at) {
                Record::Free(run) => {
                    if run.padding > 0 {
                        self.stats.padding_bytes_cleared += u64::from(run.padding);
                        // At the end of the buffer the record stays, and is met again.
                        self.ring.put_free(at, FreeRun { padding: 0, ..run });
                    }
                    at += run.bytes;
                    rest_is_padding = false;
                }
                Record::Chunk(chunk) => {
                    self.evict_chunk(chunk.slot, at);
                    at += chunk.outer_size();
                    rest_is_padding = true;
                }
            }
        }
        if at > end {
            let padding = if rest_is_padding { at - end } else { 0 };
            self.ring.put_free(
                end,
                FreeRun {
                    bytes: at - end,
                    padding,
                },
            );
            self.stats.padding_bytes_written += u64::from(padding);
        }
    }

    /// Takes the chunk at `until` and all earlier chunks of its sequence out of the sequence.
    fn evict_chunk(&mut self, slot: Slot, until: u32) {
        while let Some(&Held { at, .. }) = self.sequences.get(slot).chunks.front() {
            let chunk = self.ring.chunk(at);
            if !chunk.is_drained() {
                self.overwrite(at, &chunk);
            }
            self.take_front(slot);
            if at == until {
                return;
            }
        }
        debug_assert!(false, "chunk at {until} is not held by its sequence");
    }

    /// Removes the front chunk of a sequence, read or not, and frees its space.
    pub(super) fn take_front(&mut self, slot: Slot) {
        let sequence = self.sequences.get_mut(slot);
        let Some(Held { at, .. }) = sequence.pop_front() else {
            return;
        };
        let chunk = self.ring.chunk(at);
        sequence.take(Taken {
            id: chunk.id,
            payload: chunk.payload,
            incomplete: chunk.flags.has(Flags::INCOMPLETE),
        });
        sequence.losses.add_those_at_the_end_of(chunk.flags);
        if chunk.payload == 0 {
            // None of its packets will ever be consumed, so it has to be counted now.
            self.stats.chunks_read += 1;
            self.stats.bytes_read += u64::from(chunk.outer_size());
        }
        if sequence.chunks.is_empty() {
            self.sequences.rest(slot);
        }
        self.ring.put_free(
            at,
            FreeRun {
                bytes: chunk.outer_size(),
                padding: 0,
            },
        );
    }

    /// Refuses a chunk for which there is no room, or which was taken already, or whose successors were.
    fn refuse(&mut self, slot: Option<Slot>, id: ChunkId, why: Discard) -> CopyOutcome {
        if let Some(slot) = slot {
            let sequence = self.sequences.get_mut(slot);
            if distance(id, sequence.first_seen) < 0 {
                // Older than anything seen, hence no duplicate, and no gap will be noted for it.
                sequence.first_seen = id;
                sequence.losses.add(LossReasons::READ_GAP);
            }
        }
        self.stats.chunks_discarded += 1;
        CopyOutcome::Discarded(why)
    }

    fn violation(&mut self, violation: AbiViolation) -> CopyOutcome {
        self.stats.abi_violations += 1;
        CopyOutcome::Violation(violation)
    }
}
