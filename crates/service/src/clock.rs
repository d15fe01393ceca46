//! The time, as the driver passes it to the service.
//!
//! The service never reads a clock. Its driver (host, simulator) reads all clocks once per turn and passes the reading along with each input.
//! So recorded inputs replay a whole system.

use std::time::Duration;

/// Reads the thread's processor time so far, in nanoseconds.
pub type ProcessorClock = fn() -> u64;

/// One reading of every clock that traces refer to, taken together, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, by which timers run.
    pub monotonic: u64,
    /// `CLOCK_BOOTTIME`: the clock of timestamps in traces.
    pub boot: u64,
    /// `CLOCK_REALTIME`.
    pub realtime: u64,
    /// `CLOCK_REALTIME_COARSE`.
    pub realtime_coarse: u64,
    /// `CLOCK_MONOTONIC_COARSE`.
    pub monotonic_coarse: u64,
    /// `CLOCK_MONOTONIC_RAW`.
    pub monotonic_raw: u64,
    /// The processor's time-stamp counter in ticks, where there is one. Not in nanoseconds, so against the clocks it seems to drift.
    pub tsc: Option<u64>,
}

/// The clocks that deadlines can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Stands still while the machine sleeps.
    Monotonic,
    /// Goes on meanwhile.
    Boot,
}

/// Numbers of `BuiltinClock` in the schema.
pub(crate) mod clock_id {
    pub(crate) const REALTIME: u32 = 1;
    pub(crate) const REALTIME_COARSE: u32 = 2;
    pub(crate) const MONOTONIC: u32 = 3;
    pub(crate) const MONOTONIC_COARSE: u32 = 4;
    pub(crate) const MONOTONIC_RAW: u32 = 5;
    pub(crate) const BOOTTIME: u32 = 6;
    pub(crate) const TSC: u32 = 9;
}

/// How far two clocks must have drifted apart before a snapshot that was not yet written is replaced by a new one.
/// The older one is worth more: the reader translates a timestamp with the last snapshot before it.
const SIGNIFICANT_DRIFT: Duration = Duration::from_millis(10);

impl Now {
    /// The time of the monotonic clock after this delay.
    pub(crate) fn after(&self, delay: Duration) -> u64 {
        self.after_on(Clock::Monotonic, delay)
    }

    /// The time of a clock after this delay.
    pub(crate) fn after_on(&self, clock: Clock, delay: Duration) -> u64 {
        self.on(clock).saturating_add(delay.as_nanos() as u64)
    }

    /// The next instant of the monotonic clock that is a multiple of the period: sessions with the same period wake producers together.
    pub(crate) fn next_multiple(&self, period: Duration) -> u64 {
        self.next_multiple_on(Clock::Monotonic, period)
    }

    /// The same for any clock.
    pub(crate) fn next_multiple_on(&self, clock: Clock, period: Duration) -> u64 {
        let period_ms = (period.as_millis() as u64).max(1);
        let wait_ms = period_ms - self.on(clock) / 1_000_000 % period_ms;
        self.on(clock).saturating_add(wait_ms * 1_000_000)
    }

    /// Clock ids and readings in the order in which snapshots list them: boot time first.
    pub fn readings(&self) -> impl Iterator<Item = (u32, u64)> {
        let clocks = [
            (clock_id::BOOTTIME, self.boot),
            (clock_id::REALTIME_COARSE, self.realtime_coarse),
            (clock_id::MONOTONIC_COARSE, self.monotonic_coarse),
            (clock_id::REALTIME, self.realtime),
            (clock_id::MONOTONIC, self.monotonic),
            (clock_id::MONOTONIC_RAW, self.monotonic_raw),
        ];
        clocks
            .into_iter()
            .chain(self.tsc.map(|ticks| (clock_id::TSC, ticks)))
    }

    /// Whether any clock moved differently from boot time since `earlier` by enough to be worth a new snapshot. The time-stamp counter counts as a
    /// clock: between two snapshots readers take a tick for a nanosecond, so that events stamped with ticks are misplaced by the drift since the last
    /// one. Where there is a counter, a snapshot is rarely spared, as with upstream.
    pub(crate) fn drifted_since(&self, earlier: &Now) -> bool {
        let boot = self.boot.wrapping_sub(earlier.boot) as i64;
        self.readings().zip(earlier.readings()).any(|(new, old)| {
            let moved = new.1.wrapping_sub(old.1) as i64;
            moved.wrapping_sub(boot).unsigned_abs() >= SIGNIFICANT_DRIFT.as_nanos() as u64
        })
    }

    /// The reading of a clock that timers count.
    pub(crate) fn on(&self, clock: Clock) -> u64 {
        match clock {
            Clock::Monotonic => self.monotonic,
            Clock::Boot => self.boot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ns: u64) -> Now {
        Now {
            monotonic: ns,
            boot: ns,
            realtime: ns,
            realtime_coarse: ns,
            monotonic_coarse: ns,
            monotonic_raw: ns,
            tsc: None,
        }
    }

    #[test]
    fn clocks_that_advance_together_have_not_drifted() {
        assert!(!all(60_000_000_000).drifted_since(&all(1)));
    }

    #[test]
    fn a_wall_clock_that_was_set_has_drifted_in_either_direction() {
        let ahead = Now {
            realtime: 70_000_000_000,
            ..all(60_000_000_000)
        };
        let behind = Now {
            realtime: 1_000_000_000,
            ..all(60_000_000_000)
        };
        assert!(ahead.drifted_since(&all(0)));
        assert!(behind.drifted_since(&all(0)));
    }

    #[test]
    fn a_counter_that_ticks_at_another_rate_drifts_as_a_clock_does() {
        let ticked = |ns: u64, ticks| Now {
            tsc: Some(ticks),
            ..all(ns)
        };
        // At 2 GHz ten milliseconds are twenty of ticks.
        let start = ticked(0, 0);
        assert!(!ticked(9_999_999, 19_999_998).drifted_since(&start));
        assert!(ticked(10_000_000, 20_000_000).drifted_since(&start));
        // At 1 GHz it would be one.
        assert!(!ticked(60_000_000_000, 60_000_000_000).drifted_since(&start));
    }

    #[test]
    fn the_threshold_is_ten_milliseconds() {
        let just_under = Now {
            monotonic_raw: 9_999_999,
            ..all(0)
        };
        let at = Now {
            monotonic_raw: 10_000_000,
            ..all(0)
        };
        assert!(!just_under.drifted_since(&all(0)));
        assert!(at.drifted_since(&all(0)));
    }
}
