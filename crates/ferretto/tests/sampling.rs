//! That traces of sampled categories tell how much there was, whenever their sessions come and go.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod trace_processor;

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Category, Options, SampledCategory, trace_event};

static REQUESTS: SampledCategory = Category::new("requests").sample(0.1);
const EVENTS: u64 = 2000;

fn started() -> Session {
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(1024)
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    session
}

fn record() {
    for _ in 0..EVENTS {
        trace_event!(&REQUESTS, "Request");
    }
}

/// The slices of a trace, and the rise of the counter of events that were left out; if there is a trace processor.
fn told(trace: &[u8]) -> Option<[u64; 2]> {
    let query = "select (select count(*) from slice where category = 'requests'), cast(max(value) - min(value) as int) \
                 from counter join track on counter.track_id = track.id where track.name = 'requests'";
    trace_processor::ask_numbers(trace, query)
}

#[test]
fn recorded_and_omitted_slices_add_up_in_every_session() {
    ferretto::initialize(Options::in_process());
    let first = started();
    record();
    // It begins when much has been left out already.
    let second = started();
    record();
    first.stop_blocking().unwrap();
    record();
    second.stop_blocking().unwrap();
    record();
    for session in [first, second] {
        let trace = session.read_to_end().unwrap();
        if let Some([slices, left_out]) = told(&trace) {
            assert_eq!(slices + left_out, 2 * EVENTS);
        }
    }
}
