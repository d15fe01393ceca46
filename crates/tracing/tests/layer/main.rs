//! The layer, recorded by the service in this process and read back.

#![allow(clippy::unwrap_used)]

mod events;
mod futures;
mod random;
mod spans;
mod trace;
mod truth;

use tracing_subscriber::Registry;
use tracing_subscriber::prelude::*;

/// Does `work` with the layer.
fn with_layer<R>(work: impl FnOnce() -> R) -> R {
    with(ferretto_tracing::layer(), work)
}

fn with<R>(layer: ferretto_tracing::TrackEventLayer<Registry>, work: impl FnOnce() -> R) -> R {
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work)
}
