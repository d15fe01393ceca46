//! The same conversations with upstream's service and with ours: what producers are told, what consumers are told and
//! what comes out of the buffers is the same, but for the differences that are listed, each with its reason.
//!
//! Every step of a conversation is over when everybody has had an answer to a later question, so nothing here waits for
//! time to pass, except where a timeout is what the step is about.

#![allow(clippy::unwrap_used)]

mod clones;
mod data;
mod ends;
#[path = "../../../service/tests/support/filter_bytecode.rs"]
mod filter_bytecode;
mod lives;
mod parties;
mod protovms;
mod random;
mod states;
mod stories;
#[path = "../support/mod.rs"]
mod support;
mod triggers;
