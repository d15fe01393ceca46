//! Formats counts, sizes and times for people.
//!
//! Everything that prints to the terminal calls it.

use std::fmt;
use std::time::Duration;

/// A count with a separator between thousands: `12,345`.
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// A number of bytes, in the largest unit with a value of at least 1: `973 B`, `1.2 MiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 1023.95 would print as 1024.0.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// A time as a clock shows it: `0.7 s`, `42.0 s`, `3:05 min`, `1:02:03 h`.
pub(crate) struct Elapsed(pub(crate) Duration);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            // Truncated, so that 59.96 s does not become 60.0 s.
            0..60 => write!(f, "{seconds}.{} s", self.0.subsec_millis() / 100),
            60..3600 => write!(f, "{}:{:02} min", seconds / 60, seconds % 60),
            _ => write!(
                f,
                "{}:{:02}:{:02} h",
                seconds / 3600,
                seconds / 60 % 60,
                seconds % 60
            ),
        }
    }
}

/// `1 chunk`, `12,345 chunks`.
pub(crate) struct Counted(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = match self.1 {
            _ if self.0 == 1 => "",
            noun if ["ch", "sh", "s"].iter().any(|end| noun.ends_with(end)) => "es",
            _ => "s",
        };
        write!(f, "{} {}{plural}", Count(self.0), self.1)
    }
}

/// An argument of a command line, quoted if a shell would interpret it.
pub(crate) struct Word<'a>(pub(crate) &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |letter: char| letter.is_alphanumeric() || "-_./+,:@%=".contains(letter);
        if !self.0.is_empty() && self.0.chars().all(plain) {
            f.write_str(self.0)
        } else {
            write!(f, "'{}'", self.0.replace('\'', r"'\''"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        for (count, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(Count(count).to_string(), text);
        }
        assert_eq!(Counted(1, "chunk").to_string(), "1 chunk");
        assert_eq!(Counted(2000, "chunk").to_string(), "2,000 chunks");
        assert_eq!(Counted(2, "patch").to_string(), "2 patches");
        assert_eq!(Counted(2, "process").to_string(), "2 processes");
    }

    #[test]
    fn sizes_take_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn times_read_like_a_clock() {
        let cases = [
            (700, "0.7 s"),
            (59_960, "59.9 s"),
            (60_000, "1:00 min"),
            (185_000, "3:05 min"),
            (3_723_000, "1:02:03 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(Elapsed(Duration::from_millis(ms)).to_string(), text);
        }
    }

    #[test]
    fn words_are_quoted_when_a_shell_would_split_them() {
        for (word, typed) in [
            ("a/b-1.pftrace", "a/b-1.pftrace"),
            ("größe", "größe"),
            ("two words", "'two words'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(Word(word).to_string(), typed);
        }
    }
}
