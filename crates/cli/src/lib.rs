//! The command line of Ferretto. The binary `ferretto` contains all programs. `perfetto`, `traced`, `traced_probes`, `trigger_perfetto` and
//! `websocket_bridge` are its parts under upstream's names, and `tracebox` combines these.
//!
//! The binaries call [`applet::main`], which picks an applet; each applet is one module.
#![deny(unsafe_code)]
// `println` panics where stdout is a closed pipe: see `stdout`, and for stderr `clippy.toml`.
#![warn(clippy::print_stdout)]

mod account;
pub mod applet;
mod ask;
mod autostart;
mod config;
mod convert;
mod doctor;
mod figures;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heap;
mod http;
mod info;
mod list;
mod machine;
mod open;
mod packet;
pub(crate) mod perfetto;
mod private_file;
mod profile;
mod profiling;
mod recorder;
mod running;
mod samples;
pub(crate) mod service;
mod service_state;
mod status;
mod stderr;
mod stdout;
mod symbolize;
mod tables;
mod text;
mod timeline;
mod tracebox;
mod trigger_perfetto;
mod usage;
mod websocket_bridge;

pub use ferretto_daemons::VERSION;
