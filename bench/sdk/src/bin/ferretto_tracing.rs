//! The layer `ferretto-tracing`, as it is in this repository.

use std::process::ExitCode;

use ferretto::{Options, trace_category_enabled};
use tracing_subscriber::prelude::*;

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};
use ferretto_bench_sdk::spans;

struct FerrettoTracing;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&FerrettoTracing)
}

impl Peer for FerrettoTracing {
    fn name(&self) -> &'static str {
        "ferretto-tracing"
    }

    fn package(&self) -> Option<&'static str> {
        Some("ferretto-tracing")
    }

    fn destination(&self) -> Destination {
        Destination::Service
    }

    fn body(&self, case: Case) -> Option<Body> {
        (case == Case::Span).then_some(spans::span as Body)
    }

    fn set_up(&self, _tracing: Tracing, shared_memory: SharedMemory) {
        let options = match shared_memory {
            SharedMemory::Default => Options::system(),
            SharedMemory::Kilobytes(kilobytes) => Options::system().shared_memory_size(kilobytes * 1024),
        };
        ferretto::initialize(options);
        tracing_subscriber::registry()
            .with(ferretto_tracing::layer())
            .init();
    }

    fn is_recording(&self) -> bool {
        // The target of the spans.
        trace_category_enabled!("ferretto_bench_sdk::spans")
    }
}
