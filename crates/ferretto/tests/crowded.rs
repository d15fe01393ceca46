//! 1,024 threads in 256 KiB of shared memory, which has fewer chunks: threads that sleep leave theirs to those that write, and nothing is lost.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::thread;

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{BufferExhaustedPolicy, Options, trace_event_instant};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_wire::Reader;
use rustix::thread::{MembarrierQuery, membarrier_query};

const THREADS: usize = 1024;
/// The number of events of each thread in a round. Between two rounds of a thread, all others have theirs.
const BURST: usize = 30;
const ROUNDS: usize = 3;
const MEMORY: u32 = 256 * 1024;

/// With this policy, writers wait for chunks, so the result does not depend on time. If sleeping threads kept their chunks, no chunk would become
/// free until the writers give up.
#[test]
fn a_thousand_threads_that_write_in_turn_lose_nothing() {
    if !has_barrier() {
        println!("skipped: the kernel has no membarrier, and chunks are not taken back");
        return;
    }
    let pid_max = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let ids: usize = pid_max.trim_end().parse().unwrap();
    if ids < 2 * THREADS {
        println!("skipped: {THREADS} threads need ids, and this system has {ids} for all its threads");
        return;
    }
    let options = Options::in_process()
        .shared_memory_size(MEMORY)
        .track_event_policy(BufferExhaustedPolicy::StallThenDrop);
    ferretto::initialize(options);
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64 * 1024)
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    let round_over = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let round_over = round_over.clone();
            thread::Builder::new()
                .stack_size(128 * 1024)
                .spawn(move || {
                    for _ in 0..ROUNDS {
                        for number in 0..BURST {
                            trace_event_instant!("crowd", "instant", "number" => number as u64);
                        }
                        // All threads stay alive, and keep their sequences.
                        round_over.wait();
                    }
                })
                .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    session.stop_blocking().unwrap();
    let trace = session.read_to_end().unwrap();
    let mut events: HashMap<u32, usize> = HashMap::new();
    for field in Reader::new(&trace) {
        let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
        if let (Some(TrustedPacketSequenceId(sequence)), Some(Data::TrackEvent(_))) =
            (packet.optional_trusted_packet_sequence_id, &packet.data)
        {
            *events.entry(sequence).or_default() += 1;
        }
    }
    assert_eq!(events.len(), THREADS, "threads in the trace");
    let short: Vec<_> = events
        .iter()
        .filter(|(_, count)| **count != ROUNDS * BURST)
        .collect();
    assert!(
        short.is_empty(),
        "threads that lost events, and what is left: {short:?}"
    );
}

/// Whether the kernel has the barrier. Linux before 4.14 and some sandboxes lack it.
fn has_barrier() -> bool {
    membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
}
