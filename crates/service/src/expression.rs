//! Regular expressions of configs: their limits, their cost, and their errors as one line.
//!
//! `wanted`, `triggers` and `trace_filter` compile expressions with this module and add to an error which expression it is. The crate `regex`
//! (feature `regex`) takes longer to compile than all the rest of the service. Without that feature, configs with expressions are refused.
//!
//! All clients wait while a config is checked. So each expression is compiled once, on bytes and with the classes of ASCII, which takes a
//! twentieth of the time that Unicode classes take. All expressions of one kind share a limit on length and memory. Upstream's classes are ASCII
//! too, with `std::regex` and with RE2.
//!
//! In the worst case, matching takes time proportional to the length of the text times the size of the automaton. That product is bounded too, see
//! [`Expression::work`].

#[cfg(not(feature = "regex"))]
mod absent;

#[cfg(all(feature = "trace-filter", not(feature = "regex")))]
pub(crate) use absent::CaptureLocations;
#[cfg(not(feature = "regex"))]
pub(crate) use absent::{Regex, build_within, check_syntax};
#[cfg(feature = "regex")]
pub(crate) use regex::bytes::{CaptureLocations, Regex};

use std::sync::Arc;

use crate::limits;
use crate::ordered::OrderedMap;
use crate::work_budget::WorkBudget;

/// An expression, and the cost of matching it.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) regex: Regex,
    /// About the bytes of the automaton: each of its states may be visited for each byte of the text.
    weight: u64,
}

impl Expression {
    /// Units of work for a text of this many bytes, see [`WorkBudget`].
    pub(crate) fn work(&self, bytes: usize) -> u64 {
        self.weight.saturating_mul(bytes as u64)
    }

    /// Whether it matches this name of a producer. It does not if that would take too long: by itself, or after the other work of `budget`.
    pub(crate) fn matches_name(&self, name: &str, budget: &WorkBudget) -> bool {
        let work = self.work(name.len());
        if work > limits::MAX_NAME_WORK || budget.is_used_up() {
            return false;
        }
        budget.spend(work);
        self.regex.is_match(name.as_bytes())
    }
}

/// Compiles an expression in at most `memory` bytes. It tries a small limit first, because most expressions need little.
pub(crate) fn build(expression: &str, memory: usize) -> Result<Expression, String> {
    const FEW: usize = 1024;
    const MORE: usize = 4;
    let mut enough = FEW;
    loop {
        enough = enough.min(memory);
        match build_within(expression, enough, memory) {
            Ok(regex) => {
                return Ok(Expression {
                    regex,
                    weight: enough as u64,
                });
            }
            Err(error) if enough == memory => return Err(error),
            Err(_) => enough *= MORE,
        }
    }
}

/// Returns the memory that each of these expressions may take. They share the memory of one `field` of a config.
///
/// # Errors
/// If the expressions are too long together.
pub(crate) fn memory_for_each<'c>(
    field: &str,
    expressions: impl Iterator<Item = &'c str>,
) -> Result<usize, String> {
    let (count, length) = expressions.fold((0, 0), |(count, length), expression| {
        (count + 1, length + expression.len())
    });
    if length > limits::MAX_REGEX_TEXT {
        return Err(format!(
            "the regular expressions in {field} have {length} bytes together, the limit is {}",
            limits::MAX_REGEX_TEXT
        ));
    }
    Ok((limits::MAX_REGEX_MEMORY / count.max(1)).max(limits::MIN_REGEX_MEMORY))
}

/// Compiles an expression that matches a text if `expression` matches all of it. It takes at most `memory` bytes.
pub(crate) fn whole(expression: &str, memory: usize) -> Result<Expression, String> {
    // With something around it, `a)|(?:b` would be an expression.
    check_syntax(expression)?;
    build(&format!(r"\A(?:{expression})\z"), memory)
}

/// Expressions by which a config picks producers. They match whole names.
#[derive(Debug)]
pub(crate) struct NameExpressions<'c> {
    memory: usize,
    compiled: OrderedMap<&'c str, Arc<Expression>>,
}

impl<'c> NameExpressions<'c> {
    /// For these, which are all that stand in one `field` of a config. No more than `most` may be different.
    pub(crate) fn new(
        field: &str,
        most: usize,
        expressions: impl Iterator<Item = &'c str>,
    ) -> Result<Self, String> {
        let mut different: Vec<&str> = expressions.collect();
        different.sort_unstable();
        different.dedup();
        if different.len() > most {
            return Err(format!(
                "too many different regular expressions in {field}: {}, the limit is {most}",
                different.len()
            ));
        }
        Ok(Self {
            memory: memory_for_each(field, different.into_iter())?,
            compiled: OrderedMap::new(),
        })
    }

    /// One of the expressions, which is compiled if it was not yet.
    pub(crate) fn get(&mut self, expression: &'c str) -> Result<Arc<Expression>, String> {
        if let Some(compiled) = self.compiled.get(expression) {
            return Ok(compiled.clone());
        }
        if expression.len() > limits::MAX_REGEX_LENGTH {
            return Err(format!("is longer than {} bytes", limits::MAX_REGEX_LENGTH));
        }
        let compiled = whole(expression, self.memory).or_else(|error| {
            // Classes of letters beyond ASCII are sets of strings for a matcher of bytes.
            if expression.is_ascii() {
                return Err(error);
            }
            whole(&format!("(?u:{expression})"), self.memory)
        })?;
        let compiled = Arc::new(compiled);
        self.compiled.insert(expression, compiled.clone());
        Ok(compiled)
    }
}

