//! Which allocations are sampled: a Poisson process over the bytes that a thread allocates.
//!
//! Each byte is a hit with a probability of 1 in `interval`, independently of all others. An allocation with hits is a sample and stands for
//! `interval` bytes for each; one of at least `interval` bytes is always a sample and stands for itself. So the samples of any set of allocations stand
//! for as many bytes as the set has, on average. This is how upstream samples.
//!
//! A thread has one distance to its next hit for all heaps. It is counted in intervals, as a fixed-point number: a heap's allocation of `size` bytes
//! goes on by `size / interval`. Because the process has no memory, heaps with different intervals, and intervals that change, need nothing more.
//!
//! `report` calls this. Nothing here allocates or fails.

/// One interval, as a fixed-point number.
const ONE: u64 = 1 << 56;

/// By how much a byte goes on, with this interval. 0 if the interval is 0.
pub(crate) const fn rate(interval: u64) -> u64 {
    match ONE.checked_div(interval) {
        Some(rate) => rate,
        None => 0,
    }
}

/// A distance from one hit to the next, as a fixed-point number of intervals: exponentially distributed with the mean [`ONE`], at least 1.
pub(crate) fn distance(random: &mut u64) -> i64 {
    // 53 bits, and never 0: the logarithm is finite, and the distance at most 37 intervals.
    let uniform = ((next(random) >> 11) + 1) as f64 * (1.0 / (1_u64 << 53) as f64);
    (-ln(uniform) * ONE as f64) as i64 + 1
}

/// How often an allocation is hit that has gone on by `-remaining` beyond the next hit. Moves `remaining` to the hit after it.
pub(crate) fn hits(remaining: &mut i64, random: &mut u64) -> u64 {
    let mut hits = 0;
    while *remaining < 0 {
        *remaining = remaining.saturating_add(distance(random));
        hits += 1;
    }
    hits
}

/// The natural logarithm of a number in (0, 1], to 1e-9 or better. The standard library's would be a call into libm, which some programs link late.
fn ln(number: f64) -> f64 {
    let bits = number.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln(m) = 2 artanh((m - 1) / (m + 1)), of which the series has terms below 0.172 ^ (2n + 1).
    let step = (mantissa - 1.0) / (mantissa + 1.0);
    let square = step * step;
    let mut sum = 0.0;
    let mut power = step;
    let mut odd = 1.0;
    while odd < 14.0 {
        sum += power / odd;
        power *= square;
        odd += 2.0;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

/// SplitMix64.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests;
