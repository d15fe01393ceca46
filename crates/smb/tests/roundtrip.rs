//! Chunks that a producer completes arrive at the service as they were written, once, whatever the order.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions fail their test as the tests themselves do.

use ferretto_smb::{
    ChunkFlags, ChunkHeader, ChunkId, ChunkRefused, ChunkState, Completeness, FirstPacket, NewChunk,
    PageHeader, PageLayout, PageSize, ProducerSmb, ServiceSmb, SharedMemory, WriteChunk, WriterId,
};
use ferretto_wire::{Finished, Writer};
use proptest::prelude::*;
use std::sync::{Arc, mpsc};

fn buffer(pages: usize, page_size: PageSize) -> (Arc<ProducerSmb>, ServiceSmb) {
    let memory = Arc::new(SharedMemory::create(pages * page_size.bytes()).unwrap());
    let producer = ProducerSmb::new(memory.clone(), page_size).unwrap();
    (Arc::new(producer), ServiceSmb::new(memory, page_size).unwrap())
}

fn new_chunk(writer: u16, chunk: u32) -> NewChunk {
    NewChunk {
        writer: WriterId(writer),
        chunk: ChunkId(chunk),
        first: FirstPacket::Whole,
    }
}

#[derive(Clone, Debug)]
enum Action {
    Take(PageLayout),
    /// Write at this part of a chunk in hand, and count one packet more.
    Write(prop::sample::Index, prop::sample::Index, Vec<u8>),
    Complete(prop::sample::Index),
    /// The service reads one of the chunks that were completed.
    Copy(prop::sample::Index),
    Scrape,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let index = any::<prop::sample::Index>;
    let action = prop_oneof![
        4 => prop::sample::select(&PageLayout::ALL[..]).prop_map(Action::Take),
        6 => (index(), index(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(chunk, at, bytes)| Action::Write(chunk, at, bytes)),
        3 => index().prop_map(Action::Complete),
        3 => index().prop_map(Action::Copy),
        1 => Just(Action::Scrape),
    ];
    prop::collection::vec(action, 0..120)
}

/// A chunk as it should be: its header and its payload.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    header: ChunkHeader,
    payload: Vec<u8>,
}

#[derive(Default)]
struct Model {
    written: Vec<(WriteChunk, Expected)>,
    /// With the position that `CommitData` would name.
    complete: Vec<(usize, usize, Expected)>,
    next_chunk: u32,
}

impl Model {
    fn act(&mut self, action: Action, producer: &Arc<ProducerSmb>, service: &ServiceSmb) {
        match action {
            Action::Take(layout) => {
                let new = new_chunk(1 + (self.next_chunk % 7) as u16, self.next_chunk);
                let Some(mut chunk) = producer.take_chunk(layout, new) else {
                    let free = (0..service.page_count()).any(|page| {
                        let header = service.page_header(page).unwrap();
                        header == PageHeader::FREE || header.first_free().is_some()
                    });
                    return assert!(!free, "a chunk was free but not found");
                };
                self.next_chunk += 1;
                let header = ChunkHeader {
                    writer: new.writer,
                    chunk: new.chunk,
                    packet_count: 0,
                    flags: ChunkFlags::NONE,
                };
                // The bytes of the chunk's last owner are not cleared.
                let payload = vec![0xcc; chunk.payload_len()];
                chunk.write(0, &payload);
                self.written.push((chunk, Expected { header, payload }));
            }
            Action::Write(index, at, bytes) if !self.written.is_empty() => {
                let (chunk, expected) = index.get_mut(&mut self.written);
                let at = at.index(chunk.payload_len());
                let bytes = &bytes[..bytes.len().min(chunk.payload_len() - at)];
                chunk.write(at, bytes);
                expected.payload[at..at + bytes.len()].copy_from_slice(bytes);
                expected.header.packet_count = (expected.header.packet_count + 1).min(1023);
                expected.header.flags = ChunkFlags::LAST_CONTINUES;
                chunk.set_flags(ChunkFlags::LAST_CONTINUES);
                chunk.publish(expected.header.packet_count);
            }
            Action::Complete(index) if !self.written.is_empty() => {
                let (chunk, expected) = self.written.swap_remove(index.index(self.written.len()));
                self.complete.push((chunk.page(), chunk.index(), expected));
                chunk.complete();
            }
            Action::Copy(index) if !self.complete.is_empty() => {
                let (page, chunk, expected) = self.complete.swap_remove(index.index(self.complete.len()));
                let mut payload = vec![1; 3];
                let header = service.copy_chunk(page, chunk, &mut payload).unwrap();
                assert_eq!(Expected { header, payload }, expected);
                let again = service.copy_chunk(page, chunk, &mut Vec::new());
                assert!(matches!(
                    again,
                    Err(ChunkRefused::NotComplete {
                        state: ChunkState::Free
                    } | ChunkRefused::NoSuchChunk { chunks: 0 })
                ));
            }
            Action::Scrape => self.check_scrape(service),
            _ => {}
        }
    }

