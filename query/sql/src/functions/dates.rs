//! `date`, `time`, `datetime`, `julianday`, `unixepoch` and `strftime`, as SQLite has them: a time, then modifiers such as `'unixepoch'` or `'+1 day'`.
//!
//! The zone is UTC, so `'localtime'` and `'utc'` change nothing. A value that is no time gives null.

use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveDateTime, TimeDelta, Timelike};
use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::scalar::{Of, Scalar};
use super::values::{Value, Values};

/// The ms of the Julian day's beginning before 1970.
const JULIAN_MS: f64 = 210_866_760_000_000.0;
const DAY_MS: f64 = 86_400_000.0;

/// The functions of this module.
pub(super) fn functions() -> Vec<ScalarUDF> {
    let one =
        |name, least, kind, of: Of| ScalarUDF::from(Scalar::new(name, least..=usize::MAX, kind, of).of_now());
    vec![
        one("date", 1, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |time| time.format("%Y-%m-%d").to_string())
        }),
        one("time", 1, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |time| time.format("%H:%M:%S").to_string())
        }),
        one("datetime", 1, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |time| time.format("%Y-%m-%d %H:%M:%S").to_string())
        }),
        one("julianday", 1, DataType::Float64, |columns, rows| {
            Ok(Arc::new(
                times(columns, rows)?
                    .into_iter()
                    .map(|time| time.map(julian))
                    .collect::<Float64Array>(),
            ))
        }),
        one("unixepoch", 1, DataType::Int64, |columns, rows| {
            let seconds = times(columns, rows)?
                .into_iter()
                .map(|time| Some(time?.and_utc().timestamp()));
            Ok(Arc::new(seconds.collect::<Int64Array>()))
        }),
        one("strftime", 2, DataType::Utf8, |columns, rows| {
            let formats = Values::new(&columns[0])?;
            let times = times(&columns[1..], rows)?;
            let shown = times
                .into_iter()
                .enumerate()
                .map(|(row, time)| formatted(&formats.at(row).text()?, time?));
            Ok(Arc::new(shown.collect::<StringArray>()))
        }),
    ]
}

fn texts(columns: &[ArrayRef], rows: usize, of: fn(NaiveDateTime) -> String) -> Result<ArrayRef> {
    let times = times(columns, rows)?.into_iter();
    Ok(Arc::new(times.map(|time| time.map(of)).collect::<StringArray>()))
}

fn times(columns: &[ArrayRef], rows: usize) -> Result<Vec<Option<NaiveDateTime>>> {
    let columns = columns.iter().map(Values::new).collect::<Result<Vec<_>>>()?;
    let now = DateTime::<chrono::Utc>::from(SystemTime::now()).naive_utc();
    Ok((0..rows)
        .map(|row| {
            let values: Vec<Value<'_>> = columns.iter().map(|column| column.at(row)).collect();
            moment(&values, now)
        })
        .collect())
}

fn julian(time: NaiveDateTime) -> f64 {
    (time.and_utc().timestamp_millis() as f64 + JULIAN_MS) / DAY_MS
}

