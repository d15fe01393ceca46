//! The crate `perfetto-sdk`: Rust on upstream's C library.

use std::process::ExitCode;
use std::sync::LazyLock;

use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::track_event::{
    EventContext, TrackEvent, TrackEventCounter, TrackEventDebugArg, TrackEventTrack, TrackEventType,
};
use perfetto_sdk::{
    track_event, track_event_begin, track_event_categories, track_event_category_enabled,
    track_event_counter, track_event_end, track_event_instant,
};

use ferretto_bench_sdk::case::{Case, NAMES, TEXT};
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

track_event_categories! {
    pub mod categories {
        ("bench", "What the benchmark emits", []),
    }
}
use categories as perfetto_te_ns;

static COUNTER: LazyLock<TrackEventTrack> = LazyLock::new(|| {
    TrackEventTrack::register_counter_track("counter", TrackEventTrack::process_track_uuid())
        .expect("its name has no zero byte")
});

struct PerfettoSdk;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&PerfettoSdk)
}

impl Peer for PerfettoSdk {
    fn name(&self) -> &'static str {
        "perfetto-sdk"
    }

    fn package(&self) -> Option<&'static str> {
        Some("perfetto-sdk")
    }

    fn destination(&self) -> Destination {
        Destination::Service
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(pair),
            Case::Instant => Some(instant),
            Case::Counter => Some(counter),
            Case::DynamicName => Some(dynamic_name),
            Case::Span => None,
        }
    }

    fn set_up(&self, _tracing: Tracing, shared_memory: SharedMemory) {
        Producer::init(
            ProducerInitArgsBuilder::new()
                .backends(Backends::SYSTEM)
                .shmem_size_hint_kb(shared_memory.hint())
                .build(),
        );
        TrackEvent::init();
        categories::register().expect("the categories are registered once");
    }

    fn is_recording(&self) -> bool {
        track_event_category_enabled!("bench")
    }
}

fn pair(count: u64) {
    for _ in 0..count {
        track_event_begin!("bench", "slice");
        track_event_end!("bench");
    }
}

fn instant(count: u64) {
    for number in 0..count {
        track_event_instant!("bench", "instant", |context: &mut EventContext| {
            context.add_debug_arg("number", TrackEventDebugArg::Int64(number as i64));
            context.add_debug_arg("text", TrackEventDebugArg::String(TEXT));
        });
    }
}

fn counter(count: u64) {
    let track = &*COUNTER;
    for number in 0..count {
        track_event_counter!("bench", |context: &mut EventContext| {
            context.set_track(track);
            context.set_counter(TrackEventCounter::Int64(number as i64));
        });
    }
}

fn dynamic_name(count: u64) {
    let names = &NAMES.c;
    for number in 0..count {
        let name = &names[number as usize % names.len()];
        track_event!("bench", TrackEventType::SliceBegin(name.as_ptr()));
        track_event_end!("bench");
    }
}
