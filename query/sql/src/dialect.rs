//! The trace processor's SQL, as far as it differs from DataFusion's: rewritten token by token before it is parsed.
//!
//! [`Database`](crate::Database) calls it for each text. Rewritten are
//! - `INCLUDE PERFETTO MODULE a.b;`, which is left out, as all views exist from the start;
//! - `CREATE [OR REPLACE] PERFETTO TABLE|VIEW`, which loses its second word;
//! - `x GLOB 'pattern'` and `x NOT GLOB 'pattern'`, which become comparisons with a regular expression;
//! - `CAST(x AS INT)`, which has 64 bits in the trace processor and 32 in DataFusion.

use std::collections::VecDeque;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

/// How deep expressions may be nested.
const RECURSION: usize = 100;

/// Parses a text of statements with `;` between them.
pub(crate) fn parse(sql: &str) -> Result<VecDeque<Statement>> {
    let dialect = GenericDialect {};
    let tokens = Tokenizer::new(&dialect, sql)
        .tokenize_with_location()
        .map_err(|error| DataFusionError::Plan(format!("the SQL cannot be read: {error}")))?;
    let tokens = tokens
        .into_iter()
        .filter(|token| !matches!(token.token, Token::Whitespace(_)))
        .collect();
    let tokens = globs(casts(own_words(tokens)))?;
    DFParserBuilder::new(tokens)
        .with_dialect(&dialect)
        .with_recursion_limit(RECURSION)
        .build()?
        .parse_statements()
}

/// Returns the texts in quotes of an SQL text.
pub(crate) fn texts(sql: &str) -> Result<Vec<String>> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql)
        .tokenize()
        .map_err(|error| DataFusionError::Plan(format!("the SQL cannot be read: {error}")))?;
    let texts = tokens.into_iter().filter_map(|token| match token {
        Token::SingleQuotedString(text) => Some(text),
        _ => None,
    });
    Ok(texts.collect())
}

fn is_word(token: &TokenWithSpan, word: &str) -> bool {
    matches!(&token.token, Token::Word(it) if it.quote_style.is_none() && it.value.eq_ignore_ascii_case(word))
}

/// Takes out what only the trace processor has in its statements.
fn own_words(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut kept = Vec::with_capacity(tokens.len());
    for statement in tokens.split_inclusive(|token| token.token == Token::SemiColon) {
        let starts_with = |words: &[&str]| {
            statement.len() >= words.len()
                && words
                    .iter()
                    .zip(statement)
                    .all(|(word, token)| is_word(token, word))
        };
        if starts_with(&["include", "perfetto", "module"]) {
            continue;
        }
        let at = match () {
            () if starts_with(&["create", "perfetto"]) => Some(1),
            () if starts_with(&["create", "or", "replace", "perfetto"]) => Some(3),
            () => None,
        };
        let keeps = |(place, _): &(usize, &TokenWithSpan)| Some(*place) != at;
        kept.extend(
            statement
                .iter()
                .enumerate()
                .filter(keeps)
                .map(|(_, token)| token.clone()),
        );
    }
    kept
}

/// Widens `CAST(.. AS INT)`.
fn casts(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    // For each open parenthesis, whether it is that of a cast.
    let mut open = Vec::new();
    for place in 0..tokens.len() {
        match &tokens[place].token {
            Token::LParen => {
                let of_cast = place > 0
                    && ["cast", "try_cast"]
                        .iter()
                        .any(|word| is_word(&tokens[place - 1], word));
                open.push(of_cast);
            }
            Token::RParen => {
                let is_int = open.pop() == Some(true)
                    && place > 2
                    && is_word(&tokens[place - 2], "as")
                    && ["int", "integer", "long"]
                        .iter()
                        .any(|word| is_word(&tokens[place - 1], word));
                if is_int && let Token::Word(word) = &mut tokens[place - 1].token {
                    word.value = "BIGINT".to_owned();
                    word.keyword = Keyword::BIGINT;
                }
            }
            _ => {}
        }
    }
    tokens
}

