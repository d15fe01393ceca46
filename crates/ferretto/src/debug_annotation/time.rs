//! The time of day as text.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

const NANOSECONDS: i128 = 1_000_000_000;

/// A time of day in UTC in the format of ISO 8601, to the nanosecond: `2026-11-23T08:13:31.000000000Z`. Within years 0 to 9999, texts sort in the
/// order of their times.
pub(super) struct Iso8601(pub(super) SystemTime);

impl fmt::Display for Iso8601 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = match self.0.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        let (seconds, nanoseconds) = (
            nanoseconds.div_euclid(NANOSECONDS),
            nanoseconds.rem_euclid(NANOSECONDS),
        );
        let (days, seconds) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z"
        )
    }
}

/// Year, month and day in the Gregorian calendar, from the number of days since 1970-01-01.
///
/// Internally years begin in March, so that the leap day is the last of its year, and eras of 400 years have equal numbers of days.
fn date(day: i128) -> (i128, i128, i128) {
    const ERA: i128 = 146_097;
    /// From 0000-03-01.
    const BEFORE_1970: i128 = 719_468;
    let day = day + BEFORE_1970;
    let (era, day) = (day.div_euclid(ERA), day.rem_euclid(ERA));
    let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days, over and over.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let in_next_year = month >= 10;
    (
        era * 400 + year + i128::from(in_next_year),
        if in_next_year { month - 9 } else { month + 3 },
        day,
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_agree_with_the_calendar() {
        let days_of = |year: i128, month: i128| match month {
            4 | 6 | 9 | 11 => 30,
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            _ => 31,
        };
        // Day by day, from a beginning that everybody knows, in both directions.
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..400_000 {
            assert_eq!(date(number), (year, month, day), "{number}");
            day += 1;
            if day > days_of(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in (-800_000..=0).rev() {
            assert_eq!(date(number), (year, month, day), "{number}");
            day -= 1;
            if day < 1 {
                month -= 1;
                if month < 1 {
                    (year, month) = (year - 1, 12);
                }
                day = days_of(year, month);
            }
        }
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        let after = |seconds, nanoseconds| UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        for (time, text) in [
            (UNIX_EPOCH, "1970-01-01T00:00:00.000000000Z"),
            (after(951_827_696, 7), "2000-02-29T12:34:56.000000007Z"),
            (
                after(4_102_444_799, 999_999_999),
                "2099-12-31T23:59:59.999999999Z",
            ),
            (
                UNIX_EPOCH - Duration::from_nanos(1),
                "1969-12-31T23:59:59.999999999Z",
            ),
        ] {
            assert_eq!(Iso8601(time).to_string(), text);
        }
    }
}
