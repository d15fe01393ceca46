//! The daemons, `traced`, `traced_probes`, `traced_perf`, `heapprofd` and `traced_relay`, and the start of every process that serves others: its log, its inheritance from the process that
//! started it, and the background.
//!
//! The daemons run with privileges. So this crate contains no tool: code that reads traces, judges configs or talks to browsers is in `ferretto-cli`,
//! whose binaries of these names have the code of this crate only.
#![deny(unsafe_code)]

pub mod acceptor;
pub mod background;
pub mod daemon;
pub mod destination;
pub mod heapprofd;
pub mod inherited;
pub mod log;
pub mod open_files;
pub mod paired_socket;
mod priority;
mod producer_daemon;
pub mod sandbox;
mod socket_groups;
pub mod starter;
pub mod traced;
pub mod traced_perf;
pub mod traced_probes;
pub mod traced_relay;

pub use socket_groups::GROUP;

/// The version that `--version` prints, and that traces give for the service that recorded them: the release of Perfetto that we are compatible with,
/// where scripts look for it, and our own.
pub const VERSION: &str = concat!("Perfetto v58.2 (Ferretto ", env!("CARGO_PKG_VERSION"), ")");
