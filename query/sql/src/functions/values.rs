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

/// Returns the number that a text is, a whole one if it has neither fraction nor exponent and fits; nothing if it is none. SQLite compares such a text with
/// numbers as a number.
pub(super) fn number(text: &str) -> Option<Value<'static>> {
    let text = text.trim_matches(|letter: char| letter.is_ascii_whitespace());
    if text.is_empty() || numeral(text).len() < text.len() {
        return None;
    }
    match text.parse() {
        Ok(int) => Some(Value::Int(int)),
        Err(_) => text.parse().ok().map(Value::Real),
    }
}

/// Returns the number at the beginning of a text as it is written: a sign, digits, a fraction, an exponent. It is empty if there is none. Rust also reads names
/// of numbers, which SQLite does not.
fn numeral(text: &str) -> &str {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let sign = |at: usize| usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
    let begin = sign(0);
    let whole = digits(begin);
    let mut end = begin + whole;
    let mut fraction = 0;
    if bytes.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        end += 1 + fraction;
    }
    if whole + fraction == 0 {
        return "";
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let exponent = end + 1 + sign(end + 1);
        if digits(exponent.min(bytes.len())) > 0 {
            end = exponent + digits(exponent);
        }
    }
    &text[..end]
}

/// Without the space before it. Unicode has more kinds, which SQLite does not know.
fn trimmed(text: &str) -> &str {
    text.trim_start_matches(|letter: char| letter.is_ascii_whitespace())
}

fn leading_real(text: &str) -> f64 {
    numeral(trimmed(text)).parse().unwrap_or(0.0)
}

fn leading_int(text: &str) -> i64 {
    let text = trimmed(text);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let number = &text[..text.len() - unsigned.len() + digits];
    match number.parse() {
        Ok(number) => number,
        Err(_) if digits == 0 => 0,
        Err(_) if number.starts_with('-') => i64::MIN,
        Err(_) => i64::MAX,
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
    if (-4..15).contains(&exponent) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_number_or_none() {
        for (text, expected) in [
            ("5", Some(Value::Int(5))),
            (" -7 ", Some(Value::Int(-7))),
            ("1234567890123456789", Some(Value::Int(1_234_567_890_123_456_789))),
            (
                "9223372036854775808",
                Some(Value::Real(9_223_372_036_854_775_808.0)),
            ),
            ("0.5", Some(Value::Real(0.5))),
            (".5", Some(Value::Real(0.5))),
            ("5.", Some(Value::Real(5.0))),
            ("1e3", Some(Value::Real(1000.0))),
            ("1e", None),
            ("1x", None),
            ("0x0", None),
            ("--5", None),
            ("", None),
            (".", None),
            ("+", None),
            ("nan", None),
            ("inf", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_begins_with_a_number() {
        for (text, int, real) in [
            ("12abc", 12, 12.0),
            (" -7.5x", -7, -7.5),
            ("--5", 0, 0.0),
            ("+-5", 0, 0.0),
            ("1e2", 1, 100.0),
            ("1e", 1, 1.0),
            ("1e+", 1, 1.0),
            ("-", 0, 0.0),
            ("-9223372036854775808", i64::MIN, -9_223_372_036_854_775_808.0),
            ("-9223372036854775809", i64::MIN, -9_223_372_036_854_775_808.0),
            ("9223372036854775808", i64::MAX, 9_223_372_036_854_775_808.0),
            ("infinity", 0, 0.0),
            ("\u{a0}5", 0, 0.0),
        ] {
            assert_eq!(Value::Text(text).int(), Some(int), "{text}");
            assert_eq!(Value::Text(text).real(), Some(real), "{text}");
        }
        let long = format!("1{}.5", "0".repeat(100));
        assert_eq!(Value::Text(&long).real(), Some(1e100));
    }
}
