//! Regular expressions of configs, and what is wrong with them in one line.
//!
//! Used by whatever compiles those (`wanted`, `trace_filter`); who asked for the expression says which it is. They take the crate
//! `regex` (feature `regex`), which compiles for longer than all the rest of the service: without it a config with an
//! expression is refused.

#[cfg(not(feature = "regex"))]
mod absent;

#[cfg(not(feature = "regex"))]
pub(crate) use absent::{Regex, bytes, bytes_regex, text_regex};
#[cfg(feature = "regex")]
pub(crate) use regex::{Regex, bytes};

/// An expression on text, of which the automaton takes so many bytes at most.
#[cfg(feature = "regex")]
pub(crate) fn text_regex(expression: &str, memory: usize) -> Result<Regex, String> {
    regex::RegexBuilder::new(expression)
        .size_limit(memory)
        .dfa_size_limit(memory)
        .build()
        .map_err(|error| why_refused(&error))
}

/// An expression on bytes, classes of which are those of ASCII.
#[cfg(feature = "regex")]
pub(crate) fn bytes_regex(expression: &str, memory: usize) -> Result<bytes::Regex, String> {
    bytes::RegexBuilder::new(expression)
        .unicode(false)
        .size_limit(memory)
        .dfa_size_limit(memory)
        .build()
        .map_err(|error| why_refused(&error))
}

/// Why an expression was refused. The crate's own text draws a picture of several lines, of which the last one tells: a log has one
/// line for each thing, and the expression stands beside it anyway.
#[cfg(feature = "regex")]
fn why_refused(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(expression: &str) -> String {
        text_regex(expression, 1000).expect_err("no expression")
    }

    #[test]
    fn a_line_tells_what_is_wrong() {
        assert_eq!(why("("), "unclosed group");
        assert_eq!(why("a\nb("), "unclosed group");
        let large = why("(a{100}){100}");
        assert!(large.contains("size limit") && !large.contains('\n'), "{large}");
    }
}
