//! Numbers that look random: SplitMix64 (Steele, Lea and Flood, 2014). Not for secrets.
//!
//! [`Draws`](crate::triggers::Draws) calls it, and tests with a seed do. The same state gives the same numbers, for ever.

/// Advances the state and returns the next number.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
