//! Holds the same conversations with upstream's service and with ours. The messages to producers and consumers and the content of the buffers must be
//! the same, except for listed differences, each with its reason.
//!
//! A step of a conversation ends when all clients have an answer to a later question. So nothing here waits for time to pass, except in steps about a
//! timeout.

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

/// The seed of the one random conversation to hold, if one was chosen.
fn chosen_seed() -> Option<u64> {
    let seed = std::env::var("FERRETTO_CONFORMANCE_SEED").ok();
    seed.map(|seed| seed.parse().expect("a number"))
}
