//! The crate `perfetto-recorder`: events in a vector of each thread, which grows until the application makes a trace of it in the end.

use perfetto_recorder::{CounterTrack, CounterUnit, TraceBuilder, scope, time};

use std::process::ExitCode;
use std::sync::OnceLock;

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

static COUNTER: OnceLock<CounterTrack> = OnceLock::new();

struct PerfettoRecorder;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&PerfettoRecorder)
}

impl Peer for PerfettoRecorder {
    fn name(&self) -> &'static str {
        "perfetto-recorder"
    }

    fn package(&self) -> Option<&'static str> {
        Some("perfetto-recorder")
    }

    fn destination(&self) -> Destination {
        Destination::Memory
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(pair),
            Case::Counter => Some(counter),
            // It has no instants, and names are constants.
            Case::Instant | Case::DynamicName | Case::Span => None,
        }
    }

    fn set_up(&self, tracing: Tracing, _shared_memory: SharedMemory) {
        if tracing == Tracing::On {
            perfetto_recorder::start().expect("the crate's feature is on");
            let mut builder = TraceBuilder::new().expect("it was started");
            let track = builder.create_counter_track("counter", CounterUnit::Unspecified, 1, false);
            COUNTER.get_or_init(|| track);
        }
    }

    fn is_recording(&self) -> bool {
        perfetto_recorder::is_enabled()
    }

    /// Counter tracks are not to be had before a recording was started, after which it never stops.
    fn can_be_off(&self, case: Case) -> bool {
        case != Case::Counter
    }
}

fn pair(count: u64) {
    for _ in 0..count {
        scope!("slice");
    }
}

fn counter(count: u64) {
    let mut track = *COUNTER.get().expect("it is recording");
    for number in 0..count {
        track.record_i64(time(), number as i64);
    }
}
