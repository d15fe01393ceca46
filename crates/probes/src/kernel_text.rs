//! Takes lines, words and numbers out of the text of the kernel's files, without copying any of it.
//!
//! Called by every poller of procfs and sysfs. The text comes from the kernel, but also from people who name
//! processes and devices: nothing here panics, and a number that does not fit is no number.

/// The lines of `text` that are not blank.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

/// The words of `line`, which spaces and tabs separate.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| is_blank(byte)).filter(|word| !word.is_empty())
}

/// `text` without the blanks and line ends around it.
pub(crate) fn trimmed(text: &[u8]) -> &[u8] {
    text.trim_ascii()
}

/// Splits `Key:   value` at the first colon; the value comes without the blanks around it.
pub(crate) fn key_and_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    Some((&line[..colon], trimmed(&line[colon + 1..])))
}

/// The number at the start of `text`, after blanks. Text behind the digits (` kB`, a second number) is ignored.
pub(crate) fn leading_u64(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    whole_u64(&text[..digits])
}

/// As [`leading_u64`], with a minus sign allowed.
pub(crate) fn leading_i64(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    match text.strip_prefix(b"-") {
        Some(digits) if digits.first().is_some_and(u8::is_ascii_digit) => {
            0i64.checked_sub_unsigned(leading_u64(digits)?)
        }
        Some(_) => None,
        None => i64::try_from(leading_u64(text)?).ok(),
    }
}

/// The number that `word` consists of; `None` if it has other characters than digits.
pub(crate) fn whole_u64(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// As [`whole_u64`], for numbers of 32 bits.
pub(crate) fn whole_u32(word: &[u8]) -> Option<u32> {
    whole_u64(word).and_then(|number| u32::try_from(number).ok())
}

/// The id of the process or thread whose directory is called `name`; `None` if the name is no id.
pub(crate) fn task_id(name: &[u8]) -> Option<i32> {
    whole_u64(name)
        .and_then(|number| i32::try_from(number).ok())
        .filter(|&id| id > 0)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_and_repeated_blanks_yield_nothing() {
        let rows: Vec<Vec<&[u8]>> = lines(b"\n\na  b\t c\n \nd")
            .map(|line| words(line).collect())
            .collect();
        assert_eq!(rows, vec![vec![&b"a"[..], b"b", b"c"], vec![], vec![&b"d"[..]]]);
    }

    #[test]
    fn a_number_ends_where_its_digits_end() {
        assert_eq!(leading_u64(b"\t  42 kB"), Some(42));
        assert_eq!(leading_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(leading_i64(b" -1000\n"), Some(-1000));
        assert_eq!(leading_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(whole_u32(b"4294967295"), Some(u32::MAX));
    }

    #[test]
    fn what_is_no_number_or_does_not_fit_is_none() {
        for text in [&b""[..], b"kB", b"-", b"- 1", b"--1", b"18446744073709551616"] {
            assert_eq!(leading_u64(text), None, "{text:?}");
            assert_eq!(leading_i64(text), None, "{text:?}");
        }
        assert_eq!(leading_i64(b"9223372036854775808"), None);
        assert_eq!(whole_u64(b"12x"), None);
        assert_eq!(whole_u32(b"4294967296"), None);
    }

    #[test]
    fn only_positive_numbers_name_a_task() {
        assert_eq!(task_id(b"1"), Some(1));
        assert_eq!(task_id(b"2147483647"), Some(i32::MAX));
        for name in [&b"0"[..], b"2147483648", b"self", b"-1", b"", b"1a"] {
            assert_eq!(task_id(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_value_starts_after_the_first_colon() {
        assert_eq!(key_and_value(b"Name:\ta:b "), Some((&b"Name"[..], &b"a:b"[..])));
        assert_eq!(key_and_value(b"Name:"), Some((&b"Name"[..], &b""[..])));
        assert_eq!(key_and_value(b"no value"), None);
    }
}
