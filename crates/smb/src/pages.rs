//! Shared memory seen as pages and chunks: turns page and chunk numbers into positions. Both sides build on it.

use std::fmt;

use crate::chunk::{
    CHUNK_HEADER_SIZE, CHUNK_ID_OFFSET, ChunkFlags, ChunkHeader, ChunkId, PACKETS_OFFSET, WRITER_ID_OFFSET,
    WriterId, pack_packets, unpack_packets,
};
use crate::memory::SharedMemory;
use crate::page::{PAGE_HEADER_SIZE, PageHeader, PageLayout, PageSize};
use crate::state::Won;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The memory does not divide into pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesError {
    /// Bytes of memory.
    pub size: usize,
    /// The size of page asked for.
    pub page_size: PageSize,
}

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, page_size } = self;
        write!(
            f,
            "a shared memory buffer of {size} bytes does not divide into pages of {} bytes; choose another page size",
            page_size.bytes()
        )
    }
}

impl std::error::Error for PagesError {}

#[derive(Clone, Debug)]
pub(crate) struct Pages {
    memory: Arc<SharedMemory>,
    page_size: PageSize,
    count: usize,
}

/// A chunk that the caller has a right to touch, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) page: usize,
    pub(crate) won: Won,
    /// The offset of the chunk's header from the start of the memory.
    offset: usize,
    /// Bytes of the chunk, its header included.
    size: usize,
}

impl ChunkPlace {
    #[inline]
    pub(crate) fn payload_offset(&self) -> usize {
        self.offset + CHUNK_HEADER_SIZE
    }

    #[inline]
    pub(crate) fn payload_len(&self) -> usize {
        self.size - CHUNK_HEADER_SIZE
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

impl Pages {
    pub(crate) fn new(memory: Arc<SharedMemory>, page_size: PageSize) -> Result<Self, PagesError> {
        let size = memory.size();
        if !size.is_multiple_of(page_size.bytes()) {
            return Err(PagesError { size, page_size });
        }
        Ok(Self {
            memory,
            page_size,
            count: size / page_size.bytes(),
        })
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    #[inline]
    pub(crate) fn page_size(&self) -> PageSize {
        self.page_size
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The header word of `page`, which must be one of the [`count`](Self::count).
    #[inline]
    pub(crate) fn word(&self, page: usize) -> &AtomicU32 {
        self.memory.word(page * self.page_size.bytes())
    }

    /// Reads the header of `page`, once. Afterwards the writes of its chunks' previous owners are visible.
    #[inline]
    pub(crate) fn header(&self, page: usize) -> PageHeader {
        PageHeader::from_bits(self.word(page).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn place(&self, page: usize, won: Won) -> ChunkPlace {
        let size = won.layout.chunk_size(self.page_size);
        let offset = page * self.page_size.bytes() + PAGE_HEADER_SIZE + won.chunk * size;
        ChunkPlace {
            page,
            won,
            offset,
            size,
        }
    }

    /// Writes a chunk's header, the packet count last and with release ordering.
    #[inline]
    pub(crate) fn store_header(&self, place: &ChunkPlace, header: ChunkHeader) {
        let (chunk, writer) = (header.chunk.0, header.writer.0);
        self.memory
            .half_word(place.offset + WRITER_ID_OFFSET)
            .store(writer, Ordering::Relaxed);
        self.memory
            .word(place.offset + CHUNK_ID_OFFSET)
            .store(chunk, Ordering::Relaxed);
        self.store_packets(place, pack_packets(header.packet_count, header.flags));
    }

    /// Clears a chunk's header, which tells scrapers that the chunk's next owner has not written its own yet.
    #[inline]
    pub(crate) fn clear_header(&self, place: &ChunkPlace) {
        let cleared = ChunkHeader {
            writer: WriterId(0),
            chunk: ChunkId(0),
            packet_count: 0,
            flags: ChunkFlags::NONE,
        };
        self.store_header(place, cleared);
    }

    /// Clears the headers of all chunks but the first that `page` has if it is cut by `layout`.
    #[cold]
    pub(crate) fn clear_headers(&self, page: usize, layout: PageLayout) {
        for chunk in 1..layout.chunks() {
            self.clear_header(&self.place(page, Won { chunk, layout }));
        }
    }

    /// Publishes packet count and flags, and with them all that was written to the chunk before.
    #[inline]
    pub(crate) fn store_packets(&self, place: &ChunkPlace, packed: u16) {
        self.packets(place).store(packed, Ordering::Release);
    }

    /// Where a chunk's packet count and flags are.
    #[inline]
    pub(crate) fn packets(&self, place: &ChunkPlace) -> &AtomicU16 {
        self.memory.half_word(place.offset + PACKETS_OFFSET)
    }

    /// Reads a chunk's header, each field once and the packet count first, so that the counted packets are visible afterwards.
    #[inline]
    pub(crate) fn load_header(&self, place: &ChunkPlace) -> ChunkHeader {
        let packed = self.packets(place).load(Ordering::Acquire);
        let (packet_count, flags) = unpack_packets(packed);
        ChunkHeader {
            writer: WriterId(
                self.memory
                    .half_word(place.offset + WRITER_ID_OFFSET)
                    .load(Ordering::Relaxed),
            ),
            chunk: ChunkId(
                self.memory
                    .word(place.offset + CHUNK_ID_OFFSET)
                    .load(Ordering::Relaxed),
            ),
            packet_count,
            flags,
        }
    }
}
