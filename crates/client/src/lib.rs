//! Producer and consumer endpoints: shared memory arbiter, trace writers, the two ports, and the runtime of every producer.

// Only `arbiter::barrier`, `trace_writer::in_place` and `trace_writer::held` allow it.
#![deny(unsafe_code)]

pub mod arbiter;
#[doc(hidden)]
pub mod atomic_word;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
mod channel;
#[cfg_attr(
    not(all(target_endian = "little", any(target_os = "linux", target_os = "android"))),
    path = "consumer/values.rs"
)]
pub mod consumer;
pub mod data_source;
#[cfg(test)]
mod fake_service;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod producer;
#[doc(hidden)]
pub mod room;
#[cfg_attr(
    not(all(target_endian = "little", any(target_os = "linux", target_os = "android"))),
    path = "runtime/options.rs"
)]
pub mod runtime;
pub mod trace_writer;
