//! Spans and events of `tracing`, recorded by this process itself into `tracing.pftrace`, or the file that is named: open it at
//! <https://ui.perfetto.dev>.
//!
//! To record with the machine's tracing service instead, with the kernel's scheduling beside it, use `Options::system()`: then every session of that
//! service can record this process.

use std::time::Duration;

use ferretto::session::{DataSource, Session, TraceConfig};
use tracing_subscriber::prelude::*;

#[tracing::instrument]
fn render(frame: u32) {
    let objects = layout();
    tracing::info!(objects, "laid out");
    let _painting = tracing::info_span!("paint").entered();
    std::thread::sleep(Duration::from_millis(2));
    tracing::info!(counter.painted = objects);
}

#[tracing::instrument(level = "debug")]
fn layout() -> u32 {
    std::thread::sleep(Duration::from_millis(1));
    250
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(ferretto::Options::in_process());
    tracing_subscriber::registry()
        .with(ferretto_tracing::layer())
        .init();

    let session = Session::in_process();
    // The level DEBUG is only recorded if it is asked for.
    let source = DataSource::track_event().enable_tag("debug");
    session.setup(&TraceConfig::new().buffer_kb(4096).data_source(source))?;
    session.start_blocking()?;

    for frame in 0..5 {
        render(frame);
    }
    tracing::warn!("that was all");

    session.stop_blocking()?;
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tracing.pftrace".to_owned());
    session.write_to(&mut std::fs::File::create(&path)?)?;
    println!("recorded {path}");
    Ok(())
}
