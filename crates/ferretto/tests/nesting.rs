//! Threads that record as fast as they can through too little shared memory: the slices that are not lost keep their nesting.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod trace_processor;

use std::collections::{HashMap, HashSet};

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::track::NamedTrack;
use ferretto::{Options, slices_left_open, trace_async, trace_event_begin, trace_event_end, trace_slice};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::track_event::{NameField, Type};
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_wire::Reader;

/// How often each thread does everything.
const ROUNDS: usize = 100_000;
/// Four slices in a round, of two threads.
const SLICES: usize = 2 * 4 * ROUNDS;

static SHARED: NamedTrack = NamedTrack::new("Of one of them");

#[test]
fn flat_slices_stay_flat_through_losses() {
    ferretto::initialize(Options::in_process().shared_memory_size(16 << 10).page_size(4096));
    let session = Session::in_process();
    session
        .setup(
            &TraceConfig::new()
                .buffer_kb(128 << 10)
                .data_source(DataSource::track_event()),
        )
        .unwrap();
    session.start_blocking().unwrap();
    let threads = [0, 1].map(|thread| std::thread::spawn(move || record(thread)));
    for thread in threads {
        thread.join().unwrap();
    }
    record_one();
    session.stop_blocking().unwrap();
    let trace = session.read_to_end().unwrap();

    let found = Found::in_trace(&trace);
    println!("{} of {SLICES} slices, {} losses", found.began, found.losses);
    assert!(found.losses > 0 && found.began < SLICES, "nothing was lost");
    assert!(found.began > 1000, "hardly anything is left");
    assert_eq!(found.ends_of_nothing, 0);
    assert_eq!(found.left_open, slices_left_open().cast_signed());
    read_by_trace_processor(&trace);
}

fn record(thread: usize) {
    for _ in 0..ROUNDS {
        {
            let _outer = trace_slice!("nesting", "Outer");
            let _inner = trace_slice!("nesting", "Inner");
        }
        match thread {
            0 => {
                trace_event_begin!("nesting", "Flat");
                trace_event_end!("nesting");
                trace_event_begin!("nesting", "Flat on a track", track = &SHARED);
                trace_event_end!("nesting", track = &SHARED);
            }
            _ => {
                drop(trace_slice!("nesting", "Flat", "number" => 1));
                drop(trace_async!("nesting", "Flat async"));
            }
        }
    }
    record_one();
}

/// Records a slice as soon as there is memory, and so also the ends that are owed.
fn record_one() {
    while !trace_slice!("nesting", "Flat").is_recorded() {
        std::thread::yield_now();
    }
}

/// The contents of a trace, as readers see them.
#[derive(Debug, Default)]
struct Found {
    began: usize,
    losses: usize,
    ends_of_nothing: usize,
    left_open: i64,
}

impl Found {
    /// All events on a thread's own track are in its sequence and in order. On other tracks another thread may have to write a lost end, so their events
    /// are only counted.
    fn in_trace(trace: &[u8]) -> Self {
        let mut found = Self::default();
        let mut understood = HashSet::new();
        let mut names = HashMap::new();
        let mut open: HashMap<u32, Vec<String>> = HashMap::new();
        let mut open_elsewhere = 0;
        for field in Reader::new(trace) {
            let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
            let Some(TrustedPacketSequenceId(sequence)) = packet.optional_trusted_packet_sequence_id else {
                continue;
            };
            let is_first = packet.sequence_flags.unwrap_or(0) & 1 != 0;
            if packet.previous_packet_dropped.unwrap_or(0) != 0 {
                found.losses += 1;
                understood.remove(&sequence);
            }
            if is_first {
                understood.insert(sequence);
            }
            if !understood.contains(&sequence) {
                continue;
            }
            if let Some(interned) = packet.interned_data.as_option() {
                for entry in &interned.event_names {
                    names.insert((sequence, entry.iid.unwrap()), entry.name.clone().unwrap());
                }
            }
            let Some(Data::TrackEvent(event)) = packet.data else {
                continue;
            };
            let kind = event.r#type.unwrap();
            found.began += usize::from(kind == Type::TYPE_SLICE_BEGIN);
            let open = open.entry(sequence).or_default();
            match (kind, event.track_uuid, event.name_field) {
                (Type::TYPE_SLICE_BEGIN, None, Some(NameField::NameIid(name))) => {
                    let name = &names[&(sequence, name)];
                    if let Some(outer) = open.last() {
                        assert!(name == "Inner" && outer == "Outer", "{name} within {open:?}");
                    }
                    open.push(name.clone());
                }
                (Type::TYPE_SLICE_END, None, _) => found.ends_of_nothing += usize::from(open.pop().is_none()),
                (Type::TYPE_SLICE_BEGIN, Some(_), _) => open_elsewhere += 1,
                (Type::TYPE_SLICE_END, Some(_), _) => open_elsewhere -= 1,
                other => panic!("{other:?}"),
            }
        }
        found.left_open = open.values().map(|open| open.len() as i64).sum::<i64>() + open_elsewhere;
        found
    }
}

/// Has upstream's trace processor read it, if there is one.
fn read_by_trace_processor(trace: &[u8]) {
    let query = "select max(depth) as deepest, max(iif(name = 'Inner', 0, depth)) as deepest_flat, \
                 sum(dur < 0) as open from slice";
    if let Some(numbers) = trace_processor::ask_numbers(trace, query) {
        assert_eq!(numbers, [1, 0, slices_left_open()]);
    }
}
