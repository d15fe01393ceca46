//! A program that records itself together with the kernel's scheduling: was it running, or what did it wait for?
//!
//! ```text
//! cargo run --example beside_the_kernel [FILE]
//! ```
//!
//! The daemons `traced` and, as root, `traced_probes` have to run.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferretto::session::DataSource;
use ferretto::{RecordingOptions, trace_event};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = RecordingOptions::new()
        .system()
        .data_source(DataSource::ftrace(["sched/sched_switch", "sched/sched_waking"]))
        .data_source(DataSource::new("linux.process_stats"))
        .record_to(path.as_deref().unwrap_or("trace.pftrace"))?;

    let ledger = Mutex::new(0);
    std::thread::scope(|scope| {
        for name in ["clerk 1", "clerk 2"] {
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, || (0..20).for_each(|_| book(&ledger)))?;
        }
        Ok(())
    })
}

fn book(ledger: &Mutex<u64>) {
    trace_event!("work", "Book");
    let mut entries = {
        trace_event!("work", "Wait for the ledger");
        ledger.lock().expect("nobody panics with it")
    };
    trace_event!("work", "Write");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2) {
        *entries += 1;
    }
}
