//! SQLite's values of Arrow's columns: null, a whole number, a number with a fraction, a text or bytes. Scalar functions that take any value read them here.

use std::borrow::Cow;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::error::Result;

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Int(i64),
    Real(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the value as SQLite makes text of it.
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        Some(match self {
            Value::Null => return None,
            Value::Int(int) => int.to_string().into(),
            Value::Real(real) => real_text(real).into(),
            Value::Text(text) => text.into(),
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes),
        })
    }

    /// Returns the whole number that a value begins with, as SQLite makes one of text; 0 if it begins with none.
    pub(super) fn int(self) -> Option<i64> {
        Some(match self {
            Value::Null => return None,
            Value::Int(int) => int,
            Value::Real(real) => real as i64,
            Value::Text(text) => leading_int(text),
            Value::Bytes(bytes) => leading_int(&String::from_utf8_lossy(bytes)),
        })
    }

    /// Returns the number that a value begins with; 0 if it begins with none.
    pub(super) fn real(self) -> Option<f64> {
        Some(match self {
            Value::Null => return None,
            Value::Int(int) => int as f64,
            Value::Real(real) => real,
            Value::Text(text) => leading_real(text),
            Value::Bytes(bytes) => leading_real(&String::from_utf8_lossy(bytes)),
        })
    }
}

fn leading_real(text: &str) -> f64 {
    let text = text.trim_start();
    // Rust also reads names of numbers, which SQLite does not.
    let end = text.find(|letter: char| !"0123456789.+-eE".contains(letter));
    let text = &text[..end.unwrap_or(text.len()).min(64)];
    let mut ends = (1..=text.len()).rev();
    ends.find_map(|end| text[..end].parse().ok()).unwrap_or(0.0)
}

fn leading_int(text: &str) -> i64 {
    let text = text.trim_start();
    let digits = text.trim_start_matches(['+', '-']);
    let digits = &digits[..digits.len()
        - digits
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .len()];
    let number = digits
        .parse()
        .unwrap_or(if digits.is_empty() { 0 } else { i64::MAX });
    match text.starts_with('-') {
        true => -number,
        false => number,
    }
}

/// Writes a number as SQLite does: with a fraction, and 15 digits.
pub(super) fn real_text(real: f64) -> String {
    if !real.is_finite() {
        return match real.is_nan() {
            true => String::new(),
            false if real > 0.0 => "Inf".to_owned(),
            false => "-Inf".to_owned(),
        };
    }
    if real == 0.0 {
        return "0.0".to_owned();
    }
    let digits = format!("{real:.14e}");
    let (digits, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-5..15).contains(&exponent) {
        let places = usize::try_from(14 - exponent).unwrap_or(0);
        let plain = format!("{real:.places$}");
        if !plain.contains('.') {
            return plain + ".0";
        }
        let plain = plain.trim_end_matches('0');
        return match plain.ends_with('.') {
            true => format!("{plain}0"),
            false => plain.to_owned(),
        };
    }
    let digits = digits.trim_end_matches('0');
    let zero = if digits.ends_with('.') { "0" } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{zero}e{sign}{:02}", exponent.abs())
}

/// A column whose values can be read.
pub(super) struct Values {
    column: ArrayRef,
}

impl Values {
    /// Reads a column. What SQLite does not have, such as lists, is text.
    pub(super) fn new(column: &ArrayRef) -> Result<Values> {
        let kind = match column.data_type() {
            DataType::Null => DataType::Null,
            DataType::Boolean => DataType::Int64,
            kind if kind.is_integer() => DataType::Int64,
            kind if kind.is_numeric() => DataType::Float64,
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => DataType::Binary,
            _ => DataType::Utf8,
        };
        let column = cast(column, &kind)?;
        Ok(Values { column })
    }

    /// Returns the value of a row.
    pub(super) fn at(&self, row: usize) -> Value<'_> {
        let column = &self.column;
        if column.is_null(row) {
            return Value::Null;
        }
        match column.data_type() {
            DataType::Int64 => Value::Int(column.as_primitive::<Int64Type>().value(row)),
            DataType::Float64 => Value::Real(column.as_primitive::<Float64Type>().value(row)),
            DataType::Binary => Value::Bytes(column.as_binary::<i32>().value(row)),
            DataType::Utf8 => Value::Text(column.as_string::<i32>().value(row)),
            _ => Value::Null,
        }
    }
}
