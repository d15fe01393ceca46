//! What the benches of whole recordings share: a load of scheduler events, and the measuring of the processes that record it and
//! of the traces that come out.

#![allow(dead_code)] // Each bench uses a part of it.

pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod traced_events;
