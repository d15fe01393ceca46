//! The command line of Ferretto: `ferretto` is all programs in one, `perfetto`, `traced`, `traced_probes`,
//! `trigger_perfetto` and `websocket_bridge` are upstream's names for its parts, and `tracebox` for all of them.
//!
//! The binaries call [`applet::main`], which picks an applet; each applet is one module.
#![deny(unsafe_code)]

mod account;
pub mod applet;
mod autostart;
mod background;
mod config;
mod daemon;
mod doctor;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod glob;
mod info;
mod inherited;
mod list;
mod log;
mod manual;
mod open;
pub mod perfetto;
mod priority;
mod private_file;
mod running;
mod status;
mod stdout;
mod text;
mod trace_reader;
mod tracebox;
mod traced;
mod traced_probes;
mod trigger_perfetto;
mod websocket_bridge;

/// What `--version` prints and traces say of the service that recorded them: the release of Perfetto that we are compatible
/// with, where scripts look for it, and our own.
pub const VERSION: &str = concat!("Perfetto v58.2 (Ferretto ", env!("CARGO_PKG_VERSION"), ")");
