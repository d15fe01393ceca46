//! What is wrong with a regular expression of a config, in one line.
//!
//! Used by whatever compiles those (`wanted`, `trace_filter`); who asked for the expression says which it is.

/// Why an expression was refused. The crate's own text draws a picture of several lines, of which the last one tells: a log has one
/// line for each thing, and the expression stands beside it anyway.
pub(crate) fn why_refused(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(expression: &str) -> String {
        let refused = regex::RegexBuilder::new(expression).size_limit(1000).build();
        why_refused(&refused.expect_err("no expression"))
    }

    #[test]
    fn a_line_tells_what_is_wrong() {
        assert_eq!(why("("), "unclosed group");
        assert_eq!(why("a\nb("), "unclosed group");
        let large = why("(a{100}){100}");
        assert!(large.contains("size limit") && !large.contains('\n'), "{large}");
    }
}
