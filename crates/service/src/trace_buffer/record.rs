//! The memory of a trace buffer: a ring of records, each a 16-byte header followed by its bytes.
//!
//! Called by the write and the read path only. A record is either a *chunk* (fragments of one sequence, with how
//! far they have been consumed) or a *free run* (space that can be written over without losing anything).
//! Records tile `[0, used)` without holes; the write cursor always stands on a record boundary or at `used`.
//!
//! Keeping the headers inside the ring, and not in a table beside it, bounds the bookkeeping by the size the
//! user asked for: a producer that commits a million empty chunks pays for them with its buffer space. The
//! header is as long as the one in shared memory, so the accounting in bytes agrees with upstream's.
//!
//! A chunk lies within one piece of the memory. The clone of a ring shares its memory, so reading the clone must not write there: it notes the
//! headers that it changes elsewhere ([`Changed`]).

use std::collections::HashMap;

use ferretto_smb::{prefetch_for_reading, prefetch_for_writing};
use ferretto_wire::bulk;

use super::TraceBufferError;
use super::memory::{KeptPieces, Memory};
use crate::ids::{ChunkId, IdHasher};

/// Size of a record's header, in bytes. Also the alignment of records: a piece cut off a record is always large enough to hold the header of a free
/// run.
pub(super) const HEADER_SIZE: u32 = 16;

/// The largest payload a chunk can have: its size must fit the header's 16-bit fields. Chunks in shared memory
/// are at most 64 KiB including their own header, so nothing well-formed is larger.
pub(super) const MAX_PAYLOAD: usize = u16::MAX as usize;

/// How much of a chunk is prefetched at once, in bytes: the usual chunk whole. In larger copies the processor foresees the next bytes by itself.
const PREFETCHED: u32 = 4096;

/// Packets of up to this many bytes are read faster than hints are given: the processor sees that every line is needed.
const DENSE: usize = 128;

/// Index of a sequence in [`super::sequence::Sequences`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u32);

/// State of one chunk: the flags of the shared memory ABI in the low bits, the buffer's own above them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    /// ABI: the first fragment continues a packet from the previous chunk.
    pub(super) const CONTINUES_FROM_PREVIOUS: Self = Self(1);
    /// ABI: the last fragment continues in the next chunk.
    pub(super) const CONTINUES_ON_NEXT: Self = Self(1 << 1);
    /// ABI: the last fragment has holes that patches will fill.
    pub(super) const NEEDS_PATCHING: Self = Self(1 << 2);
    const ABI: u8 = 0b111;

    /// The bytes after the last kept fragment were not fragments.
    pub(super) const MALFORMED: Self = Self(1 << 5);
    /// The writer said that it dropped packets after this chunk.
    pub(super) const WRITER_ABORTED: Self = Self(1 << 6);
    /// Scraped while the producer was still writing: more fragments will follow.
    pub(super) const INCOMPLETE: Self = Self(1 << 7);

    /// The flags of a chunk header in shared memory; unknown bits are ignored.
    pub(super) fn from_abi(bits: u8) -> Self {
        Self(bits & Self::ABI)
    }

    pub(super) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(super) fn insert(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    pub(super) fn remove(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }

    /// Whether every ABI flag of `other` is also set here.
    pub(super) fn keeps_abi_flags_of(self, other: Self) -> bool {
        other.0 & Self::ABI & !self.0 == 0
    }
}

/// Header of a chunk. Invariant: `consumed <= payload <= reserved`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) slot: Slot,
    /// Bytes set aside for the payload. More than `payload` only for scraped chunks, which may grow.
    pub(super) reserved: u16,
    /// Bytes of fragments, each with its length prefix.
    pub(super) payload: u16,
    /// The start of the next fragment to be read, in bytes from the start of the payload.
    pub(super) consumed: u16,
    pub(super) flags: Flags,
}

impl Chunk {
    /// Bytes the record takes in the ring, header and alignment included.
    pub(super) fn outer_size(&self) -> u32 {
        outer_size(usize::from(self.reserved))
    }

    pub(super) fn is_drained(&self) -> bool {
        self.consumed == self.payload
    }

    /// Whether packets of about `size` bytes are so far apart that reading would wait for the length of each, which gives the place of the next.
    #[inline]
    pub(super) fn is_sparse(&self, size: usize) -> bool {
        size > DENSE && usize::from(self.payload - self.consumed) > DENSE
    }
}

/// Bytes a record with `payload` bytes reserved takes in the ring. `payload` is at most [`MAX_PAYLOAD`].
pub(super) fn outer_size(payload: usize) -> u32 {
    (HEADER_SIZE + payload as u32).next_multiple_of(HEADER_SIZE)
}

/// Header of a run of free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeRun {
    /// Length of the run, this header included. Never 0.
    pub(super) bytes: u32,
    /// How much of it was counted in `padding_bytes_written` and not yet in `padding_bytes_cleared`.
    pub(super) padding: u32,
}

/// The record at some offset of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record {
    Chunk(Chunk),
    Free(FreeRun),
}

