//! An instrumented program. A session that asks for its events records them beside everything else in the trace.
//!
//! ```text
//! cargo run --example track_events [SECONDS]
//! ```
//!
//! and meanwhile, for a trace with the kernel's scheduling in it, a recording with the data sources `track_event` and `linux.ftrace`: the
//! README has a config.

use std::time::{Duration, Instant};

use ferretto::track::{CounterTrack, CounterUnit, NamedTrack, StateTrack};
use ferretto::{
    Category, Options, trace_counter, trace_event, trace_event_begin, trace_event_end, trace_event_instant,
    trace_state,
};

static RENDERING: Category = Category::new("rendering").description("From input to output");
static MEMORY: Category = Category::new("memory").description("What is allocated");

static FRAMES: NamedTrack = NamedTrack::new("Frames").description("From input to output");
static HEAP: CounterTrack = CounterTrack::new("Heap").unit(CounterUnit::SizeBytes);
static SCENE: StateTrack = StateTrack::new("Scene");

fn main() {
    ferretto::initialize(Options::system().producer_name("track_events"));
    // Listed by `perfetto --query` from now on, not only once there was an event.
    ferretto::register_categories(&[&RENDERING, &MEMORY]);

    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds.unwrap_or(10));
    let mut told = false;
    for frame in 0.. {
        if Instant::now() >= end {
            break;
        }
        if !told && begin.elapsed() > Duration::from_secs(1) {
            // Prints who records this program, or why nobody does.
            println!("{}", ferretto::status());
            told = true;
        }
        trace_event_begin!(&RENDERING, "Frame", track = &FRAMES, "number" => frame);
        draw(frame);
        trace_event_end!(&RENDERING, track = &FRAMES);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn draw(frame: u64) {
    trace_event!(&RENDERING, "Draw");
    if frame.is_multiple_of(20) {
        let scene = if frame.is_multiple_of(40) {
            "Indoors"
        } else {
            "Outdoors"
        };
        trace_state!(&RENDERING, &SCENE, scene);
    }
    for player in 0..3 {
        // Ends with the block.
        trace_event!(&RENDERING, "DrawPlayer", "player" => player, "visible" => player != 1);
        // An arrow from the frame that decides to the one that heeds it.
        if player == 2 && frame.is_multiple_of(7) {
            trace_event_instant!(&RENDERING, "Dropped", "reason" => "busy", flow = frame);
        } else if player == 2 && frame % 7 == 1 {
            trace_event_instant!(&RENDERING, "Caught up", terminating_flow = frame - 1);
        }
    }
    trace_counter!(&MEMORY, &HEAP, 4096 * (frame % 10));
}
