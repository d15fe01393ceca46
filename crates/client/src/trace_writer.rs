//! Trace writers: put encoded packets into chunks of shared memory, one sequence of packets each.
//!
//! Data sources own them and call [`TraceWriter::write_packet`] for each finished packet. A packet that fits the current
//! chunk costs two copies into it and one store of the packet count: no lock, no allocation, no system call. Locks are
//! taken only when a chunk is full (see [`crate::arbiter`]).
//!
//! **Four ways in.** [`TraceWriter::write_packet`] copies a packet that was encoded elsewhere. [`TraceWriter::packet`] encodes one straight into the
//! chunk; if it outgrows that, it moves to private memory. [`TraceWriter::write_short`] does so faster, but gives up on packets that are not short.
//! [`TraceWriter::write_prepared`] is for packets of which all but the end was known beforehand, and stores them in a dozen instructions.
//!
//! **Finished packets.** A packet that does not fit the chunk is cut into fragments that fill chunk after chunk. By then it is
//! finished, in private memory, so each fragment has its final length, and nothing ever has to be patched afterwards.
//!
//! **Losses.** When there is no free chunk and the policy says to drop, packets are dropped whole until there is one. The chunk in hand is returned
//! at once, ending in a packet of [`DROPPED_PACKET_SIZE`] that the service counts. The first packet after a loss says so in
//! `previous_packet_dropped`, so that the reader distrusts everything it learnt before.
//!
//! **Scraping.** While a chunk is being written, the service takes the last counted packet for unfinished. So the count is one ahead of the packets
//! written, and a chunk that is returned with room to spare ends in an empty packet, which makes the count correct. Readers skip empty packets.

use crate::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, HadChunks};
use ferretto_smb::{
    ChunkFlags, ChunkId, DROPPED_PACKET_SIZE, FirstPacket, MAX_PACKETS_PER_CHUNK, NewChunk, WriteChunk,
    WriterId,
};
use ferretto_wire::{ShortMessage, Writer, put_padded_varint, varint_len};
use std::sync::Arc;

mod held;
mod in_place;
mod prepared;
#[cfg(test)]
mod tests;
mod turns;

use held::Held;
pub(crate) use held::{Holder, Seen};
pub use prepared::PreparedPacket;

/// The most bytes of the length in front of a packet or fragment.
const MAX_SIZE_LEN: usize = 4;

/// A packet is not begun in a chunk with less room than this: a shorter fragment costs more than it saves, and there must be room for
/// [`DROPPED_PACKET_SIZE`] in place of the fragment.
const MIN_FRAGMENT_ROOM: usize = MAX_SIZE_LEN + 8;

/// The private memory that the encoder keeps for the next packet that spills, in bytes.
const MAX_KEPT_CAPACITY: usize = 64 * 1024;

/// Fields that only the writer can know, in front of a packet's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preamble {
    None,
    /// The packet is the sequence's first, and nothing was lost before it.
    FirstOnSequence,
    /// Packets before it were lost.
    AfterLoss,
}

impl Preamble {
    /// The fields, encoded.
    fn bytes(self) -> &'static [u8] {
        match self {
            Preamble::None => &[],
            // first_packet_on_sequence (87) = true
            Preamble::FirstOnSequence => &[0xb8, 0x05, 0x01],
            // previous_packet_dropped (42) = DATA_LOSS_PRESENT (1) | DATA_LOSS_SMB_FULL (256). Readers that know it as a
            // bool read true.
            Preamble::AfterLoss => &[0xd0, 0x02, 0x81, 0x02],
        }
    }
}

/// Writes one sequence of packets; see the [module's documentation](self). Returns its chunk when dropped.
#[derive(Debug)]
pub struct TraceWriter {
    arbiter: Arc<Arbiter>,
    id: WriterId,
    target: BufferId,
    policy: BufferExhaustedPolicy,
    /// The chunk in hand, between packets and while packets are written that fit it. `None` while a preamble has to be written first.
    held: Held,
    /// The chunk in hand, while a packet is written that may need another chunk.
    current: Option<OpenChunk>,
    next_chunk: ChunkId,
    preamble: Preamble,
    losses: u64,
    /// Bytes written into the chunks that it has returned.
    returned: u64,
    /// Encodes packets in place, or where they spill to.
    encoder: Writer,
}