/// Makes comparisons with a regular expression of `GLOB`.
fn globs(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    let mut kept: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut tokens = tokens.into_iter().peekable();
    while let Some(mut token) = tokens.next() {
        // `glob(pattern, text)` is a call, and `glob` may be a column's name.
        let is_operator = is_word(&token, "glob")
            && tokens
                .peek()
                .is_some_and(|next| matches!(next.token, Token::SingleQuotedString(_)));
        if !is_operator {
            kept.push(token);
            continue;
        }
        token.token = Token::Tilde;
        if kept.last().is_some_and(|last| is_word(last, "not")) {
            kept.pop();
            token.token = Token::ExclamationMarkTilde;
        }
        kept.push(token);
        if let Some(mut pattern) = tokens.next() {
            if let Token::SingleQuotedString(text) = &mut pattern.token {
                *text = regular_expression(text)?;
            }
            kept.push(pattern);
        }
    }
    Ok(kept)
}

/// Translates a pattern of `GLOB` as SQLite reads it: `*`, `?` and sets in brackets; case matters.
fn regular_expression(glob: &str) -> Result<String> {
    let mut regex = "(?s)^".to_owned();
    let mut rest = glob.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' => {
                let mut set = rest.as_str();
                let inverted = set.strip_prefix('^');
                set = inverted.unwrap_or(set);
                // A bracket that comes first is one of the set.
                let from = set.chars().next().map_or(0, char::len_utf8);
                let Some(end) = set[from.min(set.len())..].find(']').map(|end| end + from) else {
                    return Err(DataFusionError::Plan(format!(
                        "the pattern `{glob}` of GLOB has `[` without `]`"
                    )));
                };
                regex.push_str(if inverted.is_some() { "[^" } else { "[" });
                for letter in set[..end].chars() {
                    if matches!(letter, '[' | ']' | '\\' | '^' | '&' | '~') {
                        regex.push('\\');
                    }
                    regex.push(letter);
                }
                regex.push(']');
                rest = set[end + 1..].chars();
            }
            letter => {
                if !(letter.is_alphanumeric() || letter == '_' || letter == ' ') {
                    regex.push('\\');
                }
                regex.push(letter);
            }
        }
    }
    regex.push('$');
    // The whole of it: nothing to anchor.
    Ok(match regex.as_str() {
        "(?s)^.*$" => ".*".to_owned(),
        _ => regex,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn rewritten(sql: &str) -> Vec<String> {
        parse(sql).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn modules_are_left_out_and_their_tables_are_plain_ones() {
        let sql = "INCLUDE PERFETTO MODULE slices.with_context;\ncreate perfetto table a as select 1; CREATE OR REPLACE PERFETTO VIEW b AS SELECT 2";
        assert_eq!(
            rewritten(sql),
            [
                "CREATE TABLE a AS SELECT 1",
                "CREATE OR REPLACE VIEW b AS SELECT 2"
            ]
        );
    }

    #[test]
    fn integers_have_64_bits_in_casts_and_only_there() {
        assert_eq!(
            rewritten("select cast(a + (b) as int), (select c as int) as long from d"),
            ["SELECT CAST(a + (b) AS BIGINT), (SELECT c AS int) AS long FROM d"]
        );
    }

    #[test]
    fn globs_become_regular_expressions() {
        let regex = |glob: &str| regular_expression(glob).unwrap();
        for (glob, matches, others) in [
            ("ab*", &["ab", "abc", "ab\nc"][..], &["xab", "AB"][..]),
            ("a?c", &["abc", "aäc"], &["ac", "abbc"]),
            ("*[0-9]", &["a1"], &["a", "1a"]),
            ("[^a-c]x", &["dx"], &["ax", "x"]),
            ("[]]", &["]"], &["[", ""]),
            ("a.b(c)+", &["a.b(c)+"], &["aXb(c)"]),
            ("*", &["", "a\nb"], &[]),
        ] {
            let compiled = regex::Regex::new(&regex(glob)).unwrap();
            for text in matches {
                assert!(compiled.is_match(text), "{glob} does not match {text}");
            }
            for text in others {
                assert!(!compiled.is_match(text), "{glob} matches {text}");
            }
        }
        assert!(regular_expression("[abc").is_err());
        assert_eq!(
            rewritten("select * from a where name not glob 'x*' and glob = 1 and name GLOB '*'"),
            ["SELECT * FROM a WHERE name !~ '(?s)^x.*$' AND glob = 1 AND name ~ '.*'"]
        );
    }
}
