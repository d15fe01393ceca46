//! Finds the name that was probably meant.

/// Returns the candidate nearest to `name`, if at most a third of the letters differ: then the difference may be a typing error.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, (name.len() / 3).max(1), candidates)
}

/// Returns the candidate nearest to `name`, if at most `allowed` letters differ.
#[must_use]
pub fn nearest_within<'a>(
    name: &str,
    allowed: usize,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= allowed)
        .map(|candidate| (distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns how many letters must be inserted, removed, replaced or swapped with a neighbour to turn `a` into `b`.
/// Upper and lower case are the same (optimal string alignment).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let same = |i: usize, j: usize| a[i].eq_ignore_ascii_case(&b[j]);
            row[j] = (last[j] + 1)
                .min(row[j - 1] + 1)
                .min(last[j - 1] + usize::from(!same(i - 1, j - 1)));
            if i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1) {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let names = ["duration_ms", "data_sources", "buffers", "fill_policy"];
        for (slip, meant) in [
            ("durations_ms", "duration_ms"),
            ("duraton_ms", "duration_ms"),
            ("data_source", "data_sources"),
            ("bufers", "buffers"),
            ("BUFFERS", "buffers"),
            ("fill_ploicy", "fill_policy"),
        ] {
            assert_eq!(nearest(slip, names), Some(meant));
        }
        assert_eq!(nearest("zebra", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), expected, "{b} {a}");
        }
    }
}