const KIND_FREE: u8 = 0;
const KIND_CHUNK: u8 = 1;

/// The ring of records.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Memory,
    /// A clone's headers. `None` in a ring that has its memory for itself, or copies what it writes to.
    changed: Option<Box<Changed>>,
}

/// The headers that reading a clone has changed, by position.
#[derive(Clone, Debug, Default)]
struct Changed {
    /// The last one: reading a chunk changes its header with each packet.
    last: Option<(u32, u128)>,
    others: HashMap<u32, u128, IdHasher>,
}

impl Changed {
    fn get(&self, at: u32) -> Option<u128> {
        match self.last {
            Some((last, header)) if last == at => Some(header),
            _ => self.others.get(&at).copied(),
        }
    }

    fn put(&mut self, at: u32, header: u128) {
        let before = self.last.replace((at, header));
        if let Some((other, header)) = before.filter(|(other, _)| *other != at) {
            self.others.insert(other, header);
        }
    }

    /// `at` is no start of a record any more.
    fn forget(&mut self, at: u32) {
        self.last = self.last.filter(|(last, _)| *last != at);
        self.others.remove(&at);
    }
}

impl Ring {
    /// Reserves, without touching, `capacity` bytes of memory; `capacity` is a multiple of [`HEADER_SIZE`]. `piece` is the size of the pieces of memory
    /// that clones share, a power of two.
    pub(super) fn new(capacity: u32, piece: u32) -> Result<Self, TraceBufferError> {
        debug_assert!(capacity.is_multiple_of(HEADER_SIZE) && piece >= HEADER_SIZE);
        Ok(Self {
            memory: Memory::with_capacity(capacity, piece)?,
            changed: None,
        })
    }

    /// A clone, which can be read and not written. It shares the memory in use.
    pub(super) fn share(&mut self) -> Result<Self, TraceBufferError> {
        Ok(Self {
            memory: self.memory.share()?,
            changed: Some(self.changed.clone().unwrap_or_default()),
        })
    }

    /// Keeps the memory at these places as it is now.
    pub(super) fn keep(&mut self, places: impl Iterator<Item = u32>) -> Result<KeptPieces, TraceBufferError> {
        self.memory.keep(places)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }

    /// High-water mark: bytes of the ring that were ever written.
    pub(super) fn used(&self) -> u32 {
        self.memory.used()
    }

    /// The size of the largest chunk that can be written at `at` with its header, in bytes. A larger one may have room further on.
    pub(super) fn room(&self, at: u32) -> u32 {
        self.memory.room(at)
    }

    /// Has the processor fetch the place where a chunk with `payload` bytes may be written next.
    pub(super) fn prefetch_place(&self, at: u32, payload: usize) {
        let size = outer_size(payload.min(MAX_PAYLOAD)).min(PREFETCHED) as usize;
        let place = self.memory.from(at);
        prefetch_for_writing(&place[..place.len().min(size)]);
    }

    /// Has the processor fetch the beginning of the chunk at `at`.
    pub(super) fn prefetch_beginning(&self, at: u32) {
        prefetch_for_reading(self.memory.bytes(at, HEADER_SIZE as usize));
    }

    /// Has the processor fetch the unread part of the chunk at `at`.
    #[cold]
    pub(super) fn prefetch_rest(&self, at: u32, chunk: &Chunk) {
        let payload = self.payload(at, chunk);
        let start = usize::from(chunk.consumed);
        let end = payload.len().min(start + PREFETCHED as usize);
        prefetch_for_reading(&payload[start..end]);
    }

    #[inline]
    fn header(&self, at: u32) -> u128 {
        if let Some(changed) = &self.changed
            && let Some(header) = changed.get(at)
        {
            return header;
        }
        let mut header = [0; HEADER_SIZE as usize];
        header.copy_from_slice(self.memory.bytes(at, HEADER_SIZE as usize));
        u128::from_le_bytes(header)
    }

    #[inline]
    fn put_header(&mut self, at: u32, header: u128) {
        match &mut self.changed {
            None => self
                .memory
                .bytes_mut(at, HEADER_SIZE as usize)
                .copy_from_slice(&header.to_le_bytes()),
            Some(changed) => changed.put(at, header),
        }
    }

    /// The record that starts at `at`.
    #[inline]
    pub(super) fn record(&self, at: u32) -> Record {
        let header = self.header(at);
        match (header >> 120) as u8 {
            KIND_CHUNK => Record::Chunk(decode_chunk(header)),
            _ => Record::Free(FreeRun {
                bytes: header as u32,
                padding: (header >> 32) as u32,
            }),
        }
    }

    /// The chunk that starts at `at`; only for offsets held by a sequence, which are always chunks.
    #[inline]
    pub(super) fn chunk(&self, at: u32) -> Chunk {
        let header = self.header(at);
        debug_assert_eq!((header >> 120) as u8, KIND_CHUNK, "no chunk at {at}");
        decode_chunk(header)
    }

    /// Replaces the header of the chunk at `at`; its payload stays.
    #[inline]
    pub(super) fn put_chunk(&mut self, at: u32, chunk: &Chunk) {
        self.put_header(at, encode_chunk(chunk));
    }