/// Compiles an expression on bytes, with classes of ASCII. Its automaton takes `size` bytes at most, and a search takes about `memory`.
#[cfg(feature = "regex")]
fn build_within(expression: &str, size: usize, memory: usize) -> Result<Regex, String> {
    regex::bytes::RegexBuilder::new(expression)
        .unicode(false)
        .size_limit(size)
        .dfa_size_limit(memory.max(limits::MIN_REGEX_CACHE))
        .build()
        .map_err(|error| reason(&error.to_string()))
}

/// Whether it is an expression by itself.
#[cfg(feature = "regex")]
pub(crate) fn check_syntax(expression: &str) -> Result<(), String> {
    let parsed = regex_syntax::ast::parse::Parser::new().parse(expression);
    parsed.map(drop).map_err(|error| reason(&error.to_string()))
}

/// Why an expression was refused. The crate's own text draws a picture of several lines. The last one has the reason: a log has one line for each
/// thing, and the expression stands beside it anyway.
#[cfg(feature = "regex")]
fn reason(text: &str) -> String {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'c>(expressions: &[&'c str]) -> Result<NameExpressions<'c>, String> {
        NameExpressions::new("the test", 3, expressions.iter().copied())
    }

    fn matches(expression: &str, name: &str) -> bool {
        let compiled = of(&[expression]).unwrap().get(expression);
        compiled
            .expect(expression)
            .matches_name(name, &WorkBudget::new(limits::MAX_MATCHING_WORK))
    }

    #[test]
    fn an_error_is_one_line() {
        let why = |expression| whole(expression, 1000).expect_err("no expression");
        assert_eq!(why("("), "unclosed group");
        assert_eq!(why("a\nb("), "unclosed group");
        assert_eq!(why("a)|(?:b"), "unopened group");
        let large = why("(a{100}){100}");
        assert!(large.contains("size limit") && !large.contains('\n'), "{large}");
    }

    #[test]
    fn the_weight_is_about_that_of_the_automaton() {
        let weight = |expression: &str| build(expression, 2 << 20).unwrap().weight;
        assert_eq!(weight("x"), 1024);
        assert!(weight(r"B\|\d+\|foo (.*)") <= 4096);
        let names: Vec<String> = (0..100).map(|n| format!("com.example.application{n}")).collect();
        assert!(weight(&names.join("|")) <= 256 * 1024);
        let (more, most) = (weight("a{500}"), weight("(a{100}){100}"));
        assert!(4096 < more && more < most && most <= 1 << 20, "{more} {most}");
    }

    #[test]
    fn a_name_that_takes_too_long_is_not_matched() {
        let budget = WorkBudget::new(limits::MAX_MATCHING_WORK);
        let dear = build("(?:[ab]*a[ab]{4000})?.*", 1 << 20).unwrap();
        let most = (limits::MAX_NAME_WORK / dear.weight) as usize;
        assert!(dear.matches_name(&"x".repeat(most), &budget));
        assert!(!dear.matches_name(&"x".repeat(most + 1), &budget));
        let cheap = build("(a|b)*", 1 << 20).unwrap();
        assert!(cheap.matches_name(&"ab".repeat(2048), &budget));
    }

    #[test]
    fn names_match_as_a_whole_and_classes_are_asciis() {
        assert!(matches("a|ab", "ab"));
        assert!(!matches("a|b", "ab"));
        assert!(!matches("a", "a\n"), "not even an end of line is left out");
        assert!(matches(r"\w+", "word_1") && !matches(r"\w", "\u{e9}") && !matches(r"\d", "\u{663}"));
        assert!(matches(".*", "caf\u{e9}") && matches("caf\u{e9}", "caf\u{e9}"));
        assert!(matches("caf[e\u{e9}]", "caf\u{e9}"), "one of them is two bytes");
    }

    #[test]
    fn the_same_expression_is_one() {
        let mut expressions = of(&["a", "b", "a", "c", "b"]).expect("three");
        for expression in ["a", "b", "c", "a"] {
            let compiled = expressions.get(expression).unwrap();
            assert!(compiled.matches_name(expression, &WorkBudget::new(limits::MAX_MATCHING_WORK)));
        }
        assert_eq!(expressions.compiled.len(), 3);
        let error = of(&["a", "b", "a", "c", "d"]).unwrap_err();
        assert!(
            error.contains("too many different") && error.contains("4"),
            "{error}"
        );
    }

    #[test]
    fn all_of_a_kind_share_length_and_memory() {
        let many =
            |count, length| memory_for_each("f", vec!["x".repeat(length); count].iter().map(String::as_str));
        assert_eq!(many(0, 0), Ok(limits::MAX_REGEX_MEMORY));
        assert_eq!(
            many(8, limits::MAX_REGEX_TEXT / 8),
            Ok(limits::MAX_REGEX_MEMORY / 8)
        );
        assert_eq!(many(1000, 1), Ok(limits::MIN_REGEX_MEMORY));
        let error = many(8, limits::MAX_REGEX_TEXT / 8 + 1).unwrap_err();
        assert!(error.contains("bytes together"), "{error}");
    }
}