impl TraceWriter {
    pub(crate) fn new(
        arbiter: Arc<Arbiter>,
        id: WriterId,
        target: BufferId,
        policy: BufferExhaustedPolicy,
    ) -> Self {
        let held = Held::new(target);
        arbiter.add_holder(id, held.holder().clone());
        Self {
            arbiter,
            id,
            target,
            policy,
            held,
            current: None,
            next_chunk: ChunkId(0),
            preamble: Preamble::FirstOnSequence,
            losses: 0,
            returned: 0,
            encoder: Writer::new(),
        }
    }

    /// The writer's id, unique among the ids of its producer.
    pub fn id(&self) -> WriterId {
        self.id
    }

    /// How often packets had to be dropped: once for each uninterrupted row of them. When this has grown, data that later packets rely on may be lost
    /// and must be written again.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Bytes that it has written so far, without the chunk in hand.
    #[inline]
    pub fn returned(&self) -> u64 {
        self.returned
    }

    /// Whether the last packet was dropped, and none has been written since.
    #[inline]
    pub fn is_losing(&self) -> bool {
        self.preamble == Preamble::AfterLoss
    }

    /// Writes one encoded `TracePacket`, without the fields that only the service may write. If there is no room, the policy may drop it;
    /// [`TraceWriter::losses`] counts that.
    #[inline]
    pub fn write_packet(&mut self, packet: &[u8]) {
        match self.held.open() {
            Some(mut open) if open.has_room_beyond(packet.len()) => {
                open.append(Parts {
                    head: &[],
                    tail: packet,
                });
                open.publish();
            }
            open => {
                drop(open);
                self.write_or_drop(packet);
            }
        }
    }

    /// Writes a packet whose last field has the value `end`, a varint below [`PreparedPacket::MAX_END`]. Returns false if the chunk is full or a loss
    /// has to be reported first; then write it as any other packet.
    #[inline(always)]
    #[must_use]
    pub fn write_prepared(&mut self, packet: &PreparedPacket, end: u32) -> bool {
        match self.held.open() {
            Some(mut open) => open.append_prepared(packet, end),
            None => false,
        }
    }

    /// Writes a packet that encodes itself, if it is no longer than [`MAX_SHORT_LEN`](ferretto_wire::MAX_SHORT_LEN) bytes and there is room.
    /// Otherwise returns false; then write it as any other packet.
    #[inline(always)]
    #[must_use]
    pub fn write_short(&mut self, packet: impl ShortMessage) -> bool {
        self.held.open().is_some_and(|mut open| open.encode_short(packet))
    }

    /// Writes the packet that `fill` encodes. Losses are handled as in [`TraceWriter::write_packet`]. If `fill` panics, no packet is written.
    #[inline]
    pub fn packet<R>(&mut self, fill: impl FnOnce(&mut Writer) -> R) -> R {
        let in_place = {
            let mut open = self.held.open();
            match &mut open {
                Some(open) if open.may_encode_in_place() => Ok(open.encode_in_place(&mut self.encoder, fill)),
                _ => Err(fill),
            }
        };
        match in_place {
            Ok((in_place::Encoded::InPlace, result)) => result,
            Ok((in_place::Encoded::Elsewhere, result)) => {
                self.write_encoded();
                result
            }
            Err(fill) => {
                self.encoder.clear();
                let result = fill(&mut self.encoder);
                self.write_encoded();
                result
            }
        }
    }

    /// Writes the packet that the encoder holds in private memory.
    #[cold]
    fn write_encoded(&mut self) {
        let mut encoder = std::mem::take(&mut self.encoder);
        self.write_packet(encoder.as_slice());
        if encoder.heap_capacity() > MAX_KEPT_CAPACITY {
            encoder = Writer::new();
        }
        self.encoder = encoder;
    }

    /// Returns the current chunk, and has the endpoint commit it and all other waiting chunks.
    pub fn flush(&mut self) {
        if let Some(open) = self.held.take() {
            self.return_chunk(open);
        }
        self.arbiter.wake_now();
    }

    #[cold]
    fn write_or_drop(&mut self, packet: &[u8]) {
        self.current = self.held.take();
        self.returned += self.held.taken_back();
        self.write_in_parts_or_drop(packet);
        if let Some(open) = self.current.take() {
            self.held.put(open);
        }
    }

    fn write_in_parts_or_drop(&mut self, packet: &[u8]) {
        let parts = Parts {
            head: self.preamble.bytes(),
            tail: packet,
        };
        match self.write_parts(parts) {
            Ok(()) => self.preamble = Preamble::None,
            Err(NoChunk) => {
                let first = self.preamble != Preamble::AfterLoss;
                self.losses += u64::from(first);
                self.preamble = Preamble::AfterLoss;
                let mut told = Told::No;
                if let Some(mut open) = self.current.take() {
                    told = open.mark_loss();
                    self.returned += open.used as u64;
                    self.arbiter.return_chunk(open.chunk, self.target);
                }
                if first {
                    if told == Told::No {
                        self.arbiter.note_untold_loss(self.target);
                    }
                    // A batch that waits for its end holds up the writer.
                    self.arbiter.wake_now();
                }
            }
        }
    }

