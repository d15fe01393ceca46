//! Numbers as SQLite prints them, for columns that the trace processor makes with it.

/// Returns a number with 15 significant digits, and at least one behind the point.
pub(crate) fn real(value: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::real;

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
