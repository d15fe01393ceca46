//! Timestamps that the caller supplies: the option `timestamp = …` of the macros.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use super::thread;
use crate::clock;
use crate::muxer;
use crate::options::LogLevel;

/// The time of an event, if it is not now: trace time in nanoseconds, an [`Instant`], a [`SystemTime`], or the time of another clock.
///
/// ```
/// use std::time::Instant;
///
/// let arrived = Instant::now();
/// // … later, when it is known what arrived …
/// ferretto::trace_event_instant!("network", "Packet", timestamp = arrived);
/// ```
///
/// Conversion turns an `Instant` or a `SystemTime` into trace time. It reads both clocks together, three readings in all where [`clock::now`] is one.
/// The error is half the duration of the reading, usually less than 100 ns. Instants keep their order and distances, on the clocks
/// [`Boottime`](clock::TraceClock::Boottime) and [`Monotonic`](clock::TraceClock::Monotonic), unless the machine was suspended between them. An
/// instant from before a suspension is late by the duration of the suspension on the clock `Boottime`; a `SystemTime` from before the time of day was
/// set is wrong by as much as that was changed. Times from before the clock began become 0; times after the end of its range, in 292 years, become
/// that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timestamp {
    /// On the trace clock, in nanoseconds ([`crate::clock::now`]).
    TraceTime(u64),
    /// The time of another clock, in its unit: one of Perfetto's, or one that the application's clock snapshots relate to those.
    OnClock {
        /// The clock: a value of Perfetto's `BuiltinClock` (below 64), or 128 and above for one of the application's. Those from 64 to 127 are for the
        /// writer of each sequence of packets, which the SDK is: events with one of these happen now, and the first of them leads to a warning in the
        /// [log](crate::Options::log).
        clock_id: u32,
        /// The reading of that clock.
        value: u64,
    },
}

/// The clocks that each sequence has for itself.
const CLOCKS_OF_SEQUENCE: RangeInclusive<u32> = 64..=127;

impl Timestamp {
    /// The same, unless it is on a clock that only the sequence's writer can use. Then the event happens now.
    pub(crate) fn or_now(self) -> Option<Self> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        match self {
            Self::OnClock { clock_id, .. } if CLOCKS_OF_SEQUENCE.contains(&clock_id) => {
                // The log is the application's code.
                if !thread::is_confined() && !WARNED.swap(true, Ordering::Relaxed) {
                    let line = format!(
                        "an event has a time on clock {clock_id}, but those from 64 to 127 are the SDK's own: such events are recorded with the \
                         present time; choose a clock from 128 on"
                    );
                    muxer::log(LogLevel::Warning, &line);
                }
                None
            }
            _ => Some(self),
        }
    }
}

impl From<u64> for Timestamp {
    fn from(nanoseconds: u64) -> Self {
        Timestamp::TraceTime(nanoseconds)
    }
}

impl From<Instant> for Timestamp {
    fn from(instant: Instant) -> Self {
        Timestamp::TraceTime(clock::of_instant(instant))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Timestamp::TraceTime(clock::of_system_time(time))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn trace_time(timestamp: impl Into<Timestamp>) -> i128 {
        match timestamp.into() {
            Timestamp::TraceTime(time) => time.into(),
            other => panic!("{other:?}"),
        }
    }

    /// Far more than the duration of a reading on a busy machine, and far less than a chance difference between two clocks of a machine.
    const TOLERANCE: i128 = 10_000_000_000;

    #[test]
    fn the_standard_librarys_times_become_trace_time() {
        let now = i128::from(clock::now());
        assert!((trace_time(Instant::now()) - now).abs() < TOLERANCE);
        assert!((trace_time(SystemTime::now()) - now).abs() < TOLERANCE);
        let hour = Duration::from_secs(3600);
        let later = trace_time(Instant::now() + hour) - now;
        assert!((later - hour.as_nanos() as i128).abs() < TOLERANCE, "{later}");
        assert_eq!(
            trace_time(SystemTime::UNIX_EPOCH),
            0,
            "the machine has started since"
        );
        assert_eq!(trace_time(SystemTime::UNIX_EPOCH - hour), 0);
    }
}