    /// Writes a packet into as many chunks as it takes. If there are not enough, the current chunk has room left where the packet was to begin or to
    /// go on, or there is none.
    fn write_parts(&mut self, mut rest: Parts<'_>) -> Result<(), NoChunk> {
        // Without waiting, a packet can get at most all chunks of the buffer. A larger one should not take them in vain.
        if self.policy == BufferExhaustedPolicy::Drop && rest.len() > self.arbiter.capacity() {
            return Err(NoChunk);
        }
        if !self
            .current
            .as_ref()
            .is_some_and(|open| open.can_begin(rest.len()))
        {
            self.turn_over()?;
        }
        while let Some(open) = &mut self.current {
            if open.fits(rest.len()) {
                open.append(rest);
                if open.room() > 0 {
                    open.publish();
                } else if let Some(full) = self.current.take() {
                    self.return_chunk(full);
                }
                break;
            }
            // The fragment counts, and the service learns of it, only when there is a chunk for the next one. Otherwise it is overwritten.
            let fragment = open.write_fragment(&mut rest);
            let mut next = self.take_chunk(FirstPacket::Continued)?;
            if let Some(full) = &mut self.current {
                full.keep_fragment(fragment);
                std::mem::swap(full, &mut next);
                self.return_chunk(next);
            }
        }
        Ok(())
    }

    /// Returns the current chunk, and takes the next one. If there is none the current one stays, so that the loss can be marked in it; but a writer
    /// that waits returns it, so that it keeps no chunk from others.
    fn turn_over(&mut self) -> Result<(), NoChunk> {
        let new = self.new_chunk(FirstPacket::Whole);
        let next = match self.arbiter.take_free_chunk(new) {
            None if self.policy != BufferExhaustedPolicy::Drop => {
                if let Some(full) = self.current.take() {
                    self.return_chunk(full);
                }
                self.arbiter.await_chunk(new, self.policy)
            }
            next => next,
        };
        let next = self.begin(next)?;
        if let Some(full) = self.current.replace(next) {
            self.return_chunk(full);
        }
        Ok(())
    }

    fn take_chunk(&mut self, first: FirstPacket) -> Result<OpenChunk, NoChunk> {
        let new = self.new_chunk(first);
        let chunk = self.arbiter.take_free_chunk(new);
        let chunk = chunk.or_else(|| self.arbiter.await_chunk(new, self.policy));
        self.begin(chunk)
    }

    fn new_chunk(&self, first: FirstPacket) -> NewChunk {
        NewChunk {
            writer: self.id,
            chunk: self.next_chunk,
            first,
        }
    }

    fn begin(&mut self, chunk: Option<WriteChunk>) -> Result<OpenChunk, NoChunk> {
        let chunk = chunk.ok_or(NoChunk)?;
        self.next_chunk = self.next_chunk.next();
        Ok(OpenChunk::new(chunk))
    }

    fn return_chunk(&mut self, mut open: OpenChunk) {
        open.close();
        self.returned += open.used as u64;
        self.arbiter.return_chunk(open.chunk, self.target);
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        if let Some(open) = self.held.take() {
            self.return_chunk(open);
        }
        let chunks = match self.next_chunk {
            ChunkId(0) => HadChunks::None,
            _ => HadChunks::Some,
        };
        self.arbiter.end_writer(self.id, chunks);
    }
}

/// All chunks are in use.
#[derive(Debug)]
struct NoChunk;

/// The preamble and the packet, or the remaining part of them.
#[derive(Clone, Copy)]
struct Parts<'a> {
    head: &'a [u8],
    tail: &'a [u8],
}

impl Parts<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Takes the first `len` bytes off.
    fn split_off_front(&mut self, len: usize) -> Self {
        let (head, rest_of_head) = self.head.split_at(len.min(self.head.len()));
        let (tail, rest_of_tail) = self.tail.split_at(len - head.len());
        *self = Parts {
            head: rest_of_head,
            tail: rest_of_tail,
        };
        Parts { head, tail }
    }
}

/// The chunk that a writer is filling.
#[derive(Debug)]
struct OpenChunk {
    chunk: WriteChunk,
    /// Bytes of the payload that finished packets and fragments take up.
    used: usize,
    /// The number of these packets and fragments.
    packets: u16,
}

