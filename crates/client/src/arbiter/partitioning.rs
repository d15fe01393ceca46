//! The sizes of the chunks into which free pages are cut. Used by the arbiter whenever it hands one out.
//!
//! Every writer keeps a chunk until it is full or taken back, however little it writes. With one chunk to a page, as many threads as there are pages
//! (64 of 4 KiB by default) hold all of the memory, and their next packets are dropped. So the more writers there are, the smaller are the chunks:
//! there are more commits then, and long packets are cut more often, but nothing is lost.

use ferretto_smb::{PageLayout, PageSize};

/// Writers may have one part in this many of the memory open; the rest is for chunks that the service has yet to read. When half of the buffer waits
/// for the service, the service is told at once, and the other half should last until it comes.
const OPEN_PART: usize = 4;

/// How free pages are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// Always this layout.
    Fixed(PageLayout),
    /// The largest chunks for which all writers together keep no more than a quarter of the memory.
    ByWriters,
}

impl From<PageLayout> for Partitioning {
    fn from(layout: PageLayout) -> Self {
        Partitioning::Fixed(layout)
    }
}

impl Partitioning {
    /// The layout of a page, where this many writers share this many pages.
    #[inline]
    pub(super) fn layout(self, writers: usize, pages: usize) -> PageLayout {
        match self {
            Partitioning::Fixed(layout) => layout,
            Partitioning::ByWriters => PageLayout::ALL
                .into_iter()
                .find(|layout| writers.saturating_mul(OPEN_PART) <= pages.saturating_mul(layout.chunks()))
                .unwrap_or(PageLayout::Div14),
        }
    }

    /// The most bytes of one packet that fit this many pages.
    pub(super) fn capacity(self, pages: usize, page_size: PageSize) -> usize {
        let layout = match self {
            Partitioning::Fixed(layout) => layout,
            // The layout with the fewest headers.
            Partitioning::ByWriters => PageLayout::Div1,
        };
        // A chunk's header and a fragment's length take up to twelve bytes.
        pages * layout.chunks() * (layout.chunk_size(page_size) - 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writers_keep_a_quarter_in_the_largest_chunks_that_allow_it(writers in 0usize..1100, pages in 1usize..10_000) {
            let layout = Partitioning::ByWriters.layout(writers, pages);
            let keeps_more = |layout: PageLayout| writers * 4 > pages * layout.chunks();
            prop_assert!(!keeps_more(layout) || layout == PageLayout::Div14);
            let larger = PageLayout::ALL.into_iter().filter(|other| other.chunks() < layout.chunks());
            prop_assert!(larger.into_iter().all(keeps_more));
        }
    }

    #[test]
    fn the_default_memory_is_cut_for_64_threads() {
        let layout = |writers| Partitioning::ByWriters.layout(writers, 64);
        assert_eq!(
            [1, 16, 17, 32, 64, 112, 224, 1000].map(layout),
            [
                PageLayout::Div1,
                PageLayout::Div1,
                PageLayout::Div2,
                PageLayout::Div2,
                PageLayout::Div4,
                PageLayout::Div7,
                PageLayout::Div14,
                PageLayout::Div14
            ]
        );
    }
}
