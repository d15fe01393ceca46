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
use super::values::{Value, Values, number};

/// `unixepoch` with the modifier `'subsec'`: a number with a fraction.
pub(crate) const EPOCH_WITH_FRACTION: &str = "unixepoch_of_subsec";

/// The ms of the Julian day's beginning before 1970.
const JULIAN_MS: i64 = 210_866_760_000_000;
const DAY_MS: f64 = 86_400_000.0;
/// SQLite's times are those before this Julian day, from 0 on: the years -4713 to 9999.
const DAYS: f64 = 5_373_484.5;
const MOST_MS: i64 = 464_269_060_800_000;
const YEARS: std::ops::RangeInclusive<i32> = -4713..=9999;

/// The functions of this module.
pub(super) fn functions() -> Vec<ScalarUDF> {
    let one = |name, place, kind, of: Of| {
        ScalarUDF::from(Scalar::new(name, place..=usize::MAX, kind, of).of_now(place))
    };
    vec![
        one("date", 0, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |moment| moment.time.format("%Y-%m-%d").to_string())
        }),
        one("time", 0, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |moment| {
                moment.time.format(&moment.with_seconds("%H:%M:%S")).to_string()
            })
        }),
        one("datetime", 0, DataType::Utf8, |columns, rows| {
            texts(columns, rows, |moment| {
                moment
                    .time
                    .format(&moment.with_seconds("%Y-%m-%d %H:%M:%S"))
                    .to_string()
            })
        }),
        one("julianday", 0, DataType::Float64, |columns, rows| {
            let days = moments(columns, rows)?
                .into_iter()
                .map(|moment| Some(julian(moment?.time)));
            Ok(Arc::new(days.collect::<Float64Array>()))
        }),
        one("unixepoch", 0, DataType::Int64, |columns, rows| {
            let seconds = moments(columns, rows)?
                .into_iter()
                .map(|moment| Some(moment?.time.and_utc().timestamp()));
            Ok(Arc::new(seconds.collect::<Int64Array>()))
        }),
        one(EPOCH_WITH_FRACTION, 0, DataType::Float64, |columns, rows| {
            let seconds = moments(columns, rows)?
                .into_iter()
                .map(|moment| Some(seconds(moment?.time)));
            Ok(Arc::new(seconds.collect::<Float64Array>()))
        }),
        one("strftime", 1, DataType::Utf8, |columns, rows| {
            let formats = Values::new(&columns[0])?;
            let moments = moments(columns.get(1..).unwrap_or_default(), rows)?;
            let shown = moments
                .into_iter()
                .enumerate()
                .map(|(row, moment)| formatted(&formats.at(row).text()?, &moment?));
            Ok(Arc::new(shown.collect::<StringArray>()))
        }),
    ]
}

fn texts(columns: &[ArrayRef], rows: usize, of: fn(Moment) -> String) -> Result<ArrayRef> {
    let moments = moments(columns, rows)?.into_iter();
    Ok(Arc::new(
        moments.map(|moment| moment.map(of)).collect::<StringArray>(),
    ))
}

fn moments(columns: &[ArrayRef], rows: usize) -> Result<Vec<Option<Moment>>> {
    let columns = columns.iter().map(Values::new).collect::<Result<Vec<_>>>()?;
    // A `'now'` that is written as such has become the time at which the statement began. Here it is computed.
    let now = DateTime::<chrono::Utc>::from(SystemTime::now()).naive_utc();
    Ok((0..rows)
        .map(|row| {
            let values: Vec<Value<'_>> = columns.iter().map(|column| column.at(row)).collect();
            moment(&values, now)
        })
        .collect())
}

fn julian(time: NaiveDateTime) -> f64 {
    julian_ms(time) as f64 / DAY_MS
}

fn julian_ms(time: NaiveDateTime) -> i64 {
    time.and_utc().timestamp_millis() + JULIAN_MS
}

/// The seconds since 1970, with their fraction.
fn seconds(time: NaiveDateTime) -> f64 {
    time.and_utc().timestamp_millis() as f64 / 1000.0
}

