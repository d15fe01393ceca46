//! Producer and consumer endpoints: shared memory arbiter, trace writers, the two ports.

// Only `trace_writer::in_place` allows it.
#![deny(unsafe_code)]

pub mod arbiter;
mod channel;
pub mod consumer;
#[cfg(test)]
mod fake_service;
pub mod producer;
pub mod trace_writer;
