//! The values of literals: numbers in all notations, and strings with escapes.

/// Returns the value of an integer's digits, without a sign: decimal or `0x…` hexadecimal. Leading zeros have no meaning, as in
/// Perfetto's own parser; the specification makes such a number octal.
///
/// `Err` distinguishes invalid digits from a value that is too large for every type of the schema.
pub(super) fn integer(digits: &str) -> Result<u64, BadInteger> {
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(BadInteger::Malformed);
    }
    u64::from_str_radix(digits, radix).map_err(|_| BadInteger::TooLarge)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadInteger {
    Malformed,
    TooLarge,
}

/// Returns the value of a decimal number with or without fraction, exponent and a final `f`.
pub(super) fn float(text: &str) -> Option<f64> {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let text = text.strip_suffix(['f', 'F']).unwrap_or(text);
    // `parse` also takes names such as `inf`, but a number starts with a digit or a point here.
    if hexadecimal { None } else { text.parse().ok() }
}

/// The reason why an escape sequence in a string is refused. `at..at + len` is its place, in bytes from the string's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadEscape {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) expected: &'static str,
}

const KNOWN_ESCAPES: &str = r#"one of \a \b \f \n \r \t \v \? \\ \' \" \xHH \NNN \uHHHH \UHHHHHHHH"#;

/// Appends the contents of the string `literal`, without its quotes.
pub(super) fn unescape(literal: &str, value: &mut Vec<u8>) -> Result<(), BadEscape> {
    let body = &literal[1..literal.len() - 1];
    let mut at = 0;
    while let Some(backslash) = body[at..].find('\\') {
        value.extend_from_slice(&body.as_bytes()[at..at + backslash]);
        at += backslash;
        let len = escape(&body[at..], value).map_err(|expected| BadEscape {
            at: at + 1,
            len: 1 + body[at + 1..].chars().next().map_or(0, char::len_utf8),
            expected,
        })?;
        at += len;
    }
    value.extend_from_slice(&body.as_bytes()[at..]);
    Ok(())
}

/// Appends the value of the escape sequence that `body` starts with and returns its length.
fn escape(body: &str, value: &mut Vec<u8>) -> Result<usize, &'static str> {
    let rest = &body[1..];
    let single = |byte: u8, value: &mut Vec<u8>| {
        value.push(byte);
        Ok(2)
    };
    match rest.as_bytes().first() {
        Some(b'a') => single(0x07, value),
        Some(b'b') => single(0x08, value),
        Some(b'f') => single(0x0c, value),
        Some(b'n') => single(b'\n', value),
        Some(b'r') => single(b'\r', value),
        Some(b't') => single(b'\t', value),
        Some(b'v') => single(0x0b, value),
        Some(literal @ (b'?' | b'\\' | b'\'' | b'"')) => single(*literal, value),
        Some(b'0'..=b'7') => {
            let digits = leading_digits(rest, 8, 3);
            let byte = u32::from_str_radix(digits, 8)
                .ok()
                .and_then(|number| u8::try_from(number).ok());
            value.push(byte.ok_or(r"at most \377")?);
            Ok(1 + digits.len())
        }
        Some(b'x' | b'X') => {
            let digits = leading_digits(&rest[1..], 16, 2);
            value
                .push(u8::from_str_radix(digits, 16).map_err(|_| r"one or two hexadecimal digits after \x")?);
            Ok(2 + digits.len())
        }
        Some(b'u') => {
            const EXPECTED: &str = r"four hexadecimal digits of a Unicode character after \u";
            let mut len = 6;
            let mut code = code_point(&rest[1..], 4).ok_or(EXPECTED)?;
            // A character outside the Basic Multilingual Plane may be written as two surrogates.
            if let (0xd800..=0xdbff, Some(low)) = (code, body[len..].strip_prefix("\\u")) {
                let low = code_point(low, 4)
                    .filter(|low| (0xdc00..=0xdfff).contains(low))
                    .ok_or(EXPECTED)?;
                code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                len += 6;
            }
            push_character(code, value).ok_or(EXPECTED)?;
            Ok(len)
        }
        Some(b'U') => {
            const EXPECTED: &str = r"eight hexadecimal digits of a Unicode character after \U";
            code_point(&rest[1..], 8)
                .and_then(|code| push_character(code, value))
                .ok_or(EXPECTED)?;
            Ok(10)
        }
        _ => Err(KNOWN_ESCAPES),
    }
}

