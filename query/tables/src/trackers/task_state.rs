//! The states of threads as switches of the kernel give them, in letters.
//!
//! The bits changed with kernels. Their meaning is that of the kernel's `sched_switch` event, with the letters that the trace processor uses.

/// A kernel's version: major and minor number.
pub(crate) type Version = (u32, u32);

/// Without a version the trace is old, and so is the kernel.
const OLD: Version = (4, 4);

/// Up to here all kernels agree.
const COMMON: [(u32, char); 6] = [
    (0x01, 'S'),
    (0x02, 'D'),
    (0x04, 'T'),
    (0x08, 't'),
    (0x10, 'X'),
    (0x20, 'Z'),
];
/// Kernels before 4.14.
const EARLY: [(u32, char); 5] = [(0x200, 'P'), (0x40, 'x'), (0x80, 'K'), (0x100, 'W'), (0x400, 'N')];
/// Kernels since 4.14.
const LATE: [(u32, char); 2] = [(0x40, 'P'), (0x80, 'I')];
/// Uninterruptible and without load, which kernels before 4.14 reported as two bits.
const EARLY_IDLE: u32 = 0x402;
/// As many letters fit.
const MOST_LETTERS: usize = 3;

/// Returns the letters of a state, and what they are when they are known to be wrong.
pub(crate) fn letters(raw: u64, version: Option<Version>) -> Option<String> {
    let raw = u32::from(raw as u16);
    let version = version.unwrap_or(OLD);
    let is_late = version >= (4, 14);
    if is_late && raw & 0xfe00 != 0 {
        return None;
    }
    let preempted = match version {
        _ if is_late => 0x100,
        version if version >= (4, 8) => 0x1000,
        _ => 0x800,
    };
    let flags: &[(u32, char)] = if is_late { &LATE } else { &EARLY };
    let known = COMMON.iter().chain(flags);
    let mut letters: String = known
        .filter(|(bit, _)| raw & bit != 0)
        .map(|(_, letter)| *letter)
        .collect();
    let mask = COMMON.iter().chain(flags).fold(0, |mask, (bit, _)| mask | bit);
    if !is_late && raw & mask == EARLY_IDLE {
        letters = "I".to_owned();
    }
    if letters.is_empty() {
        return Some(if raw & preempted != 0 { "R+" } else { "R" }.to_owned());
    }
    letters.truncate(MOST_LETTERS);
    Some(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_old_and_new_kernels() {
        let new = Some((6, 1));
        for (raw, version, expected) in [
            (0, new, Some("R")),
            (0x100, new, Some("R+")),
            (1, new, Some("S")),
            (2, new, Some("D")),
            (0x80, new, Some("I")),
            (0x12, new, Some("DX")),
            (0x200, new, None),
            (0x800, None, Some("R+")),
            (0x1000, Some((4, 9)), Some("R+")),
            (0x402, None, Some("I")),
            (0x81, None, Some("SK")),
            (0x40, None, Some("x")),
        ] {
            assert_eq!(letters(raw, version).as_deref(), expected, "{raw:#x} {version:?}");
        }
    }
}
