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
    let scientific = format!("{value:.14e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..15).contains(&exponent) {
        let decimals = (14 - exponent).max(1) as usize;
        let fixed = format!("{value:.decimals$}");
        let trimmed = fixed.trim_end_matches('0');
        return match trimmed.ends_with('.') {
            true => format!("{trimmed}0"),
            false => trimmed.to_owned(),
        };
    }
    let digits = digits.trim_end_matches('0');
    let point = if digits.ends_with('.') { "0" } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{point}e{sign}{:02}", exponent.abs())
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
        ] {
            assert_eq!(real(value), text);
        }
    }
}
