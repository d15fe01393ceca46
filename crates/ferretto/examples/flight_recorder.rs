//! A flight recorder: the last seconds are always in memory, and go into a file when a request took too long.
//!
//! ```text
//! cargo run --example flight_recorder [FILE]
//! ```

use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferretto::session::{CloneSource, DataSource, Session, TraceConfig};
use ferretto::{Options, trace_function};

const NAME: &str = "flight-recorder";
const TOO_LONG: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(Options::in_process());
    let recorder = Session::in_process();
    recorder.setup(
        &TraceConfig::new()
            // A ring: the latest 4 MB of events.
            .buffer_kb(4096)
            .data_source(DataSource::track_event())
            .unique_session_name(NAME),
    )?;
    recorder.start_blocking()?;

    let path = std::env::args().nth(1);
    let path = path.as_deref().unwrap_or("trace.pftrace");
    for number in 0..100 {
        let began = Instant::now();
        handle(number);
        if began.elapsed() > TOO_LONG {
            // The slice of the request has ended, so its end is recorded, too.
            save(path)?;
            println!("request {number} took too long: see {path}");
            break;
        }
    }
    Ok(())
}

/// Writes the contents of the ring buffer into a file. The recording goes on.
fn save(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let snapshot = Session::in_process();
    snapshot.clone_session(&CloneSource::Name(NAME.to_owned()))?;
    snapshot.write_to(&mut File::create(path)?)?;
    Ok(())
}

#[trace_function("server", args)]
fn handle(number: u32) {
    look_up(number);
    render();
}

#[trace_function("server")]
fn look_up(number: u32) {
    let is_cached = number != 50;
    sleep(Duration::from_millis(if is_cached { 1 } else { 120 }));
}

#[trace_function("server")]
fn render() {
    sleep(Duration::from_millis(1));
}
