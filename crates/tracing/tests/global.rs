//! What only happens with a subscriber for all threads: `tracing` lets nothing through to others while they are at work.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "layer/trace.rs"]
mod trace;

use trace::{Argument, Recording};
use tracing::info_span;
use tracing_subscriber::prelude::*;

#[test]
fn what_values_trace_while_they_are_formatted_is_recorded_too() {
    struct Tracing;
    impl std::fmt::Debug for Tracing {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let _span = info_span!("formatting").entered();
            tracing::info!(nested = 1, "within");
            f.write_str("formatted")
        }
    }
    tracing_subscriber::registry()
        .with(ferretto_tracing::layer())
        .init();
    let recording = Recording::start();
    {
        let _span = info_span!("outer", value = ?Tracing).entered();
        tracing::info!(value = ?Tracing, "event");
    }
    let trace = recording.stop();
    let formatted = [("value".to_owned(), Argument::Text("formatted".into()))];
    assert_eq!(trace.slice("outer").arguments, formatted.clone().into());
    assert_eq!(trace.instant("event").arguments, formatted.into());
    assert_eq!(trace.named("formatting").count(), 2);
    assert_eq!(
        trace
            .instants
            .iter()
            .filter(|instant| instant.name == "within")
            .count(),
        2
    );
}