/// Returns the time that values mean: the first one, changed by the others.
fn moment(values: &[Value<'_>], now: NaiveDateTime) -> Option<NaiveDateTime> {
    let (first, mut modifiers) = values.split_first()?;
    let first = first.text()?;
    let mut time = match first.trim().parse::<f64>() {
        Ok(number) => {
            let kind = match modifiers.first() {
                Some(Value::Text(kind)) => kind.to_lowercase(),
                _ => String::new(),
            };
            let is_seconds = match kind.as_str() {
                "unixepoch" => true,
                "auto" => !(0.0..5_373_484.5).contains(&number),
                _ => false,
            };
            if matches!(kind.as_str(), "unixepoch" | "auto" | "julianday") {
                modifiers = &modifiers[1..];
            }
            let milliseconds = match is_seconds {
                true => number * 1000.0,
                false => number * DAY_MS - JULIAN_MS,
            };
            DateTime::from_timestamp_millis(milliseconds.round() as i64)?.naive_utc()
        }
        Err(_) => read(first.trim(), now)?,
    };
    for modifier in modifiers {
        time = changed(time, &modifier.text()?.trim().to_lowercase())?;
    }
    Some(time)
}

/// Reads `now`, a date, a time of day, or both.
fn read(text: &str, now: NaiveDateTime) -> Option<NaiveDateTime> {
    if text.eq_ignore_ascii_case("now") {
        return Some(now);
    }
    let is_date = text.as_bytes().get(4) == Some(&b'-');
    let (date, rest) = match is_date {
        true => text.split_at_checked(10)?,
        false => ("2000-01-01", text),
    };
    let mut numbers = date.split('-');
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let (year, month, day) = (number()?, number()?, number()?);
    if day == 0 || day > 31 {
        return None;
    }
    // The 30th of February is the 1st or 2nd of March.
    let date = NaiveDate::from_ymd_opt(year.try_into().ok()?, month, 1)?
        .checked_add_days(Days::new(u64::from(day) - 1))?;
    let midnight = date.and_hms_opt(0, 0, 0)?;
    let rest = match is_date {
        true if rest.is_empty() => return Some(midnight),
        true => rest.strip_prefix(['T', ' '])?.trim_start(),
        false => rest,
    };
    let (clock, zone) = match rest.find(['Z', 'z', '+', '-']) {
        Some(place) => rest.split_at(place),
        None => (rest, ""),
    };
    let clock = clock.trim_end();
    let mut parts = clock.splitn(3, ':');
    let mut minutes = |most| {
        let part = parts.next()?;
        let number = part
            .parse::<u8>()
            .ok()
            .filter(|number| part.len() == 2 && *number <= most)?;
        Some(i64::from(number))
    };
    let (hours, minutes) = (minutes(24)?, minutes(59)?);
    let seconds = match parts.next() {
        None => 0.0,
        Some(seconds) => seconds
            .parse::<f64>()
            .ok()
            .filter(|seconds| (0.0..60.0).contains(seconds))?,
    };
    let offset = match zone.strip_prefix(['+', '-']) {
        None => 0,
        Some(offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    let minutes = TimeDelta::try_minutes(hours * 60 + minutes - offset)?;
    let seconds = TimeDelta::try_milliseconds((seconds * 1000.0).round() as i64)?;
    midnight.checked_add_signed(minutes)?.checked_add_signed(seconds)
}

/// Changes a time as a modifier in small letters says.
fn changed(time: NaiveDateTime, modifier: &str) -> Option<NaiveDateTime> {
    let midnight = |date: NaiveDate| date.and_hms_opt(0, 0, 0);
    match modifier {
        "localtime" | "utc" | "subsec" | "subsecond" => return Some(time),
        "start of day" => return midnight(time.date()),
        "start of month" => return midnight(time.date().with_day(1)?),
        "start of year" => return midnight(time.date().with_ordinal(1)?),
        _ => {}
    }
    if let Some(day) = modifier.strip_prefix("weekday ") {
        let day = day.trim().parse::<u32>().ok().filter(|day| *day < 7)?;
        let days = (day + 7 - time.weekday().num_days_from_sunday()) % 7;
        return time.checked_add_days(Days::new(days.into()));
    }
    let (number, unit) = modifier.split_once(char::is_whitespace)?;
    let number: f64 = number.parse().ok()?;
    let ms = match unit.trim().trim_end_matches('s') {
        "second" => 1000.0,
        "minute" => 60_000.0,
        "hour" => 3_600_000.0,
        "day" => DAY_MS,
        unit @ ("month" | "year") => {
            let months = number.trunc() * if unit == "year" { 12.0 } else { 1.0 };
            return months_later(time, months as i32);
        }
        _ => return None,
    };
    time.checked_add_signed(TimeDelta::try_milliseconds((number * ms).round() as i64)?)
}

/// The same day of another month; behind its end, days of the next month.
fn months_later(time: NaiveDateTime, months: i32) -> Option<NaiveDateTime> {
    let first = time.with_day(1)?;
    let count = Months::new(months.unsigned_abs());
    let moved = match months < 0 {
        true => first.checked_sub_months(count),
        false => first.checked_add_months(count),
    };
    moved?.checked_add_days(Days::new(u64::from(time.day()) - 1))
}

/// Writes a time; nothing if the format has a field that does not exist.
fn formatted(format: &str, time: NaiveDateTime) -> Option<String> {
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let field = letters.next()?;
        match field {
            'f' => {
                let ms = time.and_utc().timestamp_subsec_millis();
                text += &format!("{:02}.{ms:03}", time.second());
            }
            'J' => text += &super::values::real_text(julian(time)),
            's' => text += &time.and_utc().timestamp().to_string(),
            'd' | 'e' | 'F' | 'H' | 'I' | 'j' | 'k' | 'l' | 'm' | 'M' | 'p' | 'P' | 'R' | 'S' | 'T' | 'u'
            | 'w' | 'W' | 'Y' | 'G' | 'g' | 'U' | 'V' | '%' => {
                text += &time.format(&format!("%{field}")).to_string();
            }
            _ => return None,
        }
    }
    Some(text)
}
