//! The states of a connection, its failures, and their reasons.
//!
//! ```text
//! cargo run --example connection [FILE]
//! ```

use std::fmt;
use std::thread::sleep;
use std::time::Duration;

use ferretto::track::StateTrack;
use ferretto::{LogPriority, trace_event_instant, trace_function, trace_state};

static CONNECTION: StateTrack = StateTrack::new("Connection");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = ferretto::record_to(path.as_deref().unwrap_or("trace.pftrace"))?;

    for attempt in 1.. {
        // Each state lasts until the next one.
        trace_state!("net", &CONNECTION, "Connecting", "attempt" => attempt);
        if connect(attempt).is_ok() {
            break;
        }
        trace_state!("net", &CONNECTION, "Waiting");
        sleep(Duration::from_millis(10));
    }
    trace_state!("net", &CONNECTION, "Connected");
    transfer();
    trace_state!("net", &CONNECTION, "Closed");
    Ok(())
}

/// If it fails, the error is an argument of the slice, and a line of the trace's log.
#[trace_function("net", args, err)]
fn connect(attempt: u32) -> Result<(), Refused> {
    sleep(Duration::from_millis(5));
    if attempt < 3 {
        return Err(Refused("too many connections"));
    }
    Ok(())
}

#[trace_function("net")]
fn transfer() {
    sleep(Duration::from_millis(20));
    trace_event_instant!("net", "Low on window", |event| {
        event.log_message("the peer reads slowly", LogPriority::Warning);
    });
}

struct Refused(&'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.0)
    }
}