/// How exact the present time is shown.
pub(super) enum Now {
    Seconds,
    Milliseconds,
}

/// Whether a text means the present time.
pub(super) fn now(text: &str) -> Option<Now> {
    match text.to_ascii_lowercase().as_str() {
        "now" => Some(Now::Seconds),
        "subsec" | "subsecond" => Some(Now::Milliseconds),
        _ => None,
    }
}

/// Writes a time as [`read`] reads it.
pub(super) fn as_read(time: NaiveDateTime) -> String {
    time.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// A time between its modifiers.
#[derive(Debug)]
struct Moment {
    time: NaiveDateTime,
    /// The days that the day of the month was beyond the month's end, which `'floor'` takes back.
    beyond: u64,
    /// Whether seconds are shown with their fraction.
    has_fraction: bool,
}

/// Returns the time that values mean: the first one, changed by the others.
fn moment(values: &[Value<'_>], now: NaiveDateTime) -> Option<Moment> {
    let (first, mut modifiers) = values.split_first()?;
    let kind = match modifiers.first() {
        Some(Value::Text(kind)) => kind.to_ascii_lowercase(),
        _ => String::new(),
    };
    let text = first.text()?;
    let read = match first {
        Value::Text(_) | Value::Bytes(_) => Moment::read(&text, now),
        _ => None,
    };
    let mut moment = match read {
        // A text with a date is no number whose meaning could be judged.
        Some(moment) if kind == "auto" => {
            modifiers = &modifiers[1..];
            moment
        }
        Some(moment) => moment,
        None => {
            let number = match first {
                Value::Text(_) | Value::Bytes(_) => number(&text)?.real()?,
                _ => first.real()?,
            };
            if matches!(kind.as_str(), "unixepoch" | "auto" | "julianday") {
                modifiers = &modifiers[1..];
            }
            let is_day = (0.0..DAYS).contains(&number);
            let ms = match kind.as_str() {
                "unixepoch" => number * 1000.0 + JULIAN_MS as f64,
                "auto" if !is_day => number * 1000.0 + JULIAN_MS as f64,
                _ if is_day => number * DAY_MS,
                _ => return None,
            };
            if !(0.0..MOST_MS as f64).contains(&ms) {
                return None;
            }
            Moment::new(DateTime::from_timestamp_millis((ms + 0.5) as i64 - JULIAN_MS)?.naive_utc())
        }
    };
    for modifier in modifiers {
        moment.change(&modifier.text()?)?;
    }
    (0..MOST_MS).contains(&julian_ms(moment.time)).then_some(moment)
}

/// The letters of a text that are not yet read.
struct Letters<'a>(&'a str);

impl Letters<'_> {
    /// Reads a number of so many digits.
    fn digits(&mut self, count: usize, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        self.0 = rest;
        digits.parse().ok().filter(|number| range.contains(number))
    }

    /// Reads one of some letters.
    fn letter(&mut self, of: &str) -> Option<char> {
        let letter = self.0.chars().next().filter(|letter| of.contains(*letter))?;
        self.0 = &self.0[letter.len_utf8()..];
        Some(letter)
    }

    fn skip_space(&mut self) {
        self.0 = self
            .0
            .trim_start_matches(|letter: char| letter.is_ascii_whitespace());
    }

    /// Reads hours, minutes and, if they are there, seconds, as ms.
    fn clock(&mut self) -> Option<i64> {
        let hours = self.digits(2, 0..=24)?;
        self.letter(":")?;
        let minutes = self.digits(2, 0..=59)?;
        let mut ms = (hours * 60 + minutes) * 60_000;
        if self.letter(":").is_some() {
            ms += self.digits(2, 0..=59)? * 1000;
            let fraction = self.0.strip_prefix('.').unwrap_or("");
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 {
                let fraction: f64 = self.0[..=digits].parse().ok()?;
                ms += (fraction.min(0.999) * 1000.0).round() as i64;
                self.0 = &self.0[digits + 1..];
            }
        }
        Some(ms)
    }

    /// Reads a time of day with its zone to the end, as ms of UTC.
    fn time_of_day(&mut self) -> Option<i64> {
        let ms = self.clock()?;
        self.skip_space();
        let offset = match self.letter("+-Zz") {
            Some(sign @ ('+' | '-')) => {
                let hours = self.digits(2, 0..=14)?;
                self.letter(":")?;
                let minutes = hours * 60 + self.digits(2, 0..=59)?;
                if sign == '-' { -minutes } else { minutes }
            }
            _ => 0,
        };
        self.skip_space();
        self.0.is_empty().then_some(ms - offset * 60_000)
    }

    /// Reads `YYYY-MM-DD` as months and days that are added. Years have four digits or five.
    fn years_months_and_days(&mut self) -> Option<(i64, i64)> {
        let digits = self.0.find('-').filter(|digits| matches!(digits, 4 | 5))?;
        let years = self.digits(digits, 0..=14_712)?;
        self.letter("-")?;
        let months = self.digits(2, 0..=11)?;
        self.letter("-")?;
        let days = self.digits(2, 0..=30)?;
        Some((years * 12 + months, days))
    }
}

