//! A client of heap profiles and its daemon send each other anything: messages of any bytes, and a ring that a hostile client writes while it is read.
//!
//! The first byte chooses a message to be decoded, or operations on a ring: words that are overwritten, records that are written properly, turns of the
//! reader. The reader must end within bounds and never step outside of the bytes that the client claims to have written.

#![no_main]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ferretto_fuzz::Input;
use ferretto_heap_client::handshake::{Hello, Welcome};
use ferretto_heap_client::layout::{
    COMPLETE, HEADER_WORDS, Kind, MIN_RING_WORDS, MOST_RECORD_WORDS, TAKEN, header,
};
use ferretto_heap_client::ring::{Next, Reader, Ring};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => {
            if let Some(hello) = Hello::decode(input.0) {
                assert_eq!(hello.encode(), input.0);
            }
        }
        1 => {
            if let Some(welcome) = Welcome::decode(input.0) {
                let mut bytes = [0; Welcome::MOST_BYTES];
                let length = welcome.encode(&mut bytes);
                assert_eq!(Welcome::decode(&bytes[..length]), Some(welcome));
                assert_eq!(length, input.0.len());
            }
        }
        _ => ring(input),
    }
});

fn ring(mut input: Input<'_>) {
    let memory: Vec<AtomicU64> = (0..HEADER_WORDS + MIN_RING_WORDS)
        .map(|_| AtomicU64::new(0))
        .collect();
    let ring = Ring::new(&memory).expect("a possible size");
    ring.initialize();
    let (mut reader, mut payload) = (Reader::new(), Vec::new());
    while !input.0.is_empty() {
        let operation = input.byte();
        match operation % 6 {
            0 => memory[input.number() as usize % memory.len()]
                .store(u64::from(input.number()).rotate_left(operation.into()), Relaxed),
            1 => {
                // A head that is nearly right.
                let bits = [0, TAKEN, COMPLETE, TAKEN | COMPLETE][usize::from(operation >> 6)];
                let head = bits | u64::from(input.byte() % 6) << 32 | u64::from(input.byte());
                let place = reader.position() as usize % MIN_RING_WORDS;
                memory[HEADER_WORDS + place].store(head, Relaxed);
            }
            2 => {
                let write = reader.position().wrapping_add(u64::from(input.byte()) * 8);
                ring.header(header::WRITE).store(write, Relaxed);
            }
            3 => {
                let kinds = [Kind::Allocation, Kind::Free, Kind::Heap];
                let kind = kinds[usize::from(operation) / 6 % kinds.len()];
                if let Some(space) = ring.take(kind, input.byte().into()) {
                    space.write(0, operation.into());
                    if operation < 200 {
                        space.complete();
                    }
                }
            }
            4 => {
                let before = reader.position();
                let skipped = reader.skip_incomplete(ring);
                assert_eq!(skipped, reader.position() != before);
            }
            _ => {
                let (before, write) = (reader.position(), ring.header(header::WRITE).load(Relaxed));
                let next = reader.next(ring, &mut payload);
                let read = reader.position().wrapping_sub(before);
                assert!(read <= write.wrapping_sub(before) && read <= MIN_RING_WORDS as u64);
                if let Next::Record(kind) = next {
                    assert!(kind != Kind::Padding && payload.len() < MOST_RECORD_WORDS);
                    assert!(read > payload.len() as u64);
                }
            }
        }
    }
}
