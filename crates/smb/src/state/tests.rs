//! The state machine on loom's atomics: every interleaving of a producer's and the service's threads, and every
//! reordering that the orderings allow. A chunk's payload is a cell whose unsynchronised access loom reports.

use super::{PageWord, Won, begin_read, complete, end_read, take_free_chunk, take_free_page};
use crate::page::{ChunkState, MAX_CHUNKS_PER_PAGE, PageHeader, PageLayout};
use crate::service::ChunkRefused;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

impl PageWord for loom::sync::atomic::AtomicU32 {
    fn load(&self, ordering: Ordering) -> u32 {
        // Loom (0.7) forgets a load as a point to switch threads at once another thread loads too, and would explore one
        // interleaving only. Nothing is missed by never loading a stale value: exchanging one fails.
        self.fetch_or(0, ordering)
    }

    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.compare_exchange(current, new, success, failure)
    }

    fn fetch_or(&self, bits: u32, ordering: Ordering) -> u32 {
        self.fetch_or(bits, ordering)
    }
}

struct Page {
    word: loom::sync::atomic::AtomicU32,
    payload: [UnsafeCell<u32>; 2],
    /// Where the second chunk's header is, if there is a second chunk. In the middle of packets otherwise.
    second_header: loom::sync::atomic::AtomicU32,
}

/// A value that packets leave behind where the second chunk's header will be.
const OF_A_PACKET: u32 = 7;

impl Page {
    fn new() -> Self {
        let payload = [(); 2].map(|()| UnsafeCell::new(0));
        Self {
            word: loom::sync::atomic::AtomicU32::new(0),
            payload,
            second_header: loom::sync::atomic::AtomicU32::new(OF_A_PACKET),
        }
    }

    /// Wins a chunk as [`crate::ProducerSmb`] does.
    fn take(&self, layout: PageLayout) -> Option<Won> {
        let header = PageWord::load(&self.word, Ordering::Acquire);
        if header == PageHeader::FREE.bits() {
            take_free_page(&self.word, layout, || {
                self.second_header.store(0, Ordering::Relaxed)
            })
        } else {
            take_free_chunk(&self.word)
        }
    }

    /// Writes `value` into a chunk; tells whether there was one.
    fn produce(&self, layout: PageLayout, value: u32) -> bool {
        match self.take(layout) {
            None => false,
            Some(won) => {
                self.fill(won, value);
                true
            }
        }
    }

    fn fill(&self, won: Won, value: u32) {
        self.payload[won.chunk].with_mut(|payload| {
            // SAFETY: loom fails the test if anything else accesses the cell at this moment.
            unsafe {
                assert_eq!(*payload, 0, "the service clears a chunk before it frees it");
                *payload = value;
            }
        });
        complete(&self.word, won.chunk);
    }

    fn consume(&self, chunk: usize) -> Option<u32> {
        let won = begin_read(&self.word, chunk).ok()?;
        // SAFETY: loom fails the test if anything else accesses the cell at this moment.
        let value = self.payload[chunk].with_mut(|payload| unsafe { std::mem::take(&mut *payload) });
        end_read(&self.word, won).unwrap();
        Some(value)
    }
}

/// Runs `model` in every interleaving with at most three preemptions, and makes sure that there were many.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let runs = std::sync::Arc::new(AtomicU32::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check({
        let runs = runs.clone();
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            model();
        }
    });
    let runs = runs.load(Ordering::Relaxed);
    assert!(runs > 20, "only {runs} interleavings explored");
}

#[test]
fn a_chunk_goes_round_between_one_producer_and_the_service() {
    check(|| {
        let page = Arc::new(Page::new());
        let producer = loom::thread::spawn({
            let page = page.clone();
            move || [1, 2].map(|value| page.produce(PageLayout::Div1, value))
        });
        let mut read: Vec<u32> = (0..3).filter_map(|_| page.consume(0)).collect();
        let produced = producer.join().unwrap();
        read.extend(page.consume(0));
        let expected: Vec<u32> = [1, 2]
            .into_iter()
            .zip(produced)
            .filter(|(_, done)| *done)
            .map(|(v, _)| v)
            .collect();
        assert_eq!(
            read, expected,
            "every chunk that was completed is read once, in order"
        );
        assert_eq!(
            page.word.load(Ordering::Relaxed),
            0,
            "a page without chunks in use is free"
        );
    });
}