impl OpenChunk {
    fn new(chunk: WriteChunk) -> Self {
        Self {
            chunk,
            used: 0,
            packets: 0,
        }
    }

    /// The packet count, as other threads see it: whether the chunk has packets, and whether more have come.
    #[inline(always)]
    fn mark(&self) -> u32 {
        self.packets.into()
    }

    #[inline]
    fn room(&self) -> usize {
        self.chunk.payload_len() - self.used
    }

    /// Whether another packet can be counted: one count is kept for the empty packet at the end.
    #[inline]
    fn may_count_another(&self) -> bool {
        self.packets < MAX_PACKETS_PER_CHUNK - 1
    }

    /// Whether a packet of `len` bytes fits.
    #[inline]
    fn fits(&self, len: usize) -> bool {
        self.may_count_another() && varint_len(len as u64) + len <= self.room()
    }

    /// Whether there is room left even after a packet of `len` bytes.
    #[inline]
    fn has_room_beyond(&self, len: usize) -> bool {
        self.may_count_another() && MAX_SIZE_LEN + len < self.room()
    }

    /// Whether a packet of `len` bytes should be begun here, whole or as a fragment.
    fn can_begin(&self, len: usize) -> bool {
        self.fits(len) || (self.may_count_another() && self.room() >= MIN_FRAGMENT_ROOM)
    }

    /// Appends a packet, or the last fragment of one, that fits.
    #[inline]
    fn append(&mut self, packet: Parts<'_>) {
        let len = packet.len();
        let size_len = varint_len(len as u64);
        self.put(packet, size_len);
        self.used += size_len + len;
        self.packets += 1;
    }

    /// Fills all the room with the front of a packet that does not fit. The packet count does not include it yet.
    fn write_fragment(&mut self, rest: &mut Parts<'_>) -> Fragment {
        let room = self.room();
        // The length may come out one byte shorter than the room's; it is padded then, so that no byte is left over.
        let size_len = varint_len(room as u64);
        self.put(rest.split_off_front(room - size_len), size_len);
        Fragment {
            end: self.used + room,
        }
    }

    /// Makes the fragment written last the chunk's last packet.
    fn keep_fragment(&mut self, fragment: Fragment) {
        self.used = fragment.end;
        self.packets += 1;
        self.chunk.set_flags(ChunkFlags::LAST_CONTINUES);
    }

    /// Writes a packet behind its length, which takes `size_len` bytes, at the end of the used payload.
    #[inline]
    fn put(&mut self, packet: Parts<'_>, size_len: usize) {
        let mut size = [0; MAX_SIZE_LEN];
        put_padded_varint(&mut size[..size_len], packet.len() as u64);
        if self.room() >= MAX_SIZE_LEN {
            // A store of constant length. The packet overwrites the excess bytes, or they are unused.
            self.chunk.write(self.used, &size);
        } else {
            self.chunk.write(self.used, &size[..size_len]);
        }
        let at = self.used + size_len;
        if !packet.head.is_empty() {
            self.chunk.write(at, packet.head);
        }
        self.chunk.write(at + packet.head.len(), packet.tail);
    }

    /// Shows the service the appended packets: the count includes the next packet, which may be the empty one at the end.
    #[inline]
    fn publish(&mut self) {
        self.chunk.publish(self.packets + 1);
    }

    /// Makes the chunk ready to be completed.
    fn close(&mut self) {
        if self.room() > 0 {
            // A size of zero: the empty packet that the count has announced.
            self.chunk.write(self.used, &[0]);
            self.publish();
        } else {
            self.chunk.publish(self.packets);
        }
    }

    /// As [`OpenChunk::close`], but marks that packets which should follow here were dropped, if there is room for the mark.
    fn mark_loss(&mut self) -> Told {
        if self.room() < MAX_SIZE_LEN {
            self.close();
            return Told::No;
        }
        let mut size = [0; MAX_SIZE_LEN];
        put_padded_varint(&mut size, DROPPED_PACKET_SIZE.into());
        self.chunk.write(self.used, &size);
        self.publish();
        Told::Yes
    }
}

/// Whether the service is told of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    No,
    Yes,
}

/// Makes a new chunk one that only marks a loss.
pub(crate) fn mark_loss(chunk: WriteChunk) -> WriteChunk {
    let mut open = OpenChunk::new(chunk);
    open.mark_loss();
    open.chunk
}

/// A fragment that was written and does not count yet.
struct Fragment {
    /// Where it ends in the chunk's payload.
    end: usize,
}
