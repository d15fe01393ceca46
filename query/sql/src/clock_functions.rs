//! `to_realtime(ts)`, `to_monotonic(ts)` and `abs_time_str(ts)`: a time of the trace on other clocks, as the trace processor converts it.
//!
//! [`Database`](crate::Database) reads the snapshots of the clocks before it plans a statement with such a function. A time is that of the snapshot before it,
//! and what has passed since, but not more than that of the snapshot behind it. Before the first snapshot it is that of the first. Without snapshots it is null.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::temporal_conversions::timestamp_ns_to_datetime;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;

use crate::database::words;
use crate::error::Error;
use crate::many::Traces;

const NAMES: [&str; 3] = ["to_realtime", "to_monotonic", "abs_time_str"];

/// The clocks' numbers in traces.
const REALTIME: i64 = 1;
const MONOTONIC: i64 = 3;

/// The tables that a function reads.
pub(crate) fn tables_of(function: &str) -> &'static [&'static str] {
    match NAMES.contains(&function) {
        true => &["clock_snapshot"],
        false => &[],
    }
}

/// What one clock showed, by the time of the trace.
#[derive(Debug, Default)]
struct Clock(BTreeMap<i64, i64>);

impl Clock {
    fn at(&self, time: i64) -> Option<i64> {
        let next = self.0.range(time..).next();
        let Some((before, shown)) = self.0.range(..time).next_back() else {
            return Some(*next?.1);
        };
        let passed = shown.saturating_add(time.saturating_sub(*before));
        Some(match next {
            Some((behind, shown)) if *behind == time => *shown,
            Some((_, shown)) => passed.min(*shown),
            None => passed,
        })
    }
}

/// The clocks of the trace, once they were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clocks {
    known: Arc<RwLock<Arc<[Clock; 2]>>>,
}

impl Clocks {
    /// Adds the functions to a session.
    pub(crate) fn register(&self, context: &SessionContext) {
        let [realtime, monotonic, text] = NAMES;
        for (name, clock) in [(realtime, 0), (monotonic, 1)] {
            self.register_one(context, name, DataType::Int64, move |clocks, times| {
                let shown = times.iter().map(|time| clocks[clock].at(time?));
                Arc::new(shown.collect::<Int64Array>())
            });
        }
        self.register_one(context, text, DataType::Utf8, |clocks, times| {
            let shown = times.iter().map(|time| {
                let shown = timestamp_ns_to_datetime(clocks[0].at(time?)?)?;
                Some(shown.format("%Y-%m-%dT%H:%M:%S%.9f").to_string())
            });
            Arc::new(shown.collect::<StringArray>())
        });
    }

    fn register_one(
        &self,
        context: &SessionContext,
        name: &str,
        returns: DataType,
        of: impl Fn(&[Clock; 2], &Int64Array) -> ArrayRef + Send + Sync + 'static,
    ) {
        let known = Arc::clone(&self.known);
        let convert = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
            // What a panic elsewhere has left are still clocks.
            let clocks = Arc::clone(&known.read().unwrap_or_else(PoisonError::into_inner));
            let times = ColumnarValue::values_to_arrays(values)?;
            Ok(ColumnarValue::Array(of(
                &clocks,
                times[0].as_primitive::<Int64Type>(),
            )))
        };
        let arguments = vec![DataType::Int64];
        context.register_udf(create_udf(
            name,
            arguments,
            returns,
            Volatility::Stable,
            Arc::new(convert),
        ));
    }

    /// Reads the clocks if a text has one of the functions.
    pub(crate) async fn read_for(
        &self,
        sql: &str,
        traces: Traces,
        context: &SessionContext,
    ) -> std::result::Result<(), Error> {
        let Some(function) = words(sql).find(|word| NAMES.contains(&word.as_str())) else {
            return Ok(());
        };
        if traces == Traces::Many {
            return Err(Error::Source(format!(
                "{function} is for one trace, as each trace has clocks of its own; join `clock_snapshot` by `trace` instead"
            )));
        }
        let mut clocks = [Clock::default(), Clock::default()];
        let sql = "select clock_id, ts, clock_value from clock_snapshot";
        for batch in context.sql(sql).await?.collect().await? {
            let column = |at: usize| cast(batch.column(at), &DataType::Int64).map_err(DataFusionError::from);
            let columns = [column(0)?, column(1)?, column(2)?];
            let [ids, times, values] = columns
                .each_ref()
                .map(|column| column.as_primitive::<Int64Type>());
            for row in 0..batch.num_rows() {
                let clock = match ids.value(row) {
                    REALTIME => &mut clocks[0],
                    MONOTONIC => &mut clocks[1],
                    _ => continue,
                };
                if times.is_valid(row) && values.is_valid(row) {
                    clock.0.entry(times.value(row)).or_insert(values.value(row));
                }
            }
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(clocks);
        Ok(())
    }
}
