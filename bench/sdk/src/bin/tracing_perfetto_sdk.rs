//! The layer `tracing-perfetto-sdk`, on the crate `perfetto-sdk`.

use std::process::ExitCode;

use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::track_event::TrackEvent;
use perfetto_sdk::track_event_category_enabled;
use tracing_perfetto_sdk::{PerfettoLayer, perfetto_te_ns};
use tracing_subscriber::prelude::*;

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};
use ferretto_bench_sdk::spans;

struct TracingPerfettoSdk;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&TracingPerfettoSdk)
}

impl Peer for TracingPerfettoSdk {
    fn name(&self) -> &'static str {
        "tracing-perfetto-sdk"
    }

    fn package(&self) -> Option<&'static str> {
        Some("tracing-perfetto-sdk")
    }

    fn destination(&self) -> Destination {
        Destination::Service
    }

    fn body(&self, case: Case) -> Option<Body> {
        (case == Case::Span).then_some(spans::span as Body)
    }

    fn set_up(&self, _tracing: Tracing, shared_memory: SharedMemory) {
        // As the crate's own `init_system`, but for the size of the memory.
        Producer::init(
            ProducerInitArgsBuilder::new()
                .backends(Backends::SYSTEM)
                .shmem_size_hint_kb(shared_memory.hint())
                .build(),
        );
        TrackEvent::init();
        perfetto_te_ns::register().expect("the categories are registered once");
        tracing_subscriber::registry().with(PerfettoLayer::new()).init();
    }

    fn is_recording(&self) -> bool {
        track_event_category_enabled!("tracing")
    }
}
