//! The same conversations with upstream's service and with ours: what producers are told, what consumers are told and
//! what comes out of the buffers is the same, but for the differences that are listed, each with its reason.
//!
//! Every step of a conversation is over when everybody has had an answer to a later question, so nothing here waits for
//! time to pass, except where a timeout is what the step is about.

mod clones;
mod data;
mod ends;
mod lives;
mod parties;
mod protovms;
mod random;
mod states;
mod stories;
mod triggers;
