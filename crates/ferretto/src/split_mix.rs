//! Numbers that look random and are cheap: SplitMix64 (Steele, Lea and Flood, 2014). For ids that must not collide and for sampling, not
//! for secrets. Nothing here allocates or locks.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Added to a state to get the next.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Turns a state into a number: every bit affects all others, and different states give different numbers.
pub(crate) const fn scatter(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

/// A first state, from the system's randomness by way of the standard library, which seeds its hash tables with it. Most likely different at each call.
pub(crate) fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
