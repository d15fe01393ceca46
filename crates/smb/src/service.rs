//! The service's side: copies chunks out of the buffer of a producer that it does not trust.
//!
//! The page and chunk numbers come from the producer's `CommitData`, everything else from memory that it writes. So numbers are checked, words are
//! read once, the payload is copied whole into private memory, and invalid chunks are refused with the rule that was broken. Nothing here waits for
//! the producer.

use std::fmt;
use std::ops::ControlFlow;

use crate::chunk::{CHUNK_HEADER_SIZE, ChunkHeader, ChunkId, WriterId};
use crate::memory::SharedMemory;
use crate::page::{ChunkState, PageHeader, PageSize};
use crate::pages::{ChunkPlace, Pages, PagesError};
use crate::state::{self, Won};
use std::sync::Arc;

/// Why a chunk that a producer committed was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRefused {
    /// The buffer has no such page.
    NoSuchPage {
        /// How many it has.
        pages: usize,
    },
    /// The page has no such chunk.
    NoSuchChunk {
        /// How many it has; 0 if it is not partitioned, or by a layout that does not exist.
        chunks: usize,
    },
    /// The chunk is not there to be read.
    NotComplete {
        /// The state it is in.
        state: ChunkState,
    },
    /// The page's header changed too often to be exchanged.
    Contended,
    /// The producer touched the state of a chunk that was being read.
    ChangedWhileRead,
}

impl fmt::Display for ChunkRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkRefused::NoSuchPage { pages } => {
                write!(f, "the shared memory buffer has {pages} pages only")
            }
            ChunkRefused::NoSuchChunk { chunks } => {
                write!(f, "the page is partitioned into {chunks} chunks only")
            }
            ChunkRefused::NotComplete { state } => write!(f, "the chunk is in state {state:?}, not Complete"),
            ChunkRefused::Contended => f.write_str("the page's header never holds still"),
            ChunkRefused::ChangedWhileRead => {
                f.write_str("the chunk's state was changed while it was being read")
            }
        }
    }
}

impl std::error::Error for ChunkRefused {}

/// Whether a chunk that was scraped is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It does not change any more. Its `CommitData` has yet to come.
    Complete,
    /// The producer is still writing: the last counted packet must be left out.
    BeingWritten,
}

/// A shared memory buffer as the service sees it.
#[derive(Debug)]
pub struct ServiceSmb {
    pages: Pages,
}

impl ServiceSmb {
    /// Divides `memory` into pages.
    ///
    /// # Errors
    /// If the memory is no whole number of pages.
    pub fn new(memory: Arc<SharedMemory>, page_size: PageSize) -> Result<Self, PagesError> {
        Ok(Self {
            pages: Pages::new(memory, page_size)?,
        })
    }

    /// The memory, whose descriptor goes to the producer.
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

    /// The header of a page at this moment; `None` if there is no such page.
    pub fn page_header(&self, page: usize) -> Option<PageHeader> {
        (page < self.pages.count()).then(|| self.pages.header(page))
    }

    /// Moves a complete chunk out: replaces the contents of `payload` by a copy of the chunk's, and frees the chunk.
    ///
    /// The payload is all the room that the chunk has for packets. The caller has to find out from the copy how much of it is packets.
    ///
    /// # Errors
    /// If there is no such chunk, it is not complete, or the producer changes its state meanwhile.
    pub fn copy_chunk(
        &self,
        page: usize,
        chunk: usize,
        payload: &mut Vec<u8>,
    ) -> Result<ChunkHeader, ChunkRefused> {
        if page >= self.pages.count() {
            return Err(ChunkRefused::NoSuchPage {
                pages: self.pages.count(),
            });
        }
        let word = self.pages.word(page);
        let won = state::begin_read(word, chunk)?;
        let place = self.pages.place(page, won);
        let header = self.pages.load_header(&place);
        self.pages
            .memory()
            .copy_out(place.payload_offset(), place.payload_len(), payload);
        self.pages.clear_header(&place);
        state::end_read(word, won)?;
        Ok(header)
    }

