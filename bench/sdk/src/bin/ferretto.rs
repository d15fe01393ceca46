//! The crate `ferretto`, as it is in this repository.

use std::process::ExitCode;

use ferretto::{
    Options, trace_category_enabled, trace_counter, trace_event_begin, trace_event_end, trace_event_instant,
};

use ferretto_bench_sdk::case::{Case, NAMES, TEXT};
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

struct Ferretto;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&Ferretto)
}

impl Peer for Ferretto {
    fn name(&self) -> &'static str {
        "ferretto"
    }

    fn package(&self) -> Option<&'static str> {
        Some("ferretto")
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
        let options = match shared_memory {
            SharedMemory::Default => Options::system(),
            SharedMemory::Kilobytes(kilobytes) => Options::system().shared_memory_size(kilobytes * 1024),
        };
        ferretto::initialize(options);
    }

    fn is_recording(&self) -> bool {
        trace_category_enabled!("bench")
    }
}

fn pair(count: u64) {
    for _ in 0..count {
        trace_event_begin!("bench", "slice");
        trace_event_end!("bench");
    }
}

fn instant(count: u64) {
    for number in 0..count {
        trace_event_instant!("bench", "instant", "number" => number as i64, "text" => TEXT);
    }
}

fn counter(count: u64) {
    for number in 0..count {
        trace_counter!("bench", "counter", number as i64);
    }
}

fn dynamic_name(count: u64) {
    let names = &NAMES.rust;
    for number in 0..count {
        trace_event_begin!("bench", names[number as usize % names.len()].as_str());
        trace_event_end!("bench");
    }
}