    fn check_scrape(&self, service: &ServiceSmb) {
        let mut scraped = Vec::new();
        service.scrape(|chunk| {
            let mut payload = Vec::new();
            chunk.copy_payload(&mut payload);
            scraped.push((
                chunk.completeness(),
                Expected {
                    header: chunk.header(),
                    payload,
                },
            ));
        });
        let complete = self
            .complete
            .iter()
            .map(|(_, _, chunk)| (Completeness::Complete, chunk));
        let written = self
            .written
            .iter()
            .map(|(_, chunk)| (Completeness::BeingWritten, chunk));
        let mut expected: Vec<_> = complete
            .chain(written.filter(|(_, chunk)| chunk.header.packet_count >= 2))
            .map(|(completeness, chunk)| (completeness, chunk.clone()))
            .collect();
        scraped.sort_by_key(|(_, chunk)| chunk.header.chunk);
        expected.sort_by_key(|(_, chunk)| chunk.header.chunk);
        assert_eq!(scraped, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_service_sees_the_producers_chunks(
        actions in actions(),
        pages in 1usize..5,
        page_size in prop::sample::select(&[4usize, 16, 64][..]),
    ) {
        let (producer, service) = buffer(pages, PageSize::new(page_size << 10).unwrap());
        let mut model = Model::default();
        for action in actions {
            model.act(action, &producer, &service);
        }
        while let Some((chunk, expected)) = model.written.pop() {
            model.complete.push((chunk.page(), chunk.index(), expected));
            chunk.complete();
        }
        for (page, chunk, expected) in model.complete {
            let mut payload = Vec::new();
            let header = service.copy_chunk(page, chunk, &mut payload).unwrap();
            prop_assert_eq!(Expected { header, payload }, expected);
        }
        for page in 0..pages {
            prop_assert_eq!(service.page_header(page), Some(PageHeader::FREE));
        }
    }
}

#[test]
fn every_layout_fills_the_buffer_and_no_more() {
    for layout in PageLayout::ALL {
        let (producer, service) = buffer(3, PageSize::MIN);
        let chunks: Vec<_> = std::iter::from_fn(|| producer.take_chunk(layout, new_chunk(1, 0))).collect();
        assert_eq!(chunks.len(), 3 * layout.chunks());
        for (index, mut chunk) in chunks.into_iter().enumerate() {
            chunk.write(0, &vec![index as u8; chunk.payload_len()]);
            let (page, place) = (chunk.page(), chunk.index());
            chunk.complete();
            let mut payload = Vec::new();
            service.copy_chunk(page, place, &mut payload).unwrap();
            assert!(
                payload.iter().all(|byte| *byte == index as u8),
                "chunks of {layout:?} overlap"
            );
        }
    }
}

#[test]
fn packets_can_be_encoded_in_place() {
    let (producer, service) = buffer(1, PageSize::MIN);
    let mut chunk = producer.take_chunk(PageLayout::Div1, new_chunk(5, 9)).unwrap();
    let (region, len) = chunk.region(1);
    let mut writer = Writer::new();
    // SAFETY: the chunk is neither completed nor written otherwise before `finish`.
    unsafe { writer.start_in_region(region, len) };
    writer.bytes_field(1, b"in place");
    let Finished::InPlace(len) = writer.finish() else {
        panic!("ten bytes fit a chunk")
    };
    chunk.write(0, &[len as u8]);
    chunk.publish(1);
    chunk.complete();
    let mut payload = Vec::new();
    let header = service.copy_chunk(0, 0, &mut payload).unwrap();
    assert_eq!(
        (header.writer, header.chunk, header.packet_count),
        (WriterId(5), ChunkId(9), 1)
    );
    assert_eq!(&payload[..11], b"\x0a\x0a\x08in place");
}

#[test]
fn memory_must_divide_into_pages() {
    let memory = Arc::new(SharedMemory::create(12 << 10).unwrap());
    let page_size = PageSize::new(8 << 10).unwrap();
    let error = ServiceSmb::new(memory.clone(), page_size).unwrap_err();
    assert_eq!(error, ProducerSmb::new(memory, page_size).unwrap_err());
    assert_eq!(error.size, 12 << 10);
}

/// Scrapes, and checks that of each writer the scraped chunks begin with `next`, the first that was not moved out, and have no gaps.
fn check_that_nothing_is_left_out(service: &ServiceSmb, next: &[u32]) {
    let mut scraped = vec![Vec::new(); next.len()];
    service.scrape(|chunk| {
        let header = chunk.header();
        scraped[usize::from(header.writer.0)].push(header.chunk.0);
    });
    for (chunks, next) in scraped.iter_mut().zip(next) {
        chunks.sort_unstable();
        let expected: Vec<u32> = (*next..).take(chunks.len()).collect();
        assert_eq!(*chunks, expected);
    }
}

#[test]
fn a_chunk_is_scraped_with_all_before_it_though_its_writer_goes_on() {
    let (producer, service) = buffer(3, PageSize::MIN);
    let fill = |writer, id| {
        let mut chunk = producer
            .take_chunk(PageLayout::Div1, new_chunk(writer, id))
            .unwrap();
        chunk.publish(1);
        let page = chunk.page();
        chunk.complete();
        page
    };
    let empty = |page| service.copy_chunk(page, 0, &mut Vec::new()).unwrap();
    assert_eq!([fill(1, 0), fill(2, 0)], [0, 1]);
    empty(0);
    producer.rewind();
    let mut scraped = Vec::new();
    service.scrape(|chunk| {
        let writer = chunk.header().writer;
        scraped.push(writer);
        if writer == WriterId(2) {
            // Into the page that was looked at already, and into the one that will be.
            assert_eq!([fill(1, 1), fill(1, 2)], [0, 2]);
        }
    });
    assert_eq!(scraped, [WriterId(2)]);
    let mut next = [0; 3];
    next[1] = 1;
    check_that_nothing_is_left_out(&service, &next);
}

#[test]
fn chunks_of_any_ids_are_scraped() {
    let (producer, service) = buffer(1, PageSize::MIN);
    // Each of these is newer than the one before, and the first is newer than the last.
    let ids = [0, 0x6000_0000, 0xc000_0000];
    for id in ids {
        let mut chunk = producer.take_chunk(PageLayout::Div4, new_chunk(1, id)).unwrap();
        chunk.publish(1);
        chunk.complete();
    }
    let mut scraped = Vec::new();
    service.scrape(|chunk| scraped.push(chunk.header().chunk.0));
    assert_eq!(scraped, ids);
}

#[test]
fn threads_share_a_buffer_without_losing_or_mixing_chunks() {
    const THREADS: u16 = 3;
    const CHUNKS: u32 = 2000;
    let (producer, service) = buffer(16, PageSize::MIN);
    let (commits, committed) = mpsc::channel();
    let threads: Vec<_> = (1..=THREADS)
        .map(|writer| {
            let (producer, commits) = (producer.clone(), commits.clone());
            std::thread::spawn(move || {
                for id in 0..CHUNKS {
                    let mut chunk = loop {
                        match producer.take_chunk(PageLayout::Div7, new_chunk(writer, id)) {
                            Some(chunk) => break chunk,
                            None => std::thread::yield_now(),
                        }
                    };
                    chunk.write(0, &vec![id as u8 ^ writer as u8; chunk.payload_len()]);
                    chunk.publish(1);
                    let place = (chunk.page(), chunk.index());
                    chunk.complete();
                    commits.send(place).unwrap();
                }
            })
        })
        .collect();
    drop(commits);
    let mut next = [0; THREADS as usize + 1];
    let mut payload = Vec::new();
    for (page, chunk) in committed {
        check_that_nothing_is_left_out(&service, &next);
        let header = service.copy_chunk(page, chunk, &mut payload).unwrap();
        let next = &mut next[usize::from(header.writer.0)];
        assert_eq!(header.chunk, ChunkId(*next), "chunks of a writer arrive in order");
        *next += 1;
        assert!(
            payload
                .iter()
                .all(|byte| *byte == header.chunk.0 as u8 ^ header.writer.0 as u8)
        );
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(next[1..], [CHUNKS; THREADS as usize]);
}
