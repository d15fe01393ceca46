//! Converts times of the standard library's clocks to trace time, by reading both clocks together.
//!
//! Called by [`super::of_instant`] and [`super::of_system_time`]. A difference stays in use until a reading contradicts it. So times of one
//! clock keep their order and distances, whichever of them is converted first. A reading contradicts it when a clock was set, or the machine
//! was suspended.

use std::sync::atomic::{AtomicI64, Ordering};

/// How often the clocks are read together, at most, to have a reading that nothing interrupted.
const ATTEMPTS: usize = 4;
/// A reading that took no longer than these nanoseconds was not interrupted.
const UNINTERRUPTED: i64 = 1000;

/// How far trace time is ahead of another clock.
#[derive(Debug)]
pub(super) struct Pairing {
    /// In nanoseconds; [`UNKNOWN`] before the first reading.
    ahead: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;

/// Two clocks, read together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Trace time before the other clock was read.
    pub(super) before: i64,
    /// The time of the other clock.
    pub(super) other: i64,
    /// Trace time afterwards.
    pub(super) after: i64,
}

impl Reading {
    fn duration(&self) -> i64 {
        self.after.saturating_sub(self.before)
    }

    /// How far trace time is ahead by this reading. The error is half the duration of the reading at most.
    fn ahead(&self) -> i64 {
        let middle = self.before.saturating_add(self.duration() / 2);
        middle.saturating_sub(self.other)
    }

    fn contradicts(&self, ahead: i64) -> bool {
        let shown = self.other.saturating_add(ahead);
        shown < self.before || shown > self.after
    }
}

impl Pairing {
    pub(super) const fn new() -> Self {
        Self {
            ahead: AtomicI64::new(UNKNOWN),
        }
    }

    /// Trace time when the other clock shows `time`. Times before trace time began are its beginning.
    pub(super) fn trace_time(&self, time: i64, mut read: impl FnMut() -> Reading) -> u64 {
        let mut best = read();
        for _ in 1..ATTEMPTS {
            if best.duration() <= UNINTERRUPTED {
                break;
            }
            let another = read();
            if another.duration() < best.duration() {
                best = another;
            }
        }
        let known = self.ahead.load(Ordering::Relaxed);
        let ahead = if known == UNKNOWN || best.contradicts(known) {
            let ahead = best.ahead();
            self.ahead.store(ahead, Ordering::Relaxed);
            ahead
        } else {
            known
        };
        u64::try_from(time.saturating_add(ahead)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reading at a moment, of clocks that are `ahead` apart, that took so long in front of the other clock and after it.
    fn reading(at: i64, ahead: i64, (front, back): (i64, i64)) -> Reading {
        Reading {
            before: at - front,
            other: at - ahead,
            after: at + back,
        }
    }

    proptest! {
        #[test]
        fn times_are_wrong_by_the_duration_of_a_reading_at_most_and_keep_their_distances_until_one_contradicts(
            ahead in -1_000_000_000_000_i64..1_000_000_000_000,
            start in 1_000_000_000_000_i64..2_000_000_000_000,
            readings in proptest::collection::vec((0..1_000_000_i64, (0..5000_i64, 0..5000_i64)), 1..20),
        ) {
            let pairing = Pairing::new();
            let mut at = start;
            let mut last = None;
            for (passed, (front, back)) in readings {
                at += passed;
                let time = pairing.trace_time(at - ahead, || reading(at, ahead, (front, back)));
                let error = time as i64 - at;
                prop_assert!((-front..=back).contains(&error), "{error}");
                if let Some(last) = last && (-front..=back).contains(&last) {
                    prop_assert_eq!(error, last);
                }
                last = Some(error);
            }
        }
    }

    #[test]
    fn the_least_interrupted_reading_counts() {
        let mut took = [5_000_000, 40_000, 700, 1].into_iter();
        let time = Pairing::new().trace_time(1_000, || reading(60_000_000, 500, (0, took.next().unwrap())));
        assert!((1_500..1_500 + 350 + 1).contains(&time), "{time}");
        assert_eq!(took.next(), Some(1), "one that was not interrupted is enough");
    }

    #[test]
    fn a_clock_that_was_set_is_paired_again() {
        let pairing = Pairing::new();
        assert_eq!(
            pairing.trace_time(9_000, || reading(10_000, 1_000, (0, 0))),
            10_000
        );
        // Suspended: trace time went on.
        assert_eq!(
            pairing.trace_time(9_500, || reading(90_000, 80_000, (0, 0))),
            89_500
        );
    }

    #[test]
    fn times_outside_trace_time_are_its_ends() {
        let pairing = Pairing::new();
        let read = || reading(10_000, 1_000, (0, 0));
        assert_eq!(pairing.trace_time(-5_000, read), 0);
        assert_eq!(pairing.trace_time(i64::MIN, read), 0);
        assert_eq!(pairing.trace_time(i64::MAX, read), i64::MAX as u64);
    }
}
