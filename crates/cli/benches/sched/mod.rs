//! Shared parts of the benches of whole recordings: a load of scheduler events, and measurements of the recording processes and of the traces.

#![allow(dead_code)] // Each bench uses a part of it.

pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod traced_events;
