//! Numbers as SQLite prints them, for columns that the trace processor makes with it.
//!
//! Each argument of an event has one of them, so integers are written without the formatter.

/// Appends an integer.
pub(crate) fn int(value: i64, to: &mut String) {
    to.push_str(itoa::Buffer::new().format(value));
}

/// Appends a number with 15 significant digits, and at least one behind the point.
pub(crate) fn real(value: f64, to: &mut String) {
    // What has a name of at most 15 digits is called by it. Without a sign, the name has a point besides.
    if (1e-4..1e15).contains(&value.abs()) {
        let mut buffer = zmij::Buffer::new();
        let name = buffer.format_finite(value);
        if name.len() <= 16 && !name.contains('e') {
            to.push_str(name);
            return;
        }
    }
    to.push_str(&any_real(value));
}

fn any_real(value: f64) -> String {
    if value.is_nan() {
        return String::new();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    if value == 0.0 {
        return "0.0".to_owned();
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let (digits, exponent) = significant(value.abs());
    let (whole, fraction, power) = match exponent {
        0..15 => {
            let (whole, fraction) = digits.split_at(exponent as usize + 1);
            (whole, fraction.to_owned(), String::new())
        }
        -4..0 => {
            let zeros = "0".repeat(-exponent as usize - 1);
            ("0", format!("{zeros}{digits}"), String::new())
        }
        _ => {
            let (whole, fraction) = digits.split_at(1);
            let sign = if exponent < 0 { '-' } else { '+' };
            let power = format!("e{sign}{:02}", exponent.abs());
            (whole, fraction.to_owned(), power)
        }
    };
    let fraction = match fraction.trim_end_matches('0') {
        "" => "0",
        fraction => fraction,
    };
    format!("{sign}{whole}.{fraction}{power}")
}

/// Returns the 15 significant digits of a positive number, and the power of ten of the first. SQLite has three digits more, and rounds those.
fn significant(value: f64) -> (String, i32) {
    // A number that has a name of at most 15 digits is nearer to it than to any other of so many digits, unless it is subnormal.
    if value >= f64::MIN_POSITIVE
        && let Some((digits, exponent)) = named(value)
    {
        return (digits, exponent);
    }
    exact(value)
}

/// As [`significant`], of any positive number.
fn exact(value: f64) -> (String, i32) {
    let exact = format!("{value:.17e}");
    let (digits, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let digits: u64 = digits.replace('.', "").parse().unwrap_or(0);
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let rounded = digits / 1000 + u64::from(digits / 100 % 10 >= 5);
    match rounded.to_string() {
        // All digits were nines.
        longer if longer.len() > 15 => (longer[..15].to_owned(), exponent + 1),
        digits => (digits, exponent),
    }
}

/// Returns the shortest digits that mean a positive number, with zeros up to 15, and the power of ten of the first; `None` if they are more.
fn named(value: f64) -> Option<(String, i32)> {
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e')?;
    let mut digits = digits.replace('.', "");
    if digits.len() > 15 {
        return None;
    }
    digits.extend(std::iter::repeat_n('0', 15 - digits.len()));
    Some((digits, exponent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{any_real, exact, named};

    fn real(value: f64) -> String {
        let mut text = String::new();
        super::real(value, &mut text);
        text
    }

    #[test]
    fn short_names_are_what_the_exact_digits_round_to() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 11
        };
        let mut short = 0;
        for round in 0..200_000 {
            let value = match round % 4 {
                0 => f64::from_bits(next() << 11),
                1 => (next() % 100_000) as f64 / 64.0,
                2 => (next() % 1_000_000_000_000_000) as f64 * 10_f64.powi((next() % 40) as i32 - 20),
                _ => (next() % 1_000_000) as f64 / 1000.0,
            };
            if !value.is_normal() {
                continue;
            }
            if let Some(named) = named(value.abs()) {
                assert_eq!(named, exact(value.abs()), "{value:e}");
                short += 1;
            }
            assert_eq!(real(value), any_real(value), "{value:e}");
        }
        assert!(short > 50_000);
    }

    #[test]
    fn numbers_as_sqlite_prints_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (0.1 + 0.2, "0.3"),
            (1e14, "100000000000000.0"),
            (1e15, "1.0e+15"),
            (1.25e-7, "1.25e-07"),
            (0.0001, "0.0001"),
            (25276502016.0, "25276502016.0"),
            (1795788218211.125, "1795788218211.13"),
            (-0.5, "-0.5"),
            (999_999_999_999_999.9, "1.0e+15"),
            (123456789012345678.0, "1.23456789012346e+17"),
            (0.000012345, "1.2345e-05"),
        ] {
            assert_eq!(real(value), text);
        }
    }
}
