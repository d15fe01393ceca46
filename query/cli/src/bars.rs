//! Bars beside numbers, in eighths of a letter.

/// The letters of the longest bar.
const LONGEST: usize = 30;

/// Returns a bar for each value; the longest for the greatest. Values that are not positive have none.
pub(crate) fn bars(values: &[f64]) -> Vec<String> {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let greatest = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let bar = |value: &f64| {
        if greatest <= 0.0 || value.is_nan() || *value <= 0.0 {
            return String::new();
        }
        let eighths = ((value / greatest).min(1.0) * (LONGEST * 8) as f64)
            .round()
            .max(1.0) as usize;
        "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_has_the_longest_bar_and_whatever_is_there_is_seen() {
        let bars = bars(&[0.0, 1.0, 1e9, 5e8, -3.0, f64::NAN]);
        let widths: Vec<usize> = bars.iter().map(|bar| bar.chars().count()).collect();
        assert_eq!(widths, [0, 1, LONGEST, LONGEST / 2, 0, 0]);
        assert!(super::bars(&[0.0, -1.0]).iter().all(String::is_empty));
    }
}
