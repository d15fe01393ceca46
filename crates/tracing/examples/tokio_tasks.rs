//! Asynchronous functions on tokio's threads, recorded into `tokio.pftrace`, or the file that is named: open it at
//! <https://ui.perfetto.dev>.
//!
//! Each request has a track with its work from its beginning to its end, waiting included. The tracks of the threads show which parts they did and
//! when, in the same colour.

use std::time::Duration;

use ferretto::session::{DataSource, Session, TraceConfig};
use tokio::time::sleep;
use tracing_subscriber::prelude::*;

#[tracing::instrument]
async fn request(number: u64) {
    let rows = query(number).await;
    tracing::info!(rows, "answering");
    // Both at the same time, so on a track each.
    tokio::join!(send("header"), send("body"));
}

#[tracing::instrument]
async fn query(number: u64) -> u64 {
    sleep(Duration::from_millis(3 + number % 4)).await;
    number * 10
}

#[tracing::instrument]
async fn send(part: &str) {
    sleep(Duration::from_millis(2)).await;
}

#[tokio::main(worker_threads = 3)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(ferretto::Options::in_process());
    tracing_subscriber::registry()
        .with(ferretto_tracing::layer())
        .init();

    let session = Session::in_process();
    session.setup(
        &TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::track_event()),
    )?;
    session.start_blocking()?;

    let mut requests = Vec::new();
    for number in 0..8 {
        requests.push(tokio::spawn(request(number)));
        sleep(Duration::from_millis(2)).await;
    }
    for request in requests {
        request.await?;
    }

    session.stop_blocking()?;
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tokio.pftrace".to_owned());
    session.write_to(&mut std::fs::File::create(&path)?)?;
    println!("recorded {path}");
    Ok(())
}
