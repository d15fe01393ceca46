//! When a trace begins and ends, which is the one row of `trace_bounds`.
//!
//! [`Output`](crate::output::Output) tells it the rows of all tables, also of those that nobody reads, and trackers the times of kernel events, which are rows of a
//! table that is hardly ever made.

use crate::rows::Cell;
use crate::schema::{
    ANDROID_LOGS, COUNTER, CPU_PROFILE_STACK_SAMPLE, HEAP_PROFILE_ALLOCATION, PERF_SAMPLE, SCHED_SLICE,
    SLICE, TABLES, THREAD_STATE, Table,
};

/// The tables whose rows count, as in the trace processor.
const COUNTED: [&Table; 8] = [
    &SCHED_SLICE,
    &COUNTER,
    &SLICE,
    &HEAP_PROFILE_ALLOCATION,
    &THREAD_STATE,
    &ANDROID_LOGS,
    &PERF_SAMPLE,
    &CPU_PROFILE_STACK_SAMPLE,
];

/// The places of `ts` and `dur` in the rows of a table.
#[derive(Debug, Clone, Copy)]
struct Times {
    ts: usize,
    dur: Option<usize>,
}

/// The first and the last time so far.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// `None` for tables whose rows do not count.
    tables: Vec<Option<Times>>,
    start: i64,
    end: i64,
}

impl Bounds {
    pub(crate) fn new() -> Bounds {
        let times = |table: &&'static Table| {
            let place = |name| table.columns.iter().position(|column| column.name == name);
            COUNTED.iter().find(|counted| counted.index == table.index)?;
            Some(Times {
                ts: place("ts")?,
                dur: place("dur"),
            })
        };
        Bounds {
            tables: TABLES.iter().map(times).collect(),
            start: i64::MAX,
            end: i64::MIN,
        }
    }

    /// Takes in a row.
    #[inline]
    pub(crate) fn row(&mut self, table: &'static Table, row: &[Cell]) {
        if let Some(times) = self.tables[table.index] {
            let ts = row[times.ts].int();
            self.time(ts, times.dur.map_or(0, |dur| row[dur].int()));
        }
    }

    /// Takes in something that lasted so long, or -1 if it has no end, as the trace processor adds that too.
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
