//! A client of heap profiles writes anything: any words in the shared memory, or records with any payload, to books, to a dump.
//!
//! The first byte of the input chooses: with an even one the rest is the shared memory, header and ring; with an odd one it is a row of records, each with
//! a byte for its kind, one for its words, and their bytes.

#![no_main]

use std::os::fd::OwnedFd;

use ferretto_fuzz::{Input, assert_message};
use ferretto_heap::client::{About, Arrived};
use ferretto_heap::collector::{Collector, Entered, Who};
use ferretto_heap::config::HeapConfig;
use ferretto_heap::dump::Step;
use ferretto_heap::feed::Feed;
use ferretto_heap::memory::RingMemory;
use ferretto_heap_client::layout::{Kind, MIN_RING_WORDS};
use ferretto_profile::interning::Edition;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{HeapprofdConfig, Message, TracePacket};
use libfuzzer_sys::fuzz_target;

/// No process has this id.
const NOBODY: i32 = i32::MAX;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mode = input.byte();
    let (memory, file) = RingMemory::new(MIN_RING_WORDS).expect("there is memory");
    match mode & 1 {
        0 => write_words(&file, input.0),
        _ => write_records(&memory, &mut input),
    }
    let config = HeapprofdConfig {
        sampling_interval_bytes: Some(1),
        all: Some(true),
        dump_at_max: Some(mode & 2 != 0),
        stream_allocations: Some(mode & 6 == 4),
        ..Default::default()
    };
    let config = HeapConfig::of(&config).expect("it is good");
    let mut collector = Collector::new(&config);
    let mut feed = Feed::new(memory);
    let who = Who {
        pid: NOBODY,
        edition: Edition(mode.into()),
    };
    let mut packets: Vec<Vec<u8>> = Vec::new();
    let mut records = 0;
    loop {
        match collector.enter(who, &mut feed, &mut packets) {
            Entered::Record => records += 1,
            Entered::Incomplete => feed.pass_over(),
            Entered::Nothing | Entered::End => break,
        }
        assert!(records <= MIN_RING_WORDS, "more records than words");
    }
    let about = About {
        pid: NOBODY,
        arrived: Arrived(1),
        from_startup: true,
        ending: None,
    };
    let dumps = collector.dumps(&mut feed, |told, heap, until| about.header(told, heap, until));
    for mut dump in dumps {
        while collector.write(&mut dump, &mut packets) == Step::More {}
    }
    for packet in packets {
        assert_message(&packet);
        let packet = TracePacket::decode_from_slice(&packet).expect("it is a packet");
        if let Some(Data::ProfilePacket(profile)) = packet.data {
            for process in profile.process_dumps {
                assert!(process.start_timestamp <= process.timestamp);
                for sample in process.samples {
                    assert!(sample.callstack_id > Some(0));
                    assert!(
                        sample.self_freed <= sample.self_allocated && sample.free_count <= sample.alloc_count
                    );
                }
            }
        }
    }
});

fn write_words(file: &OwnedFd, words: &[u8]) {
    let most = 8 * (512 + MIN_RING_WORDS);
    let words = &words[..words.len().min(most)];
    rustix::io::pwrite(file, words, 0).expect("the file can be written");
}

fn write_records(memory: &RingMemory, input: &mut Input<'_>) {
    let ring = memory.ring().expect("it is one");
    while !input.0.is_empty() {
        let kind = [Kind::Allocation, Kind::Free, Kind::Heap][usize::from(input.byte() % 3)];
        let length = usize::from(input.byte());
        let Some(space) = ring.take(kind, length) else {
            return;
        };
        for index in 0..length {
            let mut word = [0; 8];
            let bytes = input.bytes(8);
            word[..bytes.len()].copy_from_slice(bytes);
            space.write(index, u64::from_le_bytes(word));
        }
        space.complete();
    }
}
