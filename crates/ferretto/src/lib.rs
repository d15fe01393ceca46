//! Perfetto tracing for Rust programs.

#![deny(unsafe_code)]

pub mod clock;
pub mod data_source;
pub mod debug_annotation;
#[cfg(feature = "in-process")]
mod in_process;
mod muxer;
pub mod session;
mod source;
pub mod track;
pub mod track_event;
