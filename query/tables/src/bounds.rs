//! When a trace begins and ends, which is the one row of `trace_bounds`.
//!
//! Trackers tell it, through [`Output`](crate::output::Output), the times of rows that count in the trace processor: those of `slice`, `counter`, `android_logs`,
//! `heap_profile_allocation`, `perf_sample` and `cpu_profile_stack_sample`, and kernel events, which are rows of `ftrace_event` even if nobody makes it.
//! `sched_slice` and `thread_state` count there too, but begin and end with kernel events.

/// The first and the last time so far.
#[derive(Debug)]
pub(crate) struct Bounds {
    start: i64,
    end: i64,
}

impl Bounds {
    pub(crate) fn new() -> Bounds {
        Bounds {
            start: i64::MAX,
            end: i64::MIN,
        }
    }

    /// Takes in something that lasted so long, or -1 if it has no end, as the trace processor adds that too.
    #[inline]
    pub(crate) fn time(&mut self, ts: i64, dur: i64) {
        self.start = self.start.min(ts);
        self.end = self.end.max(ts.saturating_add(dur));
    }

    /// Returns both times. They are 0 in a trace without events, and never equal in others.
    pub(crate) fn get(&self) -> (i64, i64) {
        match (self.start, self.end) {
            (i64::MAX, _) => (0, 0),
            (start, end) if start == end => (start, end + 1),
            bounds => bounds,
        }
    }
}