/// Returns the digits at the start of `text`, at most `most` of them.
fn leading_digits(text: &str, radix: u32, most: usize) -> &str {
    let len = text
        .chars()
        .take(most)
        .take_while(|digit| digit.is_digit(radix))
        .count();
    &text[..len]
}

/// Returns the value of exactly `len` hexadecimal digits.
fn code_point(text: &str, len: usize) -> Option<u32> {
    let digits = leading_digits(text, 16, len);
    (digits.len() == len)
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

fn push_character(code: u32, value: &mut Vec<u8>) -> Option<()> {
    let character = char::from_u32(code)?;
    value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescaped(literal: &str) -> Result<Vec<u8>, BadEscape> {
        let mut value = Vec::new();
        unescape(literal, &mut value).map(|()| value)
    }

    #[test]
    fn integers_in_each_radix() {
        let good = [
            ("0", 0),
            ("10", 10),
            ("010", 10),
            ("0x1F", 31),
            ("0Xff", 255),
            ("00", 0),
            ("0777", 777),
            ("08", 8),
        ];
        for (digits, value) in good {
            assert_eq!(integer(digits), Ok(value), "{digits}");
        }
        assert_eq!(integer("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(integer("18446744073709551616"), Err(BadInteger::TooLarge));
        for digits in ["1.5", "1e3", "10s", "0x", "0xg", "5f", "1_000"] {
            assert_eq!(integer(digits), Err(BadInteger::Malformed), "{digits}");
        }
    }

    #[test]
    fn floating_point_notations() {
        let good = [
            ("1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("2.5E-1f", 0.25),
            ("7F", 7.0),
        ];
        for (text, value) in good {
            assert_eq!(float(text), Some(value), "{text}");
        }
        assert_eq!(float("1e999"), Some(f64::INFINITY));
        for text in ["0x1", "0x1f", "1.2.3", "1e", "10s", "1ff"] {
            assert_eq!(float(text), None, "{text}");
        }
    }

    #[test]
    fn each_escape() {
        let good: [(&str, &[u8]); 12] = [
            (r#""plain é""#, "plain é".as_bytes()),
            (r#""\a\b\f\n\r\t\v\?\\\'\"""#, b"\x07\x08\x0c\n\r\t\x0b?\\'\""),
            (r#""\1\12\123\1234""#, b"\x01\x0a\x53\x534"),
            (r#""\0\377""#, b"\0\xff"),
            (r#""\x4\x41\X414""#, b"\x04\x41\x414"),
            (r#""\xfg""#, b"\x0fg"),
            (r#""\u00e9""#, "é".as_bytes()),
            (r#""\U0001F600""#, "😀".as_bytes()),
            (r#""\ud83d\ude00!""#, "😀!".as_bytes()),
            (r#"'it''s'"#, b"it''s"),
            (r#""""#, b""),
            ("\"two\nlines\"", b"two\nlines"),
        ];
        for (literal, value) in good {
            assert_eq!(unescaped(literal).as_deref(), Ok(value), "{literal}");
        }
    }

    #[test]
    fn escapes_that_mean_nothing_are_pointed_at() {
        let bad = [
            r#""ab\q""#,
            r#""ab\8""#,
            r#""ab\x""#,
            r#""ab\400""#,
            r#""ab\u12""#,
            r#""ab\ud83d""#,
            r#""ab\ud83d\n""#,
            r#""ab\U00110000""#,
            r#""ab\é""#,
        ];
        for literal in bad {
            let error = unescaped(literal).unwrap_err();
            assert_eq!(error.at, 3, "{literal}");
            assert!(literal.get(error.at..error.at + error.len).is_some(), "{literal}");
        }
    }
}