impl Moment {
    fn new(time: NaiveDateTime) -> Moment {
        Moment {
            time,
            beyond: 0,
            has_fraction: false,
        }
    }

    /// Reads `now`, a date, a time of day, or both.
    fn read(text: &str, present: NaiveDateTime) -> Option<Moment> {
        if let Some(exact) = now(text) {
            let mut moment = Moment::new(present);
            moment.has_fraction = matches!(exact, Now::Milliseconds);
            return Some(moment);
        }
        let mut letters = Letters(text);
        if let Some(ms) = letters.time_of_day() {
            return Moment::of_day(2000, 1, 1)?.later(ms);
        }
        let mut letters = Letters(text);
        let sign = letters.letter("-");
        let year = letters.digits(4, 0..=9999)?;
        letters.letter("-")?;
        let month = letters.digits(2, 1..=12)?;
        letters.letter("-")?;
        let day = letters.digits(2, 1..=31)?;
        let year = if sign.is_some() { -year } else { year };
        let moment = Moment::of_day(
            year.try_into().ok()?,
            month.try_into().ok()?,
            day.try_into().ok()?,
        )?;
        letters.0 = letters
            .0
            .trim_start_matches(|letter: char| letter == 'T' || letter.is_ascii_whitespace());
        match letters.0.is_empty() {
            true => Some(moment),
            false => moment.later(letters.time_of_day()?),
        }
    }

    /// The midnight of a day. The 30th of February is the 1st or 2nd of March.
    fn of_day(year: i32, month: u32, day: u64) -> Option<Moment> {
        let first = NaiveDate::from_ymd_opt(year, month, 1).filter(|_| YEARS.contains(&year))?;
        let length = first
            .checked_add_months(Months::new(1))?
            .signed_duration_since(first)
            .num_days();
        let date = first.checked_add_days(Days::new(day - 1))?;
        let mut moment = Moment::new(date.and_hms_opt(0, 0, 0)?);
        moment.beyond = day.saturating_sub(length.unsigned_abs());
        Some(moment)
    }

    fn later(mut self, ms: i64) -> Option<Moment> {
        self.add(ms)?;
        Some(self)
    }

    fn add(&mut self, ms: i64) -> Option<()> {
        self.time = self.time.checked_add_signed(TimeDelta::try_milliseconds(ms)?)?;
        Some(())
    }

    /// Adds months, and keeps the day; behind the month's end, days of the next month.
    fn add_months(&mut self, months: i64) -> Option<()> {
        let count = i64::from(self.time.year()) * 12 + i64::from(self.time.month0()) + months;
        let year = count.div_euclid(12).try_into().ok()?;
        let month = u32::try_from(count.rem_euclid(12)).ok()? + 1;
        let since_midnight = self
            .time
            .signed_duration_since(self.time.date().and_hms_opt(0, 0, 0)?);
        let day = Moment::of_day(year, month, self.time.day().into())?;
        self.time = day.time.checked_add_signed(since_midnight)?;
        self.beyond = day.beyond;
        Some(())
    }

