//! The daemons, `traced` and `traced_probes`, and what a process that serves others begins with: its log, what it was given by whoever started it,
//! the background.
//!
//! The daemons run with privileges. So this crate knows no tool: what reads traces, judges configs or talks to browsers is in `ferretto-cli`,
//! whose binaries `traced` and `traced_probes` have the code of this crate only.
#![deny(unsafe_code)]

pub mod background;
mod daemon;
pub mod inherited;
pub mod log;
mod open_files;
mod priority;
pub mod starter;
pub mod traced;
pub mod traced_probes;

/// What `--version` prints and traces say of the service that recorded them: the release of Perfetto that we are compatible
/// with, where scripts look for it, and our own.
pub const VERSION: &str = concat!("Perfetto v58.2 (Ferretto ", env!("CARGO_PKG_VERSION"), ")");
