//! A hot loop of which some events are recorded, and how many there were all the same.
//!
//! ```text
//! cargo run --example hot_loop [FILE]
//! ```

use std::hint::black_box;

use ferretto::{Category, SampledCategory, trace_event, trace_event_instant};

/// One of a hundred, by chance.
static LOOKUPS: SampledCategory = Category::new("lookups")
    .description("Questions to the cache")
    .sample(0.01);

/// At most a thousand a second.
static MISSES: SampledCategory = Category::new("misses")
    .description("Questions that the cache cannot answer")
    .rate_limit(1000);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = ferretto::record_to(path.as_deref().unwrap_or("trace.pftrace"))?;
    let found = (0..200_000).filter(|&key| look_up(key).is_some()).count();
    println!("200000 lookups, {} misses", 200_000 - found);
    Ok(())
}

fn look_up(key: u64) -> Option<u64> {
    // Recorded with its end, or not at all.
    trace_event!(&LOOKUPS, "Look up", "key" => key);
    let value = black_box(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if value.is_multiple_of(8) {
        trace_event_instant!(&MISSES, "Miss", "key" => key);
        return None;
    }
    Some(value)
}
