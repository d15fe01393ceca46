//! Scalar functions for times and sizes: `human_duration`, `human_bytes` and `time_bucket`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};

/// The functions of this module.
pub(crate) fn functions() -> Vec<ScalarUDF> {
    let text = |name, arguments, of: fn(&[ArrayRef]) -> Result<ArrayRef>| {
        create_udf(
            name,
            arguments,
            DataType::Utf8,
            Volatility::Immutable,
            Arc::new(move |values: &[ColumnarValue]| columns(values, of)),
        )
    };
    vec![
        text("human_duration", vec![DataType::Float64], |columns| {
            let durations = columns[0].as_primitive::<Float64Type>();
            Ok(Arc::new(
                durations
                    .iter()
                    .map(|it| it.map(duration))
                    .collect::<StringArray>(),
            ))
        }),
        text("human_bytes", vec![DataType::Float64], |columns| {
            let sizes = columns[0].as_primitive::<Float64Type>();
            Ok(Arc::new(
                sizes.iter().map(|it| it.map(bytes)).collect::<StringArray>(),
            ))
        }),
        create_udf(
            "time_bucket",
            vec![DataType::Int64, DataType::Utf8],
            DataType::Int64,
            Volatility::Immutable,
            Arc::new(|values: &[ColumnarValue]| columns(values, time_bucket)),
        ),
    ]
}

fn columns(values: &[ColumnarValue], of: fn(&[ArrayRef]) -> Result<ArrayRef>) -> Result<ColumnarValue> {
    Ok(ColumnarValue::Array(of(&ColumnarValue::values_to_arrays(
        values,
    )?)?))
}

/// Returns the beginning of the bucket that each time is in. The width is a number of ns or has a unit: `10ms`.
fn time_bucket(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let times = columns[0].as_primitive::<Int64Type>();
    let widths = cast(&columns[1], &DataType::Utf8)?;
    let widths = widths.as_string::<i32>();
    let mut last = None;
    let mut bucket = |row: usize| -> Result<Option<i64>> {
        if times.is_null(row) || widths.is_null(row) {
            return Ok(None);
        }
        let text = widths.value(row);
        let width = match last {
            Some((known, width)) if known == text => width,
            _ => match nanoseconds(text) {
                Some(width) if width > 0 => width,
                _ => {
                    return exec_err!(
                        "time_bucket: `{text}` is no width; write ns or a number with ns, us, ms, s, m or h"
                    );
                }
            },
        };
        last = Some((text, width));
        let time = times.value(row);
        Ok(Some(time.saturating_sub(time.rem_euclid(width))))
    };
    let buckets = (0..times.len())
        .map(&mut bucket)
        .collect::<Result<Int64Array>>()?;
    Ok(Arc::new(buckets))
}

/// Reads `250`, `10ms`, `1.5 s`.
fn nanoseconds(text: &str) -> Option<i64> {
    let text = text.trim();
    let unit = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    let factor = match unit.trim() {
        "" | "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    Some((number.parse::<f64>().ok()? * factor).round() as i64)
}

/// Writes a number with three digits and the largest unit that it reaches.
fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    let size = value.abs();
    let (unit, factor) = units
        .iter()
        .rev()
        .find(|(_, factor)| size >= *factor)
        .or(units.first())
        .copied()
        .unwrap_or(("", 1.0));
    let scaled = value / factor;
    let digits = match scaled.abs() {
        _ if scaled.fract() == 0.0 && factor == 1.0 => 0,
        it if it >= 99.95 => 0,
        it if it >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$} {unit}")
}

/// Writes ns for people: `1.25 ms`.
pub fn duration(ns: f64) -> String {
    scaled(
        ns,
        &[
            ("ns", 1.0),
            ("µs", 1e3),
            ("ms", 1e6),
            ("s", 1e9),
            ("min", 60e9),
            ("h", 3600e9),
        ],
    )
}

/// Writes bytes for people: `1.25 MB`, in powers of 1024 as the kernel counts memory.
pub fn bytes(size: f64) -> String {
    const K: f64 = 1024.0;
    scaled(
        size,
        &[
            ("B", 1.0),
            ("KB", K),
            ("MB", K * K),
            ("GB", K * K * K),
            ("TB", K * K * K * K),
        ],
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn times_and_sizes_read_well() {
        let durations = [0.0, 999.0, 1500.0, -2.5e6, 99.96e6, 1e9, 90e9, 7200e9].map(duration);
        assert_eq!(
            durations,
            [
                "0 ns", "999 ns", "1.50 µs", "-2.50 ms", "100 ms", "1.00 s", "1.50 min", "2.00 h"
            ]
        );
        let sizes = [1.0, 1536.0, 1048576.0, 1e13].map(bytes);
        assert_eq!(sizes, ["1 B", "1.50 KB", "1.00 MB", "9.09 TB"]);
    }

    #[test]
    fn widths_have_units() {
        let widths = ["250", "10ms", "1.5 s", "2 m", "1h", "3 years", "", "-1"].map(nanoseconds);
        assert_eq!(
            widths,
            [
                Some(250),
                Some(10_000_000),
                Some(1_500_000_000),
                Some(120_000_000_000),
                Some(3_600_000_000_000),
                None,
                None,
                None
            ]
        );
    }

    #[test]
    fn buckets_are_whole_also_before_zero() {
        let times: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1999), Some(-1), None]));
        let widths: ArrayRef = Arc::new(StringArray::from(vec!["1us"; 4]));
        let buckets = time_bucket(&[times, widths]).unwrap();
        let buckets: Vec<_> = buckets.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(buckets, [Some(0), Some(1000), Some(-1000), None]);
    }
}
