//! Servers for tests of what speaks to object storage: one that speaks S3, and a network before it that does what networks do.
//!
//! The tests of `ferretto query` and of `ferretto-upload` have this as a module of theirs.

pub(crate) mod bucket;
pub(crate) mod proxy;

use std::time::{Duration, Instant};

/// Far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
