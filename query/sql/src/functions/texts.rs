//! Scalar functions on texts that the trace processor and SQLite have: `printf`, also called `format`, `str_split` and `regexp_extract`; and the regular expression
//! of a pattern of `GLOB`.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{exec_datafusion_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;
use regex::Regex;

use crate::dialect::{PATTERN, regular_expression};

use super::scalar::Scalar;
use super::values::{Value, Values};

/// The widest field of `printf`.
const WIDEST: usize = 10_000;

/// The functions of this module.
pub(super) fn functions() -> Vec<ScalarUDF> {
    let text = |name, counts, of| Scalar::new(name, counts, DataType::Utf8, of);
    [
        text("printf", 1..=usize::MAX, printf).or("format"),
        text("str_split", 3..=3, str_split),
        text("regexp_extract", 2..=2, regexp_extract),
        text(PATTERN, 1..=1, |columns, rows| {
            let patterns = texts(&columns[0])?;
            each(rows, |row| {
                value(&patterns, row).map(regular_expression).transpose()
            })
        }),
    ]
    .map(ScalarUDF::from)
    .into()
}

fn each<T: AsRef<str>>(rows: usize, of: impl FnMut(usize) -> Result<Option<T>>) -> Result<ArrayRef> {
    let texts = (0..rows).map(of).collect::<Result<Vec<Option<T>>>>()?;
    Ok(Arc::new(StringArray::from_iter(texts)))
}

/// Returns a column as texts.
fn texts(column: &ArrayRef) -> Result<StringArray> {
    Ok(cast(column, &DataType::Utf8)?.as_string::<i32>().clone())
}

fn value(column: &StringArray, row: usize) -> Option<&str> {
    column.is_valid(row).then(|| column.value(row))
}

/// `str_split(text, separator, n)`: the part behind the `n`th separator, from 0 on; null if there are fewer.
fn str_split(columns: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let (whole, separators) = (texts(&columns[0])?, texts(&columns[1])?);
    let places = cast(&columns[2], &DataType::Int64)?;
    let places = places.as_primitive::<Int64Type>();
    each(rows, |row| {
        let (Some(whole), Some(separator)) = (value(&whole, row), value(&separators, row)) else {
            return Ok(None);
        };
        let place = places
            .is_valid(row)
            .then(|| usize::try_from(places.value(row)).ok())
            .flatten();
        Ok(place.and_then(|place| match separator {
            "" => (place == 0).then_some(whole),
            separator => whole.split(separator).nth(place),
        }))
    })
}

/// `regexp_extract(text, pattern)`: the first group of the first match, or the whole match if the pattern has no group; null without a match.
fn regexp_extract(columns: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let (texts, patterns) = (texts(&columns[0])?, texts(&columns[1])?);
    let mut last: Option<(&str, Regex)> = None;
    each(rows, |row| {
        let (Some(text), Some(pattern)) = (value(&texts, row), value(&patterns, row)) else {
            return Ok(None);
        };
        if last.as_ref().is_none_or(|(known, _)| *known != pattern) {
            let regex = Regex::new(pattern).map_err(|error| {
                exec_datafusion_err!("regexp_extract: `{pattern}` is no pattern: {error}")
            })?;
            last = Some((pattern, regex));
        }
        let found = last.as_ref().and_then(|(_, regex)| regex.captures(text));
        Ok(found.and_then(|found| {
            let group = if found.len() > 1 {
                found.get(1)
            } else {
                found.get(0)
            };
            Some(group?.as_str())
        }))
    })
}

/// `printf(format, values…)` as SQLite has it, without `%n`.
fn printf(columns: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let Some((formats, values)) = columns.split_first() else {
        return plan_err!("printf takes a format");
    };
    let formats = texts(formats)?;
    let values = values.iter().map(Values::new).collect::<Result<Vec<_>>>()?;
    each(rows, |row| {
        let Some(format) = value(&formats, row) else {
            return Ok(None);
        };
        let mut next = 0..values.len();
        let mut text = String::new();
        let mut rest = format;
        while let Some((before, behind)) = rest.split_once('%') {
            text.push_str(before);
            let (field, behind) = Field::parse(behind);
            rest = behind;
            if field.kind == '%' {
                text.push('%');
                continue;
            }
            // A field without a value prints 0 or nothing.
            let next = next.next().map_or(Value::Null, |place| values[place].at(row));
            match field.kind {
                'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'p' => field.int(next.int().unwrap_or(0), &mut text),
                'f' | 'e' | 'E' | 'g' | 'G' => field.real(next.real().unwrap_or(0.0), &mut text),
                's' | 'z' | 'c' | 'q' | 'Q' | 'w' => {
                    let string = next.text();
                    let most = match (field.kind, field.precision) {
                        ('c', _) => 1,
                        (_, precision) => precision.unwrap_or(usize::MAX),
                    };
                    let shown = string.as_deref().unwrap_or(match field.kind {
                        'q' | 'w' => "(NULL)",
                        _ => "",
                    });
                    let shown: String = shown.chars().take(most).collect();
                    let shown = match field.kind {
                        'q' => shown.replace('\'', "''"),
                        'Q' if string.is_none() => "NULL".to_owned(),
                        'Q' => format!("'{}'", shown.replace('\'', "''")),
                        'w' => shown.replace('"', "\"\""),
                        _ => shown,
                    };
                    field.pad(&shown, &mut text);
                }
                // As SQLite, which ends at what it does not know.
                _ => return Ok(Some(text)),
            }
        }
        text.push_str(rest);
        Ok(Some(text))
    })
}

