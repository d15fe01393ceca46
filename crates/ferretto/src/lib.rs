//! Perfetto tracing for Rust programs.

#![deny(unsafe_code)]

// What procedural macros generate names this crate as its users do.
#[cfg(test)]
extern crate self as ferretto;

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

pub use debug_annotation::DebugAnnotation;
pub use ferretto_macros::{DebugAnnotation, trace_function};