    /// Changes the time as a modifier says.
    fn change(&mut self, modifier: &str) -> Option<()> {
        let modifier = modifier.to_ascii_lowercase();
        let midnight = |date: NaiveDate| date.and_hms_opt(0, 0, 0);
        match modifier.as_str() {
            // The zone is UTC. What is beyond a month's end is in the next month already.
            "localtime" | "utc" => {}
            "ceiling" => self.beyond = 0,
            "floor" => self.time = self.time.checked_sub_days(Days::new(self.beyond))?,
            "subsec" | "subsecond" => self.has_fraction = true,
            "start of day" => self.time = midnight(self.time.date())?,
            "start of month" => self.time = midnight(self.time.date().with_day(1)?)?,
            "start of year" => self.time = midnight(self.time.date().with_ordinal(1)?)?,
            _ => match modifier.strip_prefix("weekday ") {
                Some(day) => {
                    let day = number(day)?
                        .real()
                        .filter(|day| (0.0..7.0).contains(day) && day.fract() == 0.0)?;
                    let days = (day as u32 + 7 - self.time.weekday().num_days_from_sunday()) % 7;
                    self.time = self.time.checked_add_days(Days::new(days.into()))?;
                }
                None => self.shift(&modifier)?,
            },
        }
        Some(())
    }

    /// Adds what a modifier such as `+1.5 days`, `-01:30` or `+0001-02-03 04:05` says.
    fn shift(&mut self, modifier: &str) -> Option<()> {
        let sign = modifier.chars().next().filter(|letter| "+-".contains(*letter));
        let times = if sign == Some('-') { -1 } else { 1 };
        let unsigned = &modifier[usize::from(sign.is_some())..];
        if !unsigned.starts_with(|letter: char| letter.is_ascii_digit()) {
            return None;
        }
        let mut letters = Letters(unsigned);
        if sign.is_some()
            && let Some((months, days)) = letters.years_months_and_days()
        {
            self.add_months(times * months)?;
            self.add(times * days * DAY_MS as i64)?;
            if letters.0.is_empty() {
                return Some(());
            }
            letters.0 = letters
                .0
                .strip_prefix(|letter: char| letter.is_ascii_whitespace())?;
            let ms = letters.time_of_day()?;
            return self.add(times * ms);
        }
        if let Some(ms) = Letters(unsigned).time_of_day() {
            return self.add(times * (ms % DAY_MS as i64));
        }
        let (count, unit) = modifier.split_once(|letter: char| letter.is_ascii_whitespace())?;
        let mut count = number(count)?.real()?;
        let unit = unit.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
        // As far as SQLite goes, which is as far as its times.
        let (ms, most) = match unit.strip_suffix('s').unwrap_or(unit) {
            "second" => (1000.0, 4.6427e14),
            "minute" => (60_000.0, 7.7379e12),
            "hour" => (3_600_000.0, 1.2897e11),
            "day" => (DAY_MS, 5_373_485.0),
            "month" => (30.0 * DAY_MS, 176_546.0),
            "year" => (365.0 * DAY_MS, 14_713.0),
            _ => return None,
        };
        if count.abs() >= most {
            return None;
        }
        self.beyond = 0;
        // A part of a month is one of 30 days, that of a year one of 365.
        let months = if unit.starts_with("month") { 1 } else { 12 };
        if unit.starts_with("month") || unit.starts_with("year") {
            self.add_months(count.trunc() as i64 * months)?;
            count = count.fract();
        }
        self.add((count * ms).round() as i64)
    }

    /// Returns a format of [`chrono`] that ends with seconds, with their fraction if it is shown.
    fn with_seconds<'a>(&self, format: &'a str) -> std::borrow::Cow<'a, str> {
        match self.has_fraction {
            true => (format.to_owned() + "%.3f").into(),
            false => format.into(),
        }
    }
}

/// Writes a time; nothing if the format has a field that does not exist.
fn formatted(format: &str, moment: &Moment) -> Option<String> {
    let time = moment.time;
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
            's' if moment.has_fraction => text += &format!("{:.3}", seconds(time)),
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
