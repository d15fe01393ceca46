//! An instrumented program: what it does is recorded whenever a session asks for it.
//!
//! ```text
//! cargo run --example track_events &
//! ferretto -t 2s -o trace.pftrace track_event sched/sched_switch
//! ```

use std::time::{Duration, Instant};

use ferretto::track::{CounterTrack, CounterUnit, NamedTrack};
use ferretto::{
    Options, trace_counter, trace_event, trace_event_begin, trace_event_end, trace_event_instant,
};

static FRAMES: NamedTrack = NamedTrack::new("Frames").description("From input to output");
static HEAP: CounterTrack = CounterTrack::new("Heap").unit(CounterUnit::SizeBytes);

fn main() {
    ferretto::initialize(Options::system().producer_name("track_events"));
    let end = Instant::now() + Duration::from_secs(10);
    let mut frame = 0u64;
    while Instant::now() < end {
        trace_event_begin!("rendering", "Frame", track = &FRAMES, "number" => frame);
        draw(frame);
        trace_event_end!("rendering", track = &FRAMES);
        trace_counter!("memory", &HEAP, 4096 * (frame % 10));
        frame += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn draw(frame: u64) {
    trace_event!("rendering", "Draw");
    for player in 0..3 {
        trace_event!("rendering", "DrawPlayer", "player" => player);
        if frame.is_multiple_of(7) {
            trace_event_instant!("rendering", "Dropped", "reason" => "busy", flow = frame);
        }
    }
}
