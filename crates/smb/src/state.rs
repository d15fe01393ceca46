//! The transitions of a page's header word: every right to touch a chunk is won or given up here.
//!
//! Each function is one step of the diagram in the crate's documentation, done by compare-and-exchange so that chunks
//! of one page change hands independently. They are generic over the word so that the model tests can run the same
//! code on loom's atomics.
//!
//! **Orderings.** Winning a chunk acquires, giving it up releases: the winner of a chunk sees all writes of its previous owner.

use crate::page::{ChunkState, PageHeader, PageLayout};
use crate::service::ChunkRefused;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
mod tests;

/// How often a step is tried against a word that keeps changing. Every failure means that another chunk of the page
/// changed hands meanwhile, which honest peers cannot keep up; a hostile one is not waited for.
const MAX_ATTEMPTS: u32 = 1024;

/// The header word of a page in shared memory.
pub(crate) trait PageWord {
    fn load(&self, ordering: Ordering) -> u32;
    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32>;
    fn fetch_or(&self, bits: u32, ordering: Ordering) -> u32;
}

impl PageWord for AtomicU32 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u32 {
        AtomicU32::load(self, ordering)
    }

    #[inline]
    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        AtomicU32::compare_exchange(self, current, new, success, failure)
    }

    #[inline]
    fn fetch_or(&self, bits: u32, ordering: Ordering) -> u32 {
        AtomicU32::fetch_or(self, bits, ordering)
    }
}

/// A chunk that was won, in the page's geometry at that moment. The geometry cannot change while the chunk is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Won {
    pub(crate) chunk: usize,
    pub(crate) layout: PageLayout,
}

/// Replaces the word by the result of `step`, and returns the rights that this wins. Tries again when the word changed between being read and being
/// exchanged.
#[inline]
fn exchange<T, E>(
    word: &impl PageWord,
    step: impl Fn(PageHeader) -> Result<(PageHeader, T), E>,
    contended: impl FnOnce() -> E,
) -> Result<T, E> {
    let mut current = word.load(Ordering::Acquire);
    for _ in 0..MAX_ATTEMPTS {
        let (next, won) = step(PageHeader::from_bits(current))?;
        match word.compare_exchange(current, next.bits(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(won),
            Err(changed) => current = changed,
        }
        std::hint::spin_loop();
    }
    Err(contended())
}

/// Producer: Free -> BeingWritten for some chunk of a page that is partitioned. `None` if it is not, or has no free chunk.
#[inline]
pub(crate) fn take_free_chunk(word: &impl PageWord) -> Option<Won> {
    let step = |header: PageHeader| {
        let (layout, chunk) = header.layout().zip(header.first_free()).ok_or(())?;
        Ok((
            header.with_state(chunk, ChunkState::BeingWritten),
            Won { chunk, layout },
        ))
    };
    exchange(word, step, || ()).ok()
}

/// Producer: partitions a free page by `layout`, with Free -> BeingWritten for its first chunk. `None` if the page is not free.
///
/// The page is won whole, and then cut. In between this calls `clear_headers`, to clear the headers of all chunks but the first, whose place is the
/// same in every layout. Bytes of packets lie there if the page was cut another way before, and a service that scrapes must not take them for a
/// header whose owner has not written it yet.
#[inline]
pub(crate) fn take_free_page(
    word: &impl PageWord,
    layout: PageLayout,
    clear_headers: impl FnOnce(),
) -> Option<Won> {
    let taken = |layout| PageHeader::partitioned(layout).with_state(0, ChunkState::BeingWritten);
    let won = |layout| Some(Won { chunk: 0, layout });
    let become_next = |current: PageHeader, next: PageHeader| {
        word.compare_exchange(current.bits(), next.bits(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let whole = taken(PageLayout::Div1);
    if !become_next(PageHeader::FREE, whole) {
        return None;
    }
    if layout == PageLayout::Div1 {
        return won(layout);
    }
    clear_headers();
    if become_next(whole, taken(layout)) {
        won(layout)
    } else {
        // A service that changes a page whose only chunk is ours breaks the rules, without harm: the page stays whole.
        won(PageLayout::Div1)
    }
}

/// Producer: BeingWritten -> Complete, for a chunk that was won.
#[inline]
pub(crate) fn complete(word: &impl PageWord, chunk: usize) {
    // Setting the state's second bit is the whole transition, so that it needs no loop.
    word.fetch_or(PageHeader::completing_bits(chunk), Ordering::AcqRel);
}

/// Service: Complete -> BeingRead.
#[inline]
pub(crate) fn begin_read(word: &impl PageWord, chunk: usize) -> Result<Won, ChunkRefused> {
    let step = |header: PageHeader| {
        let layout = header.layout().ok_or(ChunkRefused::NoSuchChunk { chunks: 0 })?;
        match header.state(chunk) {
            Some(ChunkState::Complete) => Ok((
                header.with_state(chunk, ChunkState::BeingRead),
                Won { chunk, layout },
            )),
            Some(state) => Err(ChunkRefused::NotComplete { state }),
            None => Err(ChunkRefused::NoSuchChunk {
                chunks: layout.chunks(),
            }),
        }
    };
    exchange(word, step, || ChunkRefused::Contended)
}

/// Service: BeingRead -> Free, for a chunk that [`begin_read`] won. Frees the page if no chunk is in use any more.
#[inline]
pub(crate) fn end_read(word: &impl PageWord, won: Won) -> Result<(), ChunkRefused> {
    let step = |header: PageHeader| {
        if header.layout() != Some(won.layout) || header.state(won.chunk) != Some(ChunkState::BeingRead) {
            return Err(ChunkRefused::ChangedWhileRead);
        }
        let next = header.with_state(won.chunk, ChunkState::Free);
        Ok((
            if next.all_chunks_free() {
                PageHeader::FREE
            } else {
                next
            },
            (),
        ))
    };
    exchange(word, step, || ChunkRefused::Contended)
}
