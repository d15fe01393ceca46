//! The crate `tracy-client`. Without a profiler that is connected its events stay in its queue, so each touches new memory.

use std::process::ExitCode;

use tracy_client::{Client, PlotName, plot_name, span};

use ferretto_bench_sdk::case::{Case, NAMES};
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

struct Tracy;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&Tracy)
}

impl Peer for Tracy {
    fn name(&self) -> &'static str {
        "tracy-client"
    }

    fn package(&self) -> Option<&'static str> {
        Some("tracy-client")
    }

    fn destination(&self) -> Destination {
        Destination::Memory
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(pair),
            Case::Counter => Some(counter),
            Case::DynamicName => Some(dynamic_name),
            // Its messages have no arguments.
            Case::Instant | Case::Span => None,
        }
    }

    fn set_up(&self, _tracing: Tracing, _shared_memory: SharedMemory) {
        Client::start();
    }

    fn is_recording(&self) -> bool {
        Client::is_running()
    }

    /// Only in builds that record nothing until a profiler is connected.
    fn can_be_off(&self, _case: Case) -> bool {
        false
    }
}

fn pair(count: u64) {
    for _ in 0..count {
        let _span = span!("slice");
    }
}

fn counter(count: u64) {
    const NAME: PlotName = plot_name!("counter");
    for number in 0..count {
        Client::running()
            .expect("it was started")
            .plot(NAME, number as f64);
    }
}

fn dynamic_name(count: u64) {
    let names = &NAMES.rust;
    for number in 0..count {
        let name = &names[number as usize % names.len()];
        let client = Client::running().expect("it was started");
        let _span = client.span_alloc(Some(name), "dynamic_name", file!(), line!(), 0);
    }
}