    /// Marks everything from `at` to `at + run.bytes` as free.
    #[inline]
    pub(super) fn put_free(&mut self, at: u32, run: FreeRun) {
        debug_assert!(run.bytes >= HEADER_SIZE && at + run.bytes <= self.used());
        let header = u128::from(run.bytes) | u128::from(run.padding) << 32 | u128::from(KIND_FREE) << 120;
        self.put_header(at, header);
    }

    /// Makes the free run at `second`, which follows the one at `first`, a part of it.
    #[inline]
    pub(super) fn join_free(&mut self, first: u32, second: u32) {
        if let (Record::Free(run), Record::Free(more)) = (self.record(first), self.record(second)) {
            let joined = FreeRun {
                bytes: run.bytes + more.bytes,
                padding: run.padding + more.padding,
            };
            self.put_free(first, joined);
            if let Some(changed) = &mut self.changed {
                changed.forget(second);
            }
        }
    }

    /// Makes the room at `at` a free run which is all padding. The records that were there before must have been evicted.
    pub(super) fn pad(&mut self, at: u32) {
        let bytes = self.room(at);
        self.memory.extend_to(at + bytes);
        self.put_free(
            at,
            FreeRun {
                bytes,
                padding: bytes,
            },
        );
    }

    /// Writes a new record where there is room for it; the records that were there before must have been evicted.
    pub(super) fn write(&mut self, at: u32, chunk: &Chunk, payload: &[u8]) {
        debug_assert_eq!(usize::from(chunk.payload), payload.len());
        debug_assert!(chunk.outer_size() <= self.room(at) && self.changed.is_none());
        let end = at + chunk.outer_size();
        if at == self.used() {
            self.memory.append(&encode_chunk(chunk).to_le_bytes());
            self.memory.append(payload);
            self.memory.extend_to(end);
            return;
        }
        self.memory.extend_to(end);
        self.put_chunk(at, chunk);
        self.overwrite(at, payload);
    }

    /// Replaces the first `payload.len()` bytes of the payload of the chunk at `at`.
    pub(super) fn overwrite(&mut self, at: u32, payload: &[u8]) {
        // With the header, because an empty payload may lie at the end of the memory.
        let record = self.memory.bytes_mut(at, HEADER_SIZE as usize + payload.len());
        bulk::copy(&mut record[HEADER_SIZE as usize..], payload);
    }

    /// Replaces `data.len()` bytes `offset` bytes into the payload of the chunk at `at`.
    pub(super) fn patch(&mut self, at: u32, offset: u16, data: &[u8]) {
        let start = at + HEADER_SIZE + u32::from(offset);
        self.memory.bytes_mut(start, data.len()).copy_from_slice(data);
    }

    /// Stores how far the chunk at `at` has been read, and returns it. The whole header is written, because it is read again soon, and a
    /// processor forwards a store only to loads that it covers.
    #[inline]
    pub(super) fn consume(&mut self, at: u32, consumed: u16) -> Chunk {
        let chunk = Chunk {
            consumed,
            ..self.chunk(at)
        };
        self.put_chunk(at, &chunk);
        chunk
    }

    /// The fragments of the chunk at `at`.
    #[inline]
    pub(super) fn payload(&self, at: u32, chunk: &Chunk) -> &[u8] {
        let record = self
            .memory
            .bytes(at, HEADER_SIZE as usize + usize::from(chunk.payload));
        &record[HEADER_SIZE as usize..]
    }

    /// The memory in use from `at` on, up to the end of the piece.
    #[inline]
    pub(super) fn bytes_from(&self, at: u32) -> &[u8] {
        self.memory.from(at)
    }

    /// The memory of the headers that reading a clone has changed, in bytes.
    pub(super) fn memory_of_changed_headers(&self) -> u64 {
        let entries = self
            .changed
            .as_ref()
            .map_or(0, |changed| changed.others.capacity());
        (entries * (size_of::<(u32, u128)>() + 1)) as u64
    }

    /// The pieces of memory in use.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (Option<usize>, u64)> {
        self.memory.pieces()
    }
}

// Header layout, little endian. Chunk: id u32, slot u32, reserved u16, payload u16, consumed u16, flags u8, kind u8.
// Free run: bytes u32, padding u32, 7 unused, kind u8.

fn encode_chunk(chunk: &Chunk) -> u128 {
    u128::from(chunk.id.0)
        | u128::from(chunk.slot.0) << 32
        | u128::from(chunk.reserved) << 64
        | u128::from(chunk.payload) << 80
        | u128::from(chunk.consumed) << 96
        | u128::from(chunk.flags.0) << 112
        | u128::from(KIND_CHUNK) << 120
}

fn decode_chunk(header: u128) -> Chunk {
    Chunk {
        id: ChunkId(header as u32),
        slot: Slot((header >> 32) as u32),
        reserved: (header >> 64) as u16,
        payload: (header >> 80) as u16,
        consumed: (header >> 96) as u16,
        flags: Flags((header >> 112) as u8),
    }
}