/// A field of a format: `%[flags][width][.precision][l]kind`.
#[derive(Debug)]
struct Field<'a> {
    flags: &'a str,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Field<'_> {
    /// Takes the field behind a `%` apart; returns it and what is behind it. A `%` at the end is itself.
    fn parse(format: &str) -> (Field<'_>, &str) {
        let begin = format
            .find(|letter| !"-+0 #,!".contains(letter))
            .unwrap_or(format.len());
        let (flags, rest) = format.split_at(begin);
        let (width, mut rest) = leading_number(rest);
        let mut precision = None;
        if let Some(behind) = rest.strip_prefix('.') {
            let (number, behind) = leading_number(behind);
            (precision, rest) = (Some(number), behind);
        }
        let mut letters = rest.trim_start_matches('l').chars();
        let kind = letters.next().unwrap_or('%');
        let field = Field {
            flags,
            width,
            precision,
            kind,
        };
        (field, letters.as_str())
    }

    fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    fn int(&self, int: i64, text: &mut String) {
        let mut digits = match self.kind {
            'x' => format!("{int:x}"),
            'X' | 'p' => format!("{int:X}"),
            'o' => format!("{int:o}"),
            'u' => int.cast_unsigned().to_string(),
            _ => int.unsigned_abs().to_string(),
        };
        if let Some(missing) = self.precision.unwrap_or(0).checked_sub(digits.len()) {
            digits.insert_str(0, &"0".repeat(missing));
        }
        if self.has(',') {
            for place in (1..digits.len())
                .rev()
                .filter(|place| (digits.len() - place) % 3 == 0)
                .collect::<Vec<_>>()
            {
                digits.insert(place, ',');
            }
        }
        self.number(int < 0 && matches!(self.kind, 'd' | 'i'), &digits, text);
    }

    fn real(&self, real: f64, text: &mut String) {
        let precision = self.precision.unwrap_or(6);
        let size = real.abs();
        let digits = match self.kind {
            'f' => format!("{size:.precision$}"),
            'e' | 'E' => exponential(size, precision),
            _ => {
                // The shorter form, as in C: by the exponent that rounding leaves.
                let precision = precision.max(1);
                let rounded = format!("{size:.*e}", precision - 1);
                let exponent: i64 = rounded
                    .split_once('e')
                    .and_then(|(_, it)| it.parse().ok())
                    .unwrap_or(0);
                let places = i64::try_from(precision).unwrap_or(i64::MAX) - 1 - exponent;
                let (digits, power) = match usize::try_from(places) {
                    Ok(places) if exponent >= -4 => (format!("{size:.places$}"), String::new()),
                    _ => {
                        let whole = exponential(size, precision - 1);
                        let (digits, power) = whole.split_once('e').unwrap_or((&whole, ""));
                        (digits.to_owned(), format!("e{power}"))
                    }
                };
                let digits = match digits.contains('.') {
                    true => digits.trim_end_matches('0').trim_end_matches('.'),
                    false => &digits,
                };
                format!("{digits}{power}")
            }
        };
        let digits = match self.kind {
            'E' | 'G' => digits.to_uppercase(),
            _ => digits,
        };
        self.number(real < 0.0, &digits, text);
    }

    /// Writes a number with its sign.
    fn number(&self, is_negative: bool, digits: &str, text: &mut String) {
        let sign = match is_negative {
            true => "-",
            false if self.has('+') => "+",
            false if self.has(' ') => " ",
            false => "",
        };
        let zeros = match self.has('0') && !self.has('-') {
            true => self.width.saturating_sub(sign.len() + digits.len()),
            false => 0,
        };
        self.pad(&format!("{sign}{}{digits}", "0".repeat(zeros)), text);
    }

    fn pad(&self, value: &str, text: &mut String) {
        let width = self.width;
        // A `String` takes all that is written.
        let _ = match self.has('-') {
            true => write!(text, "{value:<width$}"),
            false => write!(text, "{value:>width$}"),
        };
    }
}

/// Writes a number as C does: with a sign and two digits at least in its exponent.
fn exponential(size: f64, precision: usize) -> String {
    let plain = format!("{size:.precision$e}");
    let Some((digits, exponent)) = plain.split_once('e') else {
        return plain;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Reads the digits that a text begins with, up to the widest field; returns what is behind them.
fn leading_number(text: &str) -> (usize, &str) {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, behind) = text.split_at(end);
    let number = match digits {
        "" => 0,
        digits => digits.parse().unwrap_or(WIDEST),
    };
    (number.min(WIDEST), behind)
}
