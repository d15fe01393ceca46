//! Shared memory that a hostile producer writes: page headers and chunks of any content, through `ServiceSmb` and
//! `ProducerSmb`, against a naive reading of the same bytes.
//!
//! The first byte of the input chooses the sizes of pages and buffer, the rest are operations.

#![no_main]

use std::os::fd::AsFd;
use std::sync::Arc;

use ferretto_fuzz::Input;
use ferretto_smb::{
    ChunkFlags, ChunkHeader, ChunkId, ChunkRefused, ChunkState, Completeness, FirstPacket, MAX_PAYLOAD_LEN,
    NewChunk, PageHeader, PageLayout, PageSize, ProducerSmb, ServiceSmb, SharedMemory, WriterId,
};
use libfuzzer_sys::fuzz_target;

/// In front of a page's chunks: the header and a reserved word.
const CHUNKS_OFFSET: usize = 8;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let shape = input.byte();
    let page_size = PageSize::new(4096 << (shape % 5)).expect("a page size");
    let pages = 1 + usize::from(shape >> 6 & 1);
    let memory = Arc::new(SharedMemory::create(pages * page_size.bytes()).expect("memory"));
    let service = ServiceSmb::new(memory.clone(), page_size).expect("pages");
    let producer = Arc::new(ProducerSmb::new(memory.clone(), page_size).expect("pages"));
    let mut payload = Vec::new();
    while !input.0.is_empty() {
        let (operation, page) = (input.byte(), usize::from(input.byte()) % (pages + 1));
        match operation % 5 {
            0 => write(&memory, page * page_size.bytes(), input.bytes(4)),
            1 => {
                let offset = input.number() as usize % page_size.bytes();
                let count = input.byte();
                write(
                    &memory,
                    page * page_size.bytes() + offset,
                    input.bytes(count.into()),
                );
            }
            2 => {
                let chunk = usize::from(input.byte() % 16);
                let before = content(&memory);
                let moved = service.copy_chunk(page, chunk, &mut payload);
                let expected = naive_copy(&before, page_size, page, chunk);
                assert_eq!(moved.map(|header| (header, &payload[..])), expected);
                let header = service.page_header(page);
                match moved {
                    Ok(_) => {
                        let state = header.expect("a page").state(chunk);
                        assert!(
                            matches!(state, None | Some(ChunkState::Free)),
                            "moved, and {state:?}"
                        );
                    }
                    Err(_) => assert!(content(&memory) == before, "refused, and the memory has changed"),
                }
            }
            3 => {
                let before = content(&memory);
                let mut scraped = Vec::new();
                service.scrape(|chunk| {
                    chunk.copy_payload(&mut payload);
                    scraped.push((chunk.header(), chunk.completeness(), payload.clone()));
                });
                assert!(scraped == naive_scrape(&before, page_size));
                assert!(content(&memory) == before, "scraping has changed the memory");
            }
            _ => {
                let layout = PageLayout::ALL[page % PageLayout::ALL.len()];
                let new = NewChunk {
                    writer: WriterId(1),
                    chunk: ChunkId(operation.into()),
                    first: FirstPacket::Whole,
                };
                let Some(mut chunk) = producer.take_chunk(layout, new) else {
                    continue;
                };
                let count = input.byte();
                let bytes = input.bytes(count.into());
                chunk.write(chunk.payload_len() - bytes.len(), bytes);
                chunk.set_flags(ChunkFlags::from_bits(operation));
                chunk.publish(u16::from(operation) * 4);
                let (page, index) = (chunk.page(), chunk.index());
                let state = || service.page_header(page).expect("a page").state(index);
                assert_eq!(state(), Some(ChunkState::BeingWritten));
                chunk.complete();
                assert_eq!(state(), Some(ChunkState::Complete));
            }
        }
    }
});

/// Writes as the producer would through its own mapping; what lies behind the end is left out.
fn write(memory: &SharedMemory, offset: usize, bytes: &[u8]) {
    let room = memory.size().saturating_sub(offset);
    let bytes = &bytes[..bytes.len().min(room)];
    let written = rustix::io::pwrite(memory.as_fd(), bytes, offset as u64).expect("a file in memory");
    assert_eq!(written, bytes.len());
}

fn content(memory: &SharedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.size()];
    let read = rustix::io::pread(memory.as_fd(), &mut bytes[..], 0).expect("a file in memory");
    assert_eq!(read, bytes.len());
    bytes
}

/// The header word of a page, and the chunk with this number, if the page has it.
fn naive_chunk(memory: &[u8], page_size: PageSize, page: usize, chunk: usize) -> (PageHeader, Option<&[u8]>) {
    let page = &memory[page * page_size.bytes()..][..page_size.bytes()];
    let word = u32::from_le_bytes(*page.first_chunk().expect("a page is longer than a word"));
    let header = PageHeader::from_bits(word);
    let size = header.layout().map_or(0, |layout| layout.chunk_size(page_size));
    let chunk = (chunk < header.chunks()).then(|| &page[CHUNKS_OFFSET + chunk * size..][..size]);
    (header, chunk)
}

fn naive_copy(
    memory: &[u8],
    page_size: PageSize,
    page: usize,
    chunk: usize,
) -> Result<(ChunkHeader, &[u8]), ChunkRefused> {
    let pages = memory.len() / page_size.bytes();
    if page >= pages {
        return Err(ChunkRefused::NoSuchPage { pages });
    }
    let (header, bytes) = naive_chunk(memory, page_size, page, chunk);
    match (header.state(chunk), bytes) {
        (Some(ChunkState::Complete), Some(bytes)) => {
            Ok(ChunkHeader::split(bytes).expect("longer than its header"))
        }
        (Some(state), _) => Err(ChunkRefused::NotComplete { state }),
        (None, _) => Err(ChunkRefused::NoSuchChunk {
            chunks: header.chunks(),
        }),
    }
}

fn naive_scrape(memory: &[u8], page_size: PageSize) -> Vec<(ChunkHeader, Completeness, Vec<u8>)> {
    let mut found = Vec::new();
    for page in 0..memory.len() / page_size.bytes() {
        for chunk in 0..16 {
            let (page_header, Some(bytes)) = naive_chunk(memory, page_size, page, chunk) else {
                continue;
            };
            let (header, payload) = ChunkHeader::split(bytes).expect("longer than its header");
            assert!(payload.len() <= MAX_PAYLOAD_LEN);
            let completeness = match page_header.state(chunk) {
                Some(ChunkState::Complete) => Completeness::Complete,
                Some(ChunkState::BeingWritten) if header.packet_count >= 2 => Completeness::BeingWritten,
                _ => continue,
            };
            found.push((header, completeness, payload.to_vec()));
        }
    }
    found
}
