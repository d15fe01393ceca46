//! The contents of a page's header word, and how a page of each size is cut into chunks. Values only, no memory.
//!
//! Bits of the word: 0-27 the states of chunks 0 to 13, two bits each; 28-30 the layout; 31 reserved.

/// Chunks of a page with the finest layout.
pub(crate) const MAX_CHUNKS_PER_PAGE: usize = 14;

/// Bytes in front of a page's chunks: the header word and a reserved one.
pub(crate) const PAGE_HEADER_SIZE: usize = 8;

const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = 0b11;
const ALL_STATES_MASK: u32 = (1 << (STATE_BITS * MAX_CHUNKS_PER_PAGE as u32)) - 1;
const LAYOUT_SHIFT: u32 = 28;
const LAYOUT_MASK: u32 = 0b111;

/// Bytes of a page of the shared memory buffer: 4096, 8192, 16384, 32768 or 65536.
///
/// The ABI ends at 64 KiB because a chunk's size has 16 bits. Upstream's service hands out at most 32 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u32);

impl PageSize {
    /// The smallest: 4 KiB.
    pub const MIN: PageSize = PageSize(4 << 10);
    /// The largest: 64 KiB.
    pub const MAX: PageSize = PageSize(64 << 10);

    /// A page of `bytes`, if pages can have that size.
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= Self::MIN.bytes() && bytes <= Self::MAX.bytes() {
            Some(Self(bytes as u32))
        } else {
            None
        }
    }

    /// Its size in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }
}

/// Into how many equal chunks a page is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PageLayout {
    /// One chunk.
    Div1 = 1,
    /// Two chunks.
    Div2 = 2,
    /// Four chunks.
    Div4 = 3,
    /// Seven chunks; wastes nothing of a 4 KiB page.
    Div7 = 4,
    /// Fourteen chunks; wastes nothing of a 4 KiB page.
    Div14 = 5,
}

impl PageLayout {
    /// All of them, coarsest first.
    pub const ALL: [PageLayout; 5] = [
        PageLayout::Div1,
        PageLayout::Div2,
        PageLayout::Div4,
        PageLayout::Div7,
        PageLayout::Div14,
    ];

    /// How many chunks a page has.
    #[inline]
    pub const fn chunks(self) -> usize {
        match self {
            PageLayout::Div1 => 1,
            PageLayout::Div2 => 2,
            PageLayout::Div4 => 4,
            PageLayout::Div7 => 7,
            PageLayout::Div14 => 14,
        }
    }

    /// Bytes of a chunk, its header included: an equal share of the page, rounded down to four bytes.
    #[inline]
    pub const fn chunk_size(self, page_size: PageSize) -> usize {
        ((page_size.bytes() - PAGE_HEADER_SIZE) / self.chunks()) & !3
    }
}

/// The owner of a chunk, which alone may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ChunkState {
    /// No side owns it; the producer may take it.
    Free = 0,
    /// The producer owns it; the service may read as many packets as the count says, when it scrapes.
    BeingWritten = 1,
    /// The service.
    BeingRead = 2,
    /// No side owns it; the service may take it.
    Complete = 3,
}

/// A page's header word as it was at one moment. The page may have moved on since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageHeader(u32);

impl PageHeader {
    /// The word of a page that is not partitioned.
    pub const FREE: PageHeader = PageHeader(0);

    /// Interprets a header word; any value is possible.
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The word itself.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// A page cut by `layout` with all chunks free.
    #[inline]
    pub(crate) const fn partitioned(layout: PageLayout) -> Self {
        Self((layout as u32) << LAYOUT_SHIFT)
    }

    /// The page's layout; `None` if it is not partitioned or by a layout that this version does not know.
    #[inline]
    pub const fn layout(self) -> Option<PageLayout> {
        match self.0 >> LAYOUT_SHIFT & LAYOUT_MASK {
            1 => Some(PageLayout::Div1),
            2 => Some(PageLayout::Div2),
            3 => Some(PageLayout::Div4),
            4 => Some(PageLayout::Div7),
            5 => Some(PageLayout::Div14),
            _ => None,
        }
    }

    /// How many chunks the page has: 0 if it has no layout.
    #[inline]
    pub const fn chunks(self) -> usize {
        match self.layout() {
            Some(layout) => layout.chunks(),
            None => 0,
        }
    }

    /// The state of a chunk; `None` if the page has no such chunk.
    #[inline]
    pub const fn state(self, chunk: usize) -> Option<ChunkState> {
        if chunk >= self.chunks() {
            return None;
        }
        Some(match self.0 >> (STATE_BITS * chunk as u32) & STATE_MASK {
            0 => ChunkState::Free,
            1 => ChunkState::BeingWritten,
            2 => ChunkState::BeingRead,
            _ => ChunkState::Complete,
        })
    }

    /// The first free chunk.
    #[inline]
    pub fn first_free(self) -> Option<usize> {
        (0..self.chunks()).find(|chunk| self.state(*chunk) == Some(ChunkState::Free))
    }

    /// The same page with one chunk, below [`MAX_CHUNKS_PER_PAGE`], in another state.
    #[inline]
    pub(crate) const fn with_state(self, chunk: usize, state: ChunkState) -> Self {
        let shift = STATE_BITS * chunk as u32;
        Self(self.0 & !(STATE_MASK << shift) | (state as u32) << shift)
    }

    /// Whether no chunk is in use.
    #[inline]
    pub(crate) const fn all_chunks_free(self) -> bool {
        self.0 & ALL_STATES_MASK == 0
    }

    /// The bits that turn a chunk that is being written into a complete one.
    #[inline]
    pub(crate) const fn completing_bits(chunk: usize) -> u32 {
        (ChunkState::Complete as u32) << (STATE_BITS * chunk as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn page_sizes_are_powers_of_two_from_4_to_64_kib() {
        let valid: Vec<_> = (0..=1 << 17)
            .filter(|bytes| PageSize::new(*bytes).is_some())
            .collect();
        assert_eq!(valid, [4096, 8192, 16384, 32768, 65536]);
    }

    #[test]
    fn chunks_of_a_4_kib_page_have_upstreams_sizes() {
        let sizes = PageLayout::ALL.map(|layout| layout.chunk_size(PageSize::MIN));
        assert_eq!(sizes, [4088, 2044, 1020, 584, 292]);
    }

    #[test]
    fn chunks_fit_the_page_and_sixteen_bits() {
        for page_size in [4, 8, 16, 32, 64].map(|kib| PageSize::new(kib << 10).unwrap()) {
            for layout in PageLayout::ALL {
                let size = layout.chunk_size(page_size);
                assert!(PAGE_HEADER_SIZE + size * layout.chunks() <= page_size.bytes());
                assert!(size.is_multiple_of(4) && size <= usize::from(u16::MAX));
            }
        }
    }

    #[test]
    fn the_word_has_upstreams_bits() {
        let header = PageHeader::partitioned(PageLayout::Div14)
            .with_state(0, ChunkState::BeingWritten)
            .with_state(1, ChunkState::BeingRead)
            .with_state(13, ChunkState::Complete);
        assert_eq!(header.bits(), 0x5c00_0009);
    }

    proptest! {
        #[test]
        fn any_word_names_only_chunks_that_exist(bits: u32, chunk in 0usize..40) {
            let header = PageHeader::from_bits(bits);
            prop_assert!(header.chunks() <= MAX_CHUNKS_PER_PAGE);
            prop_assert_eq!(header.state(chunk).is_some(), chunk < header.chunks());
            prop_assert!(header.first_free().is_none_or(|free| free < header.chunks()));
        }
    }
}
