//! Lanes: tracks for the lives of spans that have no thread to be on.
//!
//! Slices of one track must nest. Lives of spans overlap freely, so each begins on a lane of its own, unless it fits on its parent's. Free lanes are
//! used again, because each is described once on every sequence; viewers draw lanes of one name together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nanoseconds for which a lane rests: clocks of two threads may differ by less than that.
const REST: u64 = 1_000_000;

/// Lanes of one name.
#[derive(Debug)]
pub(crate) struct Lanes(Mutex<VecDeque<Free>>);

/// A lane that no span uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    lane: u64,
    /// On the trace clock.
    since: u64,
}

impl Lanes {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Keeps all others out.
    pub(crate) fn hold(&self) -> MutexGuard<'_, VecDeque<Free>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lane on which nothing is at `time` or later. It belongs to the caller until it is given back.
    pub(crate) fn take(&self, time: u64) -> u64 {
        // No user's track has these numbers, even if it has the same name.
        static NEXT: AtomicU64 = AtomicU64::new(0x7ac1_1a9e_0000_0000);
        let mut free = self.hold();
        match free.front() {
            Some(&Free { lane, since }) if since.saturating_add(REST) <= time => {
                free.pop_front();
                lane
            }
            _ => NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The lane is free as of `time`.
    pub(crate) fn give_back(&self, lane: u64, time: u64) {
        let mut free = self.hold();
        free.push_back(Free { lane, since: time });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_used_again_only_after_its_last_slice() {
        let lanes = Lanes::new();
        let (one, two) = (lanes.take(0), lanes.take(0));
        assert_ne!(one, two);
        lanes.give_back(two, 5_000_000);
        lanes.give_back(one, 5_500_000);
        let too_early = lanes.take(5_999_999);
        assert!(![one, two].contains(&too_early));
        assert_eq!([lanes.take(6_500_000), lanes.take(6_500_000)], [two, one]);
    }
}
