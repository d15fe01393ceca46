//! The producer's side: wins chunks to write into, and completes them.
//!
//! Called by the arbiter of `ferretto-client` from any thread, without locks. A [`WriteChunk`] belongs to one writer
//! until it is completed; the service meanwhile looks at no more than the packets that its count vouches for.

use crate::chunk::{ChunkFlags, ChunkHeader, ChunkId, MAX_PACKETS_PER_CHUNK, WriterId, pack_packets};
use crate::memory::SharedMemory;
use crate::page::{PageHeader, PageLayout, PageSize};
use crate::pages::{ChunkPlace, Pages, PagesError};
use crate::state::{self, Won};
use ferretto_wire::bulk;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

/// How a chunk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstPacket {
    /// With a packet.
    Whole,
    /// With a fragment that continues the last packet of the writer's previous chunk.
    Continued,
}

/// The header of a chunk, from the moment at which it is won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewChunk {
    /// The chunk's writer.
    pub writer: WriterId,
    /// Its place in the writer's sequence.
    pub chunk: ChunkId,
    /// How it begins.
    pub first: FirstPacket,
}

/// A shared memory buffer as its producer sees it.
#[derive(Debug)]
pub struct ProducerSmb {
    pages: Pages,
    /// The page where the last chunk was won: the pages behind it are the most likely to be free, for chunks come back
    /// about in the order in which they were won. Goes back to the first page with [`ProducerSmb::rewind`]. A hint: any value
    /// will do.
    cursor: AtomicUsize,
    /// The numbers of cuts of pages that have begun, and that have ended. During a cut the page's chunks cannot be won yet.
    cuts: [AtomicUsize; 2],
    /// Bytes of the chunks that were won and not completed.
    open: AtomicUsize,
}

/// How often the pages are looked through again because one of them was just being cut.
const MAX_SCANS: usize = 64;

impl ProducerSmb {
    /// Divides `memory` into pages.
    ///
    /// # Errors
    /// If the memory is no whole number of pages.
    pub fn new(memory: Arc<SharedMemory>, page_size: PageSize) -> Result<Self, PagesError> {
        Ok(Self {
            pages: Pages::new(memory, page_size)?,
            cursor: AtomicUsize::new(0),
            cuts: Default::default(),
            open: AtomicUsize::new(0),
        })
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        self.pages.memory()
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> PageSize {
        self.pages.page_size()
    }

    /// How many pages there are.
    pub fn page_count(&self) -> usize {
        self.pages.count()
    }

    /// Bytes of the chunks that are being written.
    #[inline]
    pub fn open_bytes(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Looks for free chunks from the first page on again. To be called when the service is told of chunks, because it will soon have freed the
    /// chunks before: so a large buffer is used only as far as need be, and the used part stays in the processor's caches.
    pub fn rewind(&self) {
        self.cursor.store(0, Ordering::Relaxed);
    }

    /// Wins a free chunk; pages that are free are partitioned by `layout`. `None` if all chunks are in use.
    ///
    /// In the usual case the cursor's page or the next one has a free chunk. Only a full buffer is searched whole: one load per page.
    pub fn take_chunk(self: &Arc<Self>, layout: PageLayout, new: NewChunk) -> Option<WriteChunk> {
        let [begun, ended] = &self.cuts;
        for _ in 0..MAX_SCANS {
            let ended_before = ended.load(Ordering::Acquire);
            if let Some(place) = self.scan(layout) {
                return Some(self.start_chunk(place, new));
            }
            if begun.load(Ordering::Acquire) == ended_before {
                return None;
            }
            // Some thread has or had a page to itself, which was about to have chunks for others.
            std::thread::yield_now();
        }
        None
    }

    fn scan(&self, layout: PageLayout) -> Option<ChunkPlace> {
        let count = self.pages.count();
        let start = self.cursor.load(Ordering::Relaxed);
        for step in 0..count {
            let page = (start + step) % count;
            let won = match self.pages.header(page) {
                PageHeader::FREE => self.take_free_page(page, layout),
                _ => state::take_free_chunk(self.pages.word(page)),
            };
            let Some(won) = won else { continue };
            if step > 0 {
                self.cursor.store(page, Ordering::Relaxed);
            }
            return Some(self.pages.place(page, won));
        }
        None
    }

    fn take_free_page(&self, page: usize, layout: PageLayout) -> Option<Won> {
        let word = self.pages.word(page);
        if layout == PageLayout::Div1 {
            return state::take_free_page(word, layout, || ());
        }
        let [begun, ended] = &self.cuts;
        // Before others can find the page whole, and after they can find its chunks.
        begun.fetch_add(1, Ordering::AcqRel);
        let won = state::take_free_page(word, layout, || self.pages.clear_headers(page, layout));
        ended.fetch_add(1, Ordering::AcqRel);
        won
    }

    fn start_chunk(self: &Arc<Self>, place: ChunkPlace, new: NewChunk) -> WriteChunk {
        let (packet_count, flags) = match new.first {
            FirstPacket::Whole => (0, ChunkFlags::NONE),
            FirstPacket::Continued => (1, ChunkFlags::FIRST_CONTINUES),
        };
        let header = ChunkHeader {
            writer: new.writer,
            chunk: new.chunk,
            packet_count,
            flags,
        };
        self.pages.store_header(&place, header);
        self.open.fetch_add(place.size(), Ordering::Relaxed);
        let memory = self.pages.memory();
        WriteChunk {
            payload: memory.at(place.payload_offset(), place.payload_len()),
            payload_len: place.payload_len(),
            packets: NonNull::from(self.pages.packets(&place)),
            smb: self.clone(),
            place,
            flags,
        }
    }
}

/// A few bytes of a chunk's payload, for rows of small stores; see [`WriteChunk::window`].
#[derive(Debug)]
pub struct ChunkWindow<'a, const N: usize> {
    /// Valid for writing `N` bytes as long as the chunk is borrowed.
    start: NonNull<u8>,
    chunk: PhantomData<&'a mut WriteChunk>,
}

impl<const N: usize> ChunkWindow<'_, N> {
    /// Stores `bytes` at `offset` of the window.
    ///
    /// # Panics
    /// If they do not fit there.
    #[inline(always)]
    pub fn store<const M: usize>(&mut self, offset: usize, bytes: [u8; M]) {
        const { assert!(M <= N) };
        assert!(offset <= N - M, "position outside the window");
        // SAFETY: `M` bytes at `offset` are within the window; the write needs no alignment.
        unsafe { self.start.add(offset).cast::<[u8; M]>().write_unaligned(bytes) };
    }
}

