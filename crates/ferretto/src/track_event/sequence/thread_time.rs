//! The CPU time of a thread, written with its events if the config asks for it.

use super::super::config::TrackEventOptions;
use crate::clock;
use crate::track::{BuiltinCounter, CounterTrack, Track};

/// The samples of the thread's CPU time, each written as the difference to the one before.
#[derive(Default)]
pub(super) struct ThreadTime {
    /// Nanoseconds.
    last: u64,
    /// The time of the last sample, on the trace clock.
    sampled_at: u64,
}

impl ThreadTime {
    /// The time that the thread has spent on a CPU since the last sample, if it is sampled.
    #[inline]
    pub(super) fn sample(&mut self, now: u64, options: &TrackEventOptions) -> Option<i64> {
        if !options.thread_time_sampling {
            return None;
        }
        let subsampling = options.thread_time_subsampling_ns;
        let due =
            subsampling == 0 || self.sampled_at == 0 || now >= self.sampled_at.saturating_add(subsampling);
        if !due {
            return Some(0);
        }
        let time = clock::thread_time_ns();
        let since_last = time.saturating_sub(self.last);
        *self = Self {
            last: time,
            sampled_at: now,
        };
        Some((since_last / options.timestamp_unit_multiplier.get()).cast_signed())
    }
}

/// The counter of the CPU time of a thread; upstream's name and attributes.
pub(super) fn track_of(thread: Track, multiplier: u64) -> CounterTrack<'static> {
    CounterTrack::new("thread_time")
        .parent(thread)
        .incremental()
        .unit_multiplier(multiplier.cast_signed())
        .builtin(BuiltinCounter::ThreadTimeNs)
}
