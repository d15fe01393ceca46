//! The command line of Ferretto: `ferretto` is all programs in one, `perfetto`, `traced`, `traced_probes`,
//! `trigger_perfetto` and `websocket_bridge` are upstream's names for its parts, and `tracebox` for all of them.
//!
//! The binaries call [`applet::main`], which picks an applet; each applet is one module.
#![deny(unsafe_code)]

mod account;
pub mod applet;
mod ask;
mod autostart;
mod config;
mod doctor;
mod figures;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod glob;
mod http;
mod info;
mod list;
mod machine;
mod open;
pub mod perfetto;
mod private_file;
mod running;
pub mod service;
mod service_state;
mod status;
mod stdout;
mod text;
mod trace_reader;
mod tracebox;
mod trigger_perfetto;
mod usage;
mod websocket_bridge;

pub use ferretto_daemons::VERSION;
