//! In the place of `time.rs` where the crate has no sockets: the clocks, as far as the standard library has them.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// A clock of Linux, or the closest one of the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The time of day.
    Realtime,
    /// Begins when it is first asked.
    Monotonic,
    /// The same.
    MonotonicRaw,
    /// The same.
    Boot,
    /// Not known: 0.
    Thread,
}

/// Reads the clock, in nanoseconds. Always 0 where the standard library has no clocks and panics (`wasm32-unknown-unknown`).
#[must_use]
pub fn now(clock: Clock) -> u64 {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    if cfg!(all(target_family = "wasm", target_os = "unknown")) {
        return 0;
    }
    let time = match clock {
        Clock::Realtime => SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
        Clock::Monotonic | Clock::MonotonicRaw | Clock::Boot => BEGINNING.get_or_init(Instant::now).elapsed(),
        Clock::Thread => return 0,
    };
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