    /// Shows `visit` every chunk with data that was not moved out yet, and leaves them all as they are. Chunks that are being written are shown when
    /// they hold at least one finished packet.
    ///
    /// Writers go on meanwhile. The scrape shows the state of each writer at one moment: it shows no chunk without all of its earlier chunks that
    /// were not moved out. (Ids wrap, so that chunks more than half the number space apart are in no order.)
    pub fn scrape(&self, mut visit: impl FnMut(&ScrapableChunk<'_>)) {
        let mut pages = usize::MAX;
        let _ = self.scrape_until(&mut pages, |chunk| {
            visit(chunk);
            ControlFlow::Continue(())
        });
    }

    /// The same, until `visit` breaks, or until this many `pages` were looked at, each of them twice. `pages` is counted down. If the scrape is cut
    /// short, chunks on later pages are missing, even later chunks of writers that were shown.
    pub fn scrape_until(
        &self,
        pages: &mut usize,
        mut visit: impl FnMut(&ScrapableChunk<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // In one pass a writer could fill a page that the scrape has passed, and go on in one that it has not reached: the later chunk would be shown
        // without the earlier. So the first pass finds each writer's newest chunk, and the second shows all chunks that the first found, and all that
        // are older than the newest.
        let mut seen = Vec::new();
        let mut newest: Vec<Option<ChunkId>> = Vec::new();
        let mut pages_of_first_pass = *pages;
        let _ = self.look(&mut pages_of_first_pass, |found| {
            let identity = found.identity();
            let (_, WriterId(writer), chunk) = identity;
            let writer = usize::from(writer);
            if newest.len() <= writer {
                newest.resize(writer + 1, None);
            }
            if newest[writer].is_none_or(|newest| chunk.distance_from(newest) > 0) {
                newest[writer] = Some(chunk);
            }
            seen.push(identity);
            ControlFlow::Continue(())
        });
        let mut seen = seen.into_iter().peekable();
        self.look(pages, |found| {
            let identity = found.identity();
            let (place, WriterId(writer), chunk) = identity;
            while seen.next_if(|(earlier, ..)| *earlier < place).is_some() {}
            let newest = newest.get(usize::from(writer)).copied().flatten();
            let is_older = newest.is_some_and(|newest| chunk.distance_from(newest) < 0);
            match is_older || seen.peek() == Some(&identity) {
                true => visit(found),
                false => ControlFlow::Continue(()),
            }
        })
    }

    /// Shows `visit` each chunk that is there when its page's turn comes.
    fn look(
        &self,
        pages: &mut usize,
        mut visit: impl FnMut(&ScrapableChunk<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let memory = self.memory();
        // Producers use little of large buffers, and looking at the rest would make all of it resident.
        let touched = memory.touched();
        for page in 0..self.pages.count() {
            if !memory.is_touched(&touched, page * self.pages.page_size().bytes()) {
                continue;
            }
            let Some(rest) = pages.checked_sub(1) else {
                return ControlFlow::Break(());
            };
            *pages = rest;
            self.look_at_page(page, &mut visit)?;
        }
        ControlFlow::Continue(())
    }

    fn look_at_page(
        &self,
        page: usize,
        visit: &mut impl FnMut(&ScrapableChunk<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let page_header = self.pages.header(page);
        let Some(layout) = page_header.layout() else {
            return ControlFlow::Continue(());
        };
        for chunk in 0..layout.chunks() {
            let completeness = match page_header.state(chunk) {
                Some(ChunkState::Complete) => Completeness::Complete,
                Some(ChunkState::BeingWritten) => Completeness::BeingWritten,
                _ => continue,
            };
            let place = self.pages.place(page, Won { chunk, layout });
            let header = self.pages.load_header(&place);
            // The last packet begun may be unfinished. A count of two also proves that the rest of the header was
            // written: it was zero when the chunk was freed, and its new owner counts up only after.
            if completeness == Completeness::BeingWritten && header.packet_count < 2 {
                continue;
            }
            visit(&ScrapableChunk {
                pages: &self.pages,
                place,
                header,
                completeness,
            })?;
        }
        ControlFlow::Continue(())
    }
}

/// A chunk that [`ServiceSmb::scrape`] found.
#[derive(Debug)]
pub struct ScrapableChunk<'a> {
    pages: &'a Pages,
    place: ChunkPlace,
    header: ChunkHeader,
    completeness: Completeness,
}

impl ScrapableChunk<'_> {
    /// Its place, which grows from page to page and within each page, and its identity.
    fn identity(&self) -> (usize, WriterId, ChunkId) {
        (self.place.payload_offset(), self.header.writer, self.header.chunk)
    }

    /// Its header. The counted packets are in the payload, except the last one of a chunk that is being written.
    pub fn header(&self) -> ChunkHeader {
        self.header
    }

    /// Whether it is finished.
    pub fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// Replaces the contents of `payload` by a copy of the chunk's.
    pub fn copy_payload(&self, payload: &mut Vec<u8>) {
        self.pages
            .memory()
            .copy_out(self.place.payload_offset(), self.place.payload_len(), payload);
    }
}

/// The largest payload that a chunk can have. A buffer for copies grows to this size.
pub const MAX_PAYLOAD_LEN: usize =
    crate::page::PageLayout::Div1.chunk_size(PageSize::MAX) - CHUNK_HEADER_SIZE;
