//! Scalar functions that SQLite has and DataFusion lacks, or has with another meaning: `typeof`, `hex`, `quote`, `unicode`, `char`, `round`, `json_extract`
//! and [`SUBSTRING`].

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, exec_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, ExprSchemable, ScalarUDF};
use datafusion::prelude::cast;
use serde_json::Value as Json;

use super::scalar::{Scalar, is_text};
use super::values::{Value, Values};

/// `substr` as SQLite counts places, also from the end.
pub(crate) const SUBSTRING: &str = "substr_of_sqlite";

/// `CAST` to text. SQLite writes numbers with a fraction in its own way. DataFusion casts all other values.
pub(crate) const TEXT: &str = "text_of_sqlite";

/// `CAST` to a number. Of a text, SQLite reads the number at its beginning. DataFusion casts all other values.
pub(crate) const WHOLE: &str = "int_of_sqlite";
pub(crate) const REAL: &str = "real_of_sqlite";

/// The functions of this module.
pub(super) fn functions() -> Vec<ScalarUDF> {
    let text = |name, counts, of| Scalar::new(name, counts, DataType::Utf8, of);
    [
        text("typeof", 1..=1, |columns, rows| {
            each_text(columns, rows, |values| Ok(Some(kind(values[0]).to_owned())))
        }),
        text("hex", 1..=1, |columns, rows| {
            each_text(columns, rows, |values| Ok(Some(hex(values[0]))))
        }),
        text("quote", 1..=1, |columns, rows| {
            each_text(columns, rows, |values| Ok(Some(quote(values[0]))))
        }),
        text("char", 0..=usize::MAX, |columns, rows| {
            each_text(columns, rows, |values| Ok(Some(letters(values))))
        }),
        text(SUBSTRING, 2..=3, |columns, rows| {
            each_text(columns, rows, |values| Ok(substring(values)))
        }),
        text_of(),
        text("json_extract", 2..=2, |columns, rows| {
            each_text(columns, rows, json_extract)
        })
        .of_any_type(),
        Scalar::new(WHOLE, 1..=1, DataType::Int64, |columns, rows| {
            let column = Values::new(&columns[0])?;
            Ok(Arc::new(
                (0..rows).map(|row| column.at(row).int()).collect::<Int64Array>(),
            ))
        })
        .cast_unless(is_text),
        Scalar::new(REAL, 1..=1, DataType::Float64, |columns, rows| {
            let column = Values::new(&columns[0])?;
            Ok(Arc::new(
                (0..rows)
                    .map(|row| column.at(row).real())
                    .collect::<Float64Array>(),
            ))
        })
        .cast_unless(is_text),
        Scalar::new("round", 1..=2, DataType::Float64, |columns, rows| {
            let columns = columns.iter().map(Values::new).collect::<Result<Vec<_>>>()?;
            let of = |row| {
                let digits = match columns.get(1) {
                    Some(digits) => digits.at(row).int()?,
                    None => 0,
                };
                Some(rounded(columns[0].at(row).real()?, digits.clamp(0, 30) as usize))
            };
            Ok(Arc::new((0..rows).map(of).collect::<Float64Array>()))
        }),
        Scalar::new("unicode", 1..=1, DataType::Int64, |columns, rows| {
            let column = Values::new(&columns[0])?;
            let first = |row| {
                column
                    .at(row)
                    .text()?
                    .chars()
                    .next()
                    .map(|letter| u32::from(letter).into())
            };
            Ok(Arc::new((0..rows).map(first).collect::<Int64Array>()))
        }),
    ]
    .map(ScalarUDF::from)
    .into()
}

fn text_of() -> Scalar {
    Scalar::new(TEXT, 1..=1, DataType::Utf8, |columns, rows| {
        each_text(columns, rows, |values| Ok(values[0].text().map(Cow::into_owned)))
    })
    .cast_unless(DataType::is_floating)
}

/// Makes the text of a number with a fraction that SQLite makes of it. DataFusion makes that of others.
pub(super) fn text_of_number(value: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match value.get_type(schema)? {
        kind if kind.is_floating() => ScalarUDF::from(text_of()).call(vec![value]),
        kind if kind.is_numeric() => cast(value, DataType::Utf8),
        _ => value,
    })
}

/// Rounds the number that is stored, as its digits show it, and half of a digit away from zero. DataFusion rounds a hundred times the number, so that
/// 1.225, which is a little less when it is stored, becomes 1.23.
fn rounded(real: f64, digits: usize) -> f64 {
    /// Digits behind those that are kept. Numbers with a fraction have fewer that are not 0.
    const MORE: usize = 60;
    /// From here on, there are no fractions.
    const WHOLE: f64 = (1_u64 << 52) as f64;
    if real.is_nan() || real.abs() >= WHOLE {
        return real;
    }
    let mut text = format!("{:.*}", digits + MORE, real.abs()).into_bytes();
    let end = text.len() - MORE;
    let mut carries = text[end] >= b'5';
    text.truncate(end);
    for digit in text.iter_mut().rev().filter(|digit| **digit != b'.') {
        if !carries {
            break;
        }
        carries = *digit == b'9';
        *digit = if carries { b'0' } else { *digit + 1 };
    }
    if carries {
        text.insert(0, b'1');
    }
    match String::from_utf8_lossy(&text).parse::<f64>() {
        Ok(0.0) | Err(_) => 0.0,
        Ok(rounded) => rounded.copysign(real),
    }
}

