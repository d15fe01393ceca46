//! A layer that does nothing on `tracing-subscriber`'s registry: what a span costs before any layer has a part in it.

use std::process::ExitCode;

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::prelude::*;

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};
use ferretto_bench_sdk::spans;

struct Empty;

impl<S: Subscriber> Layer<S> for Empty {}

struct EmptyLayer;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&EmptyLayer)
}

impl Peer for EmptyLayer {
    fn name(&self) -> &'static str {
        "empty-layer"
    }

    fn package(&self) -> Option<&'static str> {
        Some("tracing-subscriber")
    }

    fn destination(&self) -> Destination {
        Destination::Nowhere
    }

    fn body(&self, case: Case) -> Option<Body> {
        (case == Case::Span).then_some(spans::span as Body)
    }

    fn set_up(&self, _tracing: Tracing, _shared_memory: SharedMemory) {
        tracing_subscriber::registry().with(Empty).init();
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn can_be_off(&self, _case: Case) -> bool {
        false
    }
}