/// A chunk in state `BeingWritten`. Complete it with [`WriteChunk::complete`]. A dropped one stays in that state, lost to both sides, because the ABI
/// has no way back.
#[must_use = "a chunk that is not completed is lost"]
#[derive(Debug)]
pub struct WriteChunk {
    /// The address of the payload, valid for `payload_len` bytes as long as `smb` is held.
    payload: NonNull<u8>,
    payload_len: usize,
    /// The half-word in the header that counts packets, valid as the payload is.
    packets: NonNull<AtomicU16>,
    smb: Arc<ProducerSmb>,
    place: ChunkPlace,
    /// The flags that were last written into the header; never read back from shared memory.
    flags: ChunkFlags,
}

// SAFETY: the pointers lead into memory that `smb`, which may be sent, keeps mapped, and this chunk alone has the right to write
// there, on whichever thread it is.
unsafe impl Send for WriteChunk {}
// SAFETY: nothing is written through `&WriteChunk`.
unsafe impl Sync for WriteChunk {}

impl WriteChunk {
    /// Index of its page.
    pub fn page(&self) -> usize {
        self.place.page
    }

    /// Index within its page.
    pub fn index(&self) -> usize {
        self.place.won.chunk
    }

    /// Bytes it takes up in the buffer, its header included.
    pub fn size(&self) -> usize {
        self.place.size()
    }

    /// Bytes there are for packets.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Copies `bytes` to `offset` of the payload.
    ///
    /// # Panics
    /// If they do not fit there.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the payload is valid for writing the bytes' length at `offset`, as just checked. They cannot overlap, because no slice is ever made
        // of the mapping.
        unsafe {
            let to = self.payload.add(offset);
            bulk::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len());
        }
    }

    /// As [`WriteChunk::write`], for a length that the compiler knows: a store or two instead of a call.
    ///
    /// # Panics
    /// If they do not fit there.
    #[inline(always)]
    pub fn store<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        self.window::<N>(offset).store(0, bytes);
    }

    /// `N` bytes at `offset` of the payload, checked once.
    ///
    /// # Panics
    /// If there are not that many.
    #[inline(always)]
    pub fn window<const N: usize>(&mut self, offset: usize) -> ChunkWindow<'_, N> {
        self.check(offset, N);
        ChunkWindow {
            // SAFETY: `offset` is within the payload, or at its end.
            start: unsafe { self.payload.add(offset) },
            chunk: PhantomData,
        }
    }

    /// The address and the number of the payload's bytes from `offset` on, for a `ferretto_wire::Writer` that encodes in place. Valid as long as this
    /// chunk is neither completed nor dropped. To be accessed through this pointer only, and never by reference.
    ///
    /// # Panics
    /// If `offset` lies outside the payload.
    #[inline]
    pub fn region(&mut self, offset: usize) -> (NonNull<u8>, usize) {
        self.check(offset, 0);
        // SAFETY: `offset` is within the payload, or at its end.
        (unsafe { self.payload.add(offset) }, self.payload_len - offset)
    }

    /// Tells the service that packets 1 to `count - 1` are written, and that packet `count` was begun. The bytes of written packets must not change
    /// any more.
    ///
    /// # Panics
    /// If `count` is above [`MAX_PACKETS_PER_CHUNK`].
    #[inline(always)]
    pub fn publish(&mut self, count: u16) {
        assert!(
            count <= MAX_PACKETS_PER_CHUNK,
            "a chunk cannot count {count} packets"
        );
        // SAFETY: the header is mapped as long as `smb` is held. In this process it is only accessed as atomics.
        let packets = unsafe { self.packets.as_ref() };
        packets.store(pack_packets(count, self.flags), Ordering::Release);
    }

    /// Sets `flags`; the next [`WriteChunk::publish`] tells the service.
    #[inline]
    pub fn set_flags(&mut self, flags: ChunkFlags) {
        self.flags = self.flags.with(flags);
    }

    /// Hands the chunk over to the service, which reads it when it is told of it by `CommitData`, or when it scrapes.
    pub fn complete(self) {
        self.smb.open.fetch_sub(self.place.size(), Ordering::Relaxed);
        state::complete(self.smb.pages.word(self.place.page), self.place.won.chunk);
    }

    #[inline(always)]
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.payload_len && len <= self.payload_len - offset,
            "position outside the chunk's payload"
        );
    }
}