fn each_text(
    columns: &[ArrayRef],
    rows: usize,
    of: impl Fn(&[Value<'_>]) -> Result<Option<String>>,
) -> Result<ArrayRef> {
    let columns = columns.iter().map(Values::new).collect::<Result<Vec<_>>>()?;
    let mut values = Vec::with_capacity(columns.len());
    let mut texts = Vec::with_capacity(rows);
    for row in 0..rows {
        values.clear();
        values.extend(columns.iter().map(|column| column.at(row)));
        texts.push(of(&values)?);
    }
    Ok(Arc::new(StringArray::from(texts)))
}

fn kind(value: Value<'_>) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Int(_) => "integer",
        Value::Real(_) => "real",
        Value::Text(_) => "text",
        Value::Bytes(_) => "blob",
    }
}

fn hex(value: Value<'_>) -> String {
    let text = value.text();
    let bytes = match (value, &text) {
        (Value::Bytes(bytes), _) => bytes,
        (_, Some(text)) => text.as_bytes(),
        (_, None) => &[],
    };
    bytes.iter().fold(String::new(), |mut digits, byte| {
        // A `String` takes all that is written.
        let _ = write!(digits, "{byte:02X}");
        digits
    })
}

fn quote(value: Value<'_>) -> String {
    match value {
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Bytes(_) => format!("X'{}'", hex(value)),
        value => value.text().map_or("NULL".to_owned(), |text| text.into_owned()),
    }
}

/// Makes a text of the numbers of its letters. What is no letter becomes U+FFFD.
fn letters(values: &[Value<'_>]) -> String {
    let letter = |value: &Value<'_>| {
        let number = value.int().and_then(|number| u32::try_from(number).ok());
        number
            .and_then(char::from_u32)
            .unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    values.iter().map(letter).collect()
}

/// Places count from 1, and from -1 at the end. Of a negative length the text ends before the place.
fn substring(values: &[Value<'_>]) -> Option<String> {
    let text = values.first()?.text()?;
    let from = values.get(1)?.int()?;
    let length = match values.get(2) {
        Some(length) => Some(length.int()?),
        None => None,
    };
    let count = text.chars().count() as i64;
    // The place of the first letter, from 0 on; it may be before the text.
    let begin = match from {
        0 if length.is_none_or(|length| length >= 0) => -1,
        0 => 0,
        1.. => from - 1,
        _ => count.saturating_add(from),
    };
    let (begin, end) = match length {
        None => (begin, i64::MAX),
        Some(length) if length < 0 => (begin.saturating_add(length), begin),
        Some(length) => (begin, begin.saturating_add(length)),
    };
    let begin = usize::try_from(begin.max(0)).ok()?;
    let end = usize::try_from(end.max(0)).ok()?;
    Some(text.chars().skip(begin).take(end.saturating_sub(begin)).collect())
}

/// Returns what a path such as `$.a[0]` leads to, as text: numbers too, and lists and objects as JSON.
fn json_extract(values: &[Value<'_>]) -> Result<Option<String>> {
    let (Some(text), Some(path)) = (values[0].text(), values[1].text()) else {
        return Ok(None);
    };
    let wrong = || exec_datafusion_err!("json_extract: `{path}` is no path; it is written such as $.name[0]");
    let json: Json = serde_json::from_str(&text)
        .map_err(|error| exec_datafusion_err!("json_extract: `{text:.100}` is no JSON: {error}"))?;
    let mut found = Some(&json);
    let mut rest = path.strip_prefix('$').ok_or_else(wrong)?;
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix('.') {
            let (name, behind) = match behind.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or_else(wrong)?,
                None => behind.split_at(behind.find(['.', '[']).unwrap_or(behind.len())),
            };
            found = found.and_then(|json| json.get(name));
            rest = behind;
        } else if let Some((place, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let list = found.and_then(Json::as_array);
            let from_end = place.strip_prefix("#-");
            let place: usize = from_end.unwrap_or(place).parse().map_err(|_| wrong())?;
            found = list.and_then(|list| match from_end {
                Some(_) => list.get(list.len().checked_sub(place)?),
                None => list.get(place),
            });
            rest = behind;
        } else {
            return Err(wrong());
        }
    }
    Ok(found.and_then(|json| match json {
        Json::Null => None,
        Json::Bool(truth) => Some(u8::from(*truth).to_string()),
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Array(_) | Json::Object(_) => Some(json.to_string()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_their_digits_show_them() {
        for (real, digits, expected) in [
            (434151.225, 2, 434151.22),
            (0.125, 2, 0.13),
            (-0.125, 2, -0.13),
            (2.5, 0, 3.0),
            (-2.5, 0, -3.0),
            (0.499, 0, 0.0),
            (-0.2, 0, 0.0),
            (9.999, 2, 10.0),
            (99.5, 0, 100.0),
            (1e17 + 2.0, 1, 1e17 + 2.0),
            (1e-300, 30, 0.0),
            (f64::INFINITY, 2, f64::INFINITY),
        ] {
            assert_eq!(rounded(real, digits), expected, "{real} {digits}");
        }
        assert!(rounded(f64::NAN, 1).is_nan());
    }

    #[test]
    fn parts_of_a_text_are_those_of_sqlite() {
        let part = |from, length: Option<i64>| {
            let mut values = vec![Value::Text("hello"), Value::Int(from)];
            values.extend(length.map(Value::Int));
            substring(&values).unwrap_or_default()
        };
        for (from, length, expected) in [
            (1, None, "hello"),
            (-3, Some(2), "ll"),
            (0, None, "hello"),
            (0, Some(3), "he"),
            (2, Some(-1), "h"),
            (-10, Some(7), "he"),
            (9, Some(1), ""),
            (-2, Some(-2), "el"),
            (i64::MAX, Some(i64::MAX), ""),
        ] {
            assert_eq!(part(from, length), expected, "{from} {length:?}");
        }
    }
}
