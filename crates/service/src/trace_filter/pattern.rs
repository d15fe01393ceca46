//! Compiles the patterns of string filters.
//!
//! Patterns are written for ECMAScript's grammar. Upstream compiles them with std::regex, RE2 or PCRE2, depending on its build. This is the `regex`
//! crate on bytes, which like RE2 takes linear time and so has no look-around and no back-references. Syntax that the crate reads otherwise than
//! ECMAScript is translated. As with upstream's std::regex, `.` is any byte but a line feed, and classes like `\w` are of ASCII.

use std::fmt;

use crate::expression::{self, Expression};
use crate::limits;

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It is too long.
    TooLong,
    /// A bracket expression contains `[.` or `[=`.
    CollatingElement,
    /// It is not a regular expression, has a construct that takes more than linear time, or too much memory.
    Invalid(String),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::TooLong => {
                write!(f, "the pattern is longer than {} bytes", limits::MAX_REGEX_LENGTH)
            }
            PatternError::CollatingElement => f.write_str(
                "the pattern has a collating element ([. or [=), which is not supported; list the characters",
            ),
            PatternError::Invalid(value) => write!(f, "{value}"),
        }
    }
}

impl std::error::Error for PatternError {}

/// The part of a text that a pattern has to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of a string.
    Whole,
    /// Any part of it.
    Part,
}

/// Compiles the automaton for a pattern, in at most `memory` bytes.
pub(super) fn compile(pattern: &str, extent: Extent, memory: usize) -> Result<Expression, PatternError> {
    if pattern.len() > limits::MAX_REGEX_LENGTH {
        return Err(PatternError::TooLong);
    }
    let pattern = translate(pattern)?;
    let build = match extent {
        Extent::Part => expression::build,
        Extent::Whole => expression::whole,
    };
    build(&pattern, memory).map_err(PatternError::Invalid)
}

/// The same pattern for the `regex` crate.
fn translate(pattern: &str) -> Result<String, PatternError> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut in_class = false;
    let mut last = None;
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        let doubled = last.replace(char) == Some(char);
        if char == '\\' {
            last = None;
        }
        match char {
            '\\' => match chars.next() {
                // Borders of words for the crate.
                Some(char @ ('<' | '>')) => out.push(char),
                Some('0') if !chars.peek().is_some_and(char::is_ascii_digit) => out.push_str(r"\x00"),
                Some('b') if in_class => out.push_str(r"\x08"),
                Some('c') => match chars.next() {
                    Some(letter) if letter.is_ascii_alphabetic() => {
                        out.push_str(&format!(r"\x{:02x}", letter as u8 % 32));
                    }
                    // Not an escape of ECMAScript, which the crate reports.
                    other => out.extend(r"\c".chars().chain(other)),
                },
                other => out.extend(std::iter::once('\\').chain(other)),
            },
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                out.extend(chars.next_if_eq(&'^'));
                out.extend(chars.next_if_eq(&']'));
            }
            '[' => match chars.peek() {
                Some(':') => {
                    out.push('[');
                    // Up to the bracket that ends the name of the class.
                    for char in chars.by_ref() {
                        out.push(char);
                        if char == ']' {
                            break;
                        }
                    }
                }
                Some('.' | '=') => return Err(PatternError::CollatingElement),
                _ => out.push_str(r"\["),
            },
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // Twice they are operations on sets for the crate.
            '&' | '~' | '-' if in_class && doubled => out.extend(['\\', char]),
            char => out.push(char),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(pattern: &str, extent: Extent) -> Result<Expression, PatternError> {
        super::compile(pattern, extent, limits::MAX_REGEX_MEMORY)
    }

    fn whole(pattern: &str, text: &[u8]) -> bool {
        compile(pattern, Extent::Whole)
            .unwrap_or_else(|error| panic!("{pattern}: {error}"))
            .regex
            .is_match(text)
    }

    #[test]
    fn a_pattern_for_whole_strings_matches_no_part_of_one() {
        assert!(whole("a|ab", b"ab"));
        assert!(!whole("a", b"ab"));
        assert!(!whole("a|b", b"ab"));
        assert!(!whole("a$", b"a\n"));
        assert!(compile("a", Extent::Part).unwrap().regex.is_match(b"bab"));
    }

    #[test]
    fn text_is_bytes_of_any_encoding() {
        assert!(whole("a(.*)", b"a\xff\xfe\x80"));
        assert!(whole(r"[^a]+", b"\xff\xc3\x28"));
        assert!(!whole("a.*", b"a\nb"), "a line feed is not any character");
        assert!(!whole(r"\d", "\u{0663}".as_bytes()), "digits are those of ASCII");
    }

    #[test]
    fn syntax_that_ecmascript_reads_otherwise_is_translated() {
        for (pattern, text) in [
            (r"\<a\>", &b"<a>"[..]),
            (r"a\/b", b"a/b"),
            (r"\0", b"\0"),
            (r"\cJ", b"\n"),
            (r"[\b]", b"\x08"),
            (r"[[]", b"["),
            (r"[a[b]]", b"[]"),
            (r"[&&a]", b"&"),
            (r"[a~~b]", b"~"),
            (r"[\]a]", b"]"),
            (r"[]a]", b"]"),
            (r"[^]a]", b"b"),
            (r"[[:digit:]x]+", b"1x2"),
            (r"[\d.\-]+", b"1.-2"),
            (r"[+--]+", b"+,-"),
            (r"[\--0]+", b"-.0"),
            (r"\x41\u0042", b"AB"),
            (r"(?:a|b)\\c", b"a\\c"),
        ] {
            assert!(whole(pattern, text), "{pattern}");
        }
        assert!(!whole(r"[+--]+", b"."));
        assert!(!whole(r"[a&&a]", b"b"));
    }

    #[test]
    fn unsupported_patterns_are_refused_with_a_reason() {
        for (pattern, reason) in [
            ("(", "unclosed group"),
            ("a)|(b", "unopened group"),
            ("*", "repetition operator missing"),
            ("[a", "unclosed character class"),
            ("(?=a)b", "look-around"),
            ("(?!a)b", "look-around"),
            (r"(a)\1", "backreferences"),
            (r"\c1", "unrecognized escape"),
            ("[[.a.]]", "collating"),
            ("\\", "incomplete escape"),
            ("((a{1000}){1000}){1000}", "size limit"),
        ] {
            let error = compile(pattern, Extent::Whole).unwrap_err().to_string();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
        let longest = "a".repeat(limits::MAX_REGEX_LENGTH);
        assert!(compile(&longest, Extent::Whole).is_ok());
        assert_eq!(
            compile(&(longest + "a"), Extent::Whole).unwrap_err(),
            PatternError::TooLong
        );
    }

    #[test]
    fn translating_twice_is_translating_once_for_plain_patterns() {
        for pattern in [r"B\|\d+\|foo (.*)", r"x:([^\s-]*)", "^a{1,3}$", "(?i)a"] {
            assert_eq!(translate(pattern).unwrap(), pattern);
        }
    }
}
