//! Async code on tokio: functions and futures as slices that survive await points and hops between threads.
//!
//! ```text
//! cargo run --example tokio [FILE]
//! ```
//!
//! Records itself; open `tokio.pftrace` at <https://ui.perfetto.dev>. Slices of futures are below `Async`, a line for each that is under
//! way at the same time; what runs is on the threads' tracks.

use std::fs::File;
use std::time::Duration;

use ferretto::future::TraceFuture;
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_async, trace_event_instant, trace_function, trace_slice};
use tokio::time::sleep;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(Options::in_process());
    let session = Session::in_process();
    session.setup(
        &TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::track_event()),
    )?;
    session.start_blocking()?;

    let requests: Vec<_> = (0..8).map(|number| tokio::spawn(serve(number))).collect();
    let mut bytes = 0;
    for request in requests {
        bytes += request.await?;
    }

    session.stop_blocking()?;
    let path = std::env::args().nth(1);
    let path = path.as_deref().unwrap_or("tokio.pftrace");
    session.write_to(&mut File::create(path)?)?;
    println!("{bytes} bytes served; the trace is in {path}");
    Ok(())
}

/// A slice from the first poll to the end, whichever threads poll it.
#[trace_function("net", args(number))]
async fn serve(number: u64) -> usize {
    // Only this future's: a guard that is held over an await would be a slice on some thread's track.
    let head = read(number, 1).await;
    let body = read(number, 3)
        // When it has a thread, and which.
        .polls_in(|| trace_slice!("net", "Poll body"))
        .in_slice(|| trace_async!("net", "Body", "number" => number))
        .await;
    trace_event_instant!("net", "Served", "number" => number);
    head + body
}

#[trace_function("net", args(number, parts))]
async fn read(number: u64, parts: usize) -> usize {
    for _ in 0..parts {
        sleep(Duration::from_millis(1 + number % 3)).await;
    }
    parts * 512
}
