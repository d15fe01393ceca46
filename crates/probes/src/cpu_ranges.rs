//! Lists of CPUs as the kernel writes them and as people type them: `0-3,8`.
//!
//! Ftrace reads such lists, so does the CPU profiler, and `ferretto profile -C` takes one. Source: the kernel's
//! `Documentation/admin-guide/cputopology.rst`.

/// CPUs are numbered below this. No kernel has as many.
const MOST_CPUS: u32 = 1 << 16;

/// The numbers in a list, in its order. An empty list has none. `None` if a part is neither a number nor a range that goes up.
pub fn parse(list: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    let list = list.trim();
    if list.is_empty() {
        return Some(numbers);
    }
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Ranges that repeat each other must not cost memory without end.
        if first > last || last >= MOST_CPUS || numbers.len() > MOST_CPUS as usize {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_numbers_and_ranges() {
        assert_eq!(parse("0-3,5,7-9\n"), Some(vec![0, 1, 2, 3, 5, 7, 8, 9]));
        assert_eq!(parse("0, 2 - 3"), Some(vec![0, 2, 3]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse("\n"), Some(vec![]));
        let repeated = "0-65535,".repeat(100);
        for wrong in [
            "a",
            "1-",
            "0,,1",
            "3-1",
            "0-70000",
            "-1",
            "1-2-3",
            "0-4294967295",
            &repeated,
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