#[test]
fn two_threads_of_a_producer_never_get_the_same_chunk() {
    check(|| {
        let page = Arc::new(Page::new());
        let threads = [1, 2].map(|value| {
            let page = page.clone();
            loom::thread::spawn(move || {
                // While one thread cuts the page it has it for itself.
                let won = std::iter::repeat_with(|| page.take(PageLayout::Div2)).find_map(|won| {
                    if won.is_none() {
                        loom::thread::yield_now();
                    }
                    won
                });
                page.fill(won.unwrap(), value);
            })
        });
        let mut read: Vec<u32> = (0..2).filter_map(|chunk| page.consume(chunk)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        read.extend((0..2).filter_map(|chunk| page.consume(chunk)));
        read.sort_unstable();
        assert_eq!(read, [1, 2], "there is a chunk for each");
        assert_eq!(page.word.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_scraper_takes_nothing_for_a_header_that_is_none() {
    check(|| {
        let page = Arc::new(Page::new());
        let threads = [1, 2].map(|value| {
            let page = page.clone();
            loom::thread::spawn(move || page.produce(PageLayout::Div2, value))
        });
        for _ in 0..2 {
            let header = PageHeader::from_bits(PageWord::load(&page.word, Ordering::Acquire));
            if header.layout() == Some(PageLayout::Div2) && header.state(1) == Some(ChunkState::BeingWritten)
            {
                assert_eq!(page.second_header.load(Ordering::Relaxed), 0);
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_page_that_its_service_tampers_with_stays_whole() {
    let word = AtomicU32::new(0);
    let tampered = PageHeader::partitioned(PageLayout::Div1).with_state(0, ChunkState::Complete);
    let won = take_free_page(&word, PageLayout::Div4, || {
        word.store(tampered.bits(), Ordering::Relaxed)
    });
    assert_eq!(won.unwrap().layout, PageLayout::Div1);
    assert_eq!(word.load(Ordering::Relaxed), tampered.bits());
}

#[test]
fn no_step_but_the_diagrams_changes_a_page() {
    let states = [
        ChunkState::Free,
        ChunkState::BeingWritten,
        ChunkState::BeingRead,
        ChunkState::Complete,
    ];
    for layout in PageLayout::ALL {
        for chunk in 0..MAX_CHUNKS_PER_PAGE + 2 {
            for state in states {
                // A neighbour in use keeps the page from being freed, where the layout has one.
                let busy = if chunk == 0 { layout.chunks() - 1 } else { 0 };
                let mut before = PageHeader::partitioned(layout).with_state(busy, ChunkState::BeingWritten);
                let exists = chunk < layout.chunks();
                if exists {
                    before = before.with_state(chunk, state);
                }
                let word = AtomicU32::new(before.bits());
                let won = begin_read(&word, chunk);
                let after = PageHeader::from_bits(word.load(Ordering::Relaxed));
                match (exists, state) {
                    (true, ChunkState::Complete) => {
                        let won = won.unwrap();
                        assert_eq!(after, before.with_state(chunk, ChunkState::BeingRead));
                        end_read(&word, won).unwrap();
                        let freed = before.with_state(chunk, ChunkState::Free);
                        let expected = if busy == chunk { PageHeader::FREE } else { freed };
                        assert_eq!(word.load(Ordering::Relaxed), expected.bits());
                        assert_eq!(end_read(&word, won), Err(ChunkRefused::ChangedWhileRead));
                    }
                    (true, state) => {
                        assert_eq!((won, after), (Err(ChunkRefused::NotComplete { state }), before));
                    }
                    (false, _) => {
                        let chunks = layout.chunks();
                        assert_eq!((won, after), (Err(ChunkRefused::NoSuchChunk { chunks }), before));
                    }
                }
            }
        }
    }
}

#[test]
fn pages_of_unknown_layouts_are_left_alone() {
    for layout_bits in [6u32, 7, 8] {
        let word = AtomicU32::new(layout_bits << 28);
        assert_eq!(take_free_chunk(&word), None);
        assert_eq!(take_free_page(&word, PageLayout::Div1, || ()), None);
        assert_eq!(begin_read(&word, 0), Err(ChunkRefused::NoSuchChunk { chunks: 0 }));
        assert_eq!(word.load(Ordering::Relaxed), layout_bits << 28);
    }
}
