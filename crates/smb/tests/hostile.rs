//! A producer that writes whatever it likes into its shared memory, at any time, costs itself data and nothing else.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions fail their test as the tests themselves do.

use ferretto_smb::{
    ChunkRefused, FirstPacket, MAX_PAYLOAD_LEN, NewChunk, PageLayout, PageSize, ProducerSmb, ServiceSmb,
    SharedMemory,
};
use proptest::prelude::*;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes as a process would that has the descriptor: to any place, in any state.
fn scribble(memory: &SharedMemory, offset: usize, bytes: &[u8]) {
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    assert_eq!(file.write_at(bytes, offset as u64).unwrap(), bytes.len());
}

fn header_words() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        // Valid layouts with arbitrary states.
        (1u32..6, any::<u32>()).prop_map(|(layout, states)| layout << 28 | states & 0x0fff_ffff),
        // All chunks complete.
        (0u32..16).prop_map(|top| top << 28 | 0x0fff_ffff),
    ]
}

fn check_service(service: &ServiceSmb) {
    let mut payload = Vec::new();
    service.scrape(|chunk| {
        chunk.copy_payload(&mut payload);
        assert!(payload.len() <= MAX_PAYLOAD_LEN);
    });
    for page in 0..service.page_count() + 2 {
        let header = service.page_header(page);
        for chunk in (0..16).chain([usize::MAX]) {
            let copied = service.copy_chunk(page, chunk, &mut payload);
            match header {
                None => assert!(matches!(copied, Err(ChunkRefused::NoSuchPage { .. }))),
                Some(header) if chunk >= header.chunks() => {
                    assert!(matches!(copied, Err(ChunkRefused::NoSuchChunk { .. })));
                }
                Some(_) => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn any_header_words_are_survived(
        words in prop::collection::vec(header_words(), 1..6),
        chunk_headers in any::<[u8; 8]>(),
    ) {
        let memory = Arc::new(SharedMemory::create(words.len() * 4096).unwrap());
        let service = ServiceSmb::new(memory.clone(), PageSize::MIN).unwrap();
        for (page, word) in words.iter().enumerate() {
            scribble(&memory, page * 4096, &word.to_le_bytes());
            scribble(&memory, page * 4096 + 8, &chunk_headers);
        }
        check_service(&service);
    }

    #[test]
    fn any_bytes_are_survived(seed in prop::collection::vec(any::<u8>(), 64..512), page_kib in 0u32..5) {
        let page_size = PageSize::new(4096 << page_kib).unwrap();
        let memory = Arc::new(SharedMemory::create(2 * page_size.bytes()).unwrap());
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(memory.size()).collect();
        scribble(&memory, 0, &bytes);
        check_service(&ServiceSmb::new(memory.clone(), page_size).unwrap());
        // A service that went mad does not take its producer down either.
        let producer = Arc::new(ProducerSmb::new(memory, page_size).unwrap());
        let new = NewChunk { writer: ferretto_smb::WriterId(1), chunk: ferretto_smb::ChunkId(0), first: FirstPacket::Continued };
        while let Some(mut chunk) = producer.take_chunk(PageLayout::Div14, new) {
            let len = chunk.payload_len();
            chunk.write(len - 1, &[1]);
            chunk.complete();
        }
    }
}

#[test]
fn headers_that_change_all_the_time_are_survived() {
    let memory = Arc::new(SharedMemory::create(2 * 4096).unwrap());
    let service = ServiceSmb::new(memory.clone(), PageSize::MIN).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (memory, done) = (memory.clone(), done.clone());
        move || {
            let mut noise = 0x9e37_79b9_7f4a_7c15u64;
            while !done.load(Ordering::Relaxed) {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                let layout = (noise >> 60) as u32 & 7;
                scribble(
                    &memory,
                    (noise as usize & 1) * 4096,
                    &(layout << 28 | 0x0fff_ffff).to_le_bytes(),
                );
                scribble(
                    &memory,
                    4096 * (noise as usize >> 1 & 1) + 8,
                    &noise.to_le_bytes(),
                );
            }
        }
    });
    let mut payload = Vec::new();
    let mut copied = 0;
    while copied < 2000 {
        for (page, chunk) in (0..2).flat_map(|page| (0..14).map(move |chunk| (page, chunk))) {
            match service.copy_chunk(page, chunk, &mut payload) {
                Ok(_) | Err(ChunkRefused::ChangedWhileRead) => copied += 1,
                Err(_) => {}
            }
            assert!(payload.len() < 4096);
        }
        service.scrape(|chunk| chunk.copy_payload(&mut payload));
    }
    done.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
}

#[test]
fn looking_for_leftovers_makes_nothing_resident() {
    for page_kib in [4, 8, 32] {
        let page_size = PageSize::new(page_kib << 10).unwrap();
        // The service does not ask which pages of smaller memory were touched.
        let memory = Arc::new(SharedMemory::create(128 * page_size.bytes().max(1 << 15)).unwrap());
        let service = ServiceSmb::new(memory.clone(), page_size).unwrap();
        for page in [7, 31] {
            // One chunk, complete.
            scribble(&memory, page * page_size.bytes(), &0x1000_0003u32.to_le_bytes());
        }
        // One that is not partitioned.
        scribble(&memory, memory.size() - page_size.bytes(), &1u32.to_le_bytes());
        let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
        let resident = || file.metadata().unwrap().blocks();
        let (before, mut found) = (resident(), 0);
        service.scrape(|_| found += 1);
        assert_eq!((found, resident()), (2, before), "pages of {page_kib} KiB");
        // Two pages with chunks, and the last.
        for (mut most, enough) in [(3, true), (2, false)] {
            let looked_at = service.scrape_until(&mut most, |_| ControlFlow::Continue(()));
            assert_eq!((looked_at.is_continue(), most), (enough, 0));
        }
    }
}
