//! What DataFusion's parser does not know, rewritten token by token:
//! - `CREATE [OR REPLACE] PERFETTO TABLE|VIEW` loses its word `PERFETTO` and its columns;
//! - `x GLOB 'pattern'` and `x NOT GLOB 'pattern'` become comparisons with a regular expression;
//! - `0x1F` becomes a number;
//! - `[name]` becomes a name in backticks, which is never a text;
//! - `x IS y` and `x IS NOT y` become operators;
//! - `CAST(x AS INT)` has 64 bits in the trace processor and 32 in DataFusion, and any name with these letters is such a type.

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use super::{is_word, starts_with};

/// The function that makes a regular expression of a pattern that is no text in quotes.
pub(crate) const PATTERN: &str = "regex_of_glob";

/// The operators of `IS` and `IS NOT` before a value.
pub(super) const IS: &str = "IS";
pub(super) const IS_NOT: &str = "IS NOT";

/// Makes numbers of `0x1F`, which DataFusion takes for bytes, as `X'1F'`. The parser tells the two apart by nothing but their lengths. As in SQLite, a number
/// with 64 bits may be negative.
pub(super) fn hexadecimal_numbers(tokens: &mut [TokenWithSpan]) {
    for TokenWithSpan { token, span } in tokens {
        let Token::HexStringLiteral(digits) = token else {
            continue;
        };
        let length = span.end.column.saturating_sub(span.start.column);
        if span.start.line == span.end.line
            && length == digits.len() as u64 + 2
            && let Ok(number) = u64::from_str_radix(digits, 16)
        {
            *token = Token::Number((number as i64).to_string(), false);
        }
    }
}

/// Makes names of `[name]`. Behind a name or a parenthesis without space between them, brackets are DataFusion's: a place in a list. Space and comments are still
/// among the tokens.
pub(super) fn name_in_brackets(tokens: &mut Vec<TokenWithSpan>) {
    let mut place = 0;
    while place < tokens.len() {
        let begin = place;
        place += 1;
        let is_place_in_list = begin > 0
            && matches!(
                tokens[begin - 1].token,
                Token::Word(_) | Token::RParen | Token::RBracket
            );
        if tokens[begin].token != Token::LBracket || is_place_in_list {
            continue;
        }
        let is_end = |token: &TokenWithSpan| token.token == Token::RBracket;
        let Some(length) = tokens[begin..].iter().position(is_end) else {
            continue;
        };
        let inside = &tokens[begin + 1..begin + length];
        if !matches!(inside.first().map(|first| &first.token), Some(Token::Word(_))) {
            continue;
        }
        let name = Token::Word(Word {
            value: inside.iter().map(|token| token.token.to_string()).collect(),
            quote_style: Some('`'),
            keyword: Keyword::NoKeyword,
        });
        let span = tokens[begin].span;
        tokens.splice(begin..=begin + length, [TokenWithSpan { token: name, span }]);
    }
}

/// Whether a statement makes or drops an index of the trace processor's, which changes no answer.
pub(super) fn is_index(statement: &[TokenWithSpan]) -> bool {
    [
        &["create", "perfetto", "index"][..],
        &["create", "or", "replace", "perfetto", "index"],
        &["drop", "perfetto", "index"],
    ]
    .iter()
    .any(|words| starts_with(statement, words))
}

/// Rewrites the tokens of one statement.
pub(super) fn rewritten(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    globs(identities(casts(plain_create(tokens))))
}

/// Takes `PERFETTO` out of the beginning of a statement, and the columns with their types, which are those of the query.
fn plain_create(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    for words in [
        &["create", "perfetto"][..],
        &["create", "or", "replace", "perfetto"],
    ] {
        if starts_with(&tokens, words) {
            tokens.remove(words.len() - 1);
            // Behind `TABLE` and the name.
            let columns = words.len() + 1;
            if tokens
                .get(columns)
                .is_some_and(|token| token.token == Token::LParen)
            {
                tokens.drain(columns..after_parenthesis(&tokens, columns));
            }
        }
    }
    tokens
}

/// Makes operators of `IS` and `IS NOT` before a value, of which [`expressions`](super::expressions) makes comparisons. DataFusion's own `IS DISTINCT FROM` would
/// take what is behind an `AND` for a part of the value.
fn identities(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    // `IS` before these words is DataFusion's own.
    let is_own = |token: &TokenWithSpan| {
        ["null", "true", "false", "unknown", "distinct", "normalized"]
            .iter()
            .any(|word| is_word(token, word))
    };
    let mut kept: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut rest = tokens.into_iter().peekable();
    while let Some(token) = rest.next() {
        if !is_word(&token, "is") {
            kept.push(token);
            continue;
        }
        let span = token.span;
        let negation = rest.next_if(|next| is_word(next, "not"));
        if rest.peek().is_some_and(|next| !is_own(next)) {
            let operator = if negation.is_some() { IS_NOT } else { IS };
            kept.push(TokenWithSpan {
                token: Token::CustomBinaryOperator(operator.to_owned()),
                span,
            });
        } else {
            kept.push(token);
            kept.extend(negation);
        }
    }
    kept
}

/// Makes `BIGINT` of the types of integers in `CAST`.
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
                let of_type = open.pop() == Some(true) && place > 2 && is_word(&tokens[place - 2], "as");
                if of_type
                    && let Token::Word(word) = &mut tokens[place - 1].token
                    && word.quote_style.is_none()
                    && is_whole(&word.value.to_lowercase())
                {
                    word.value = "BIGINT".to_owned();
                    word.keyword = Keyword::BIGINT;
                }
            }
            _ => {}
        }
    }
    tokens
}

/// Whether a type is one of integers for SQLite, which asks whether its name has these letters. `LONG` is the trace processor's.
fn is_whole(type_name: &str) -> bool {
    type_name == "long" || type_name.contains("int") && type_name != "interval"
}

/// Makes comparisons with a regular expression of `GLOB`.
fn globs(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    let mut kept: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut place = 0;
    while let Some(token) = tokens.get(place) {
        place += 1;
        // `glob(pattern, text)` is a call, and `glob` may be a column's name.
        let end = operand_end(&tokens, place);
        let before = match kept.as_slice() {
            [.., before, not] if is_word(not, "not") => Some(before),
            [.., before] => Some(before),
            [] => None,
        };
        let is_operator =
            is_word(token, "glob") && end > place && before.is_some_and(|before| !expects_operand(before));
        if !is_operator {
            kept.push(token.clone());
            continue;
        }
        let span = token.span;
        let with_span = |token| TokenWithSpan { token, span };
        match kept.pop_if(|last| is_word(last, "not")) {
            Some(_) => kept.push(with_span(Token::ExclamationMarkTilde)),
            None => kept.push(with_span(Token::Tilde)),
        }
        match &tokens[place..end] {
            [pattern] if let Token::SingleQuotedString(text) = &pattern.token => {
                kept.push(with_span(Token::SingleQuotedString(regular_expression(text)?)));
            }
            pattern => {
                kept.push(with_span(word(PATTERN, Keyword::NoKeyword)));
                kept.push(with_span(Token::LParen));
                kept.extend(pattern.iter().cloned());
                kept.push(with_span(Token::RParen));
            }
        }
        place = end;
    }
    Ok(kept)
}

/// Whether an operand must follow, so that a word with a parenthesis is a call.
fn expects_operand(token: &TokenWithSpan) -> bool {
    let after_word = [
        "select", "where", "and", "or", "not", "on", "by", "when", "then", "else", "having", "case",
    ];
    match &token.token {
        Token::Word(_) => after_word.iter().any(|word| is_word(token, word)),
        Token::RParen | Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) => false,
        _ => true,
    }
}

/// Returns the end of the operand that begins at `from`: names, values, calls and what is in parentheses, with `||` between them. It is `from` if none begins
/// there.
fn operand_end(tokens: &[TokenWithSpan], from: usize) -> usize {
    let at = |place: usize| tokens.get(place).map(|token| &token.token);
    let mut end = from;
    loop {
        let begin = end;
        match at(end) {
            Some(Token::Word(word)) if word.quote_style.is_some() || word.keyword == Keyword::NoKeyword => {
                end += 1;
                while at(end) == Some(&Token::Period) {
                    end += 2;
                }
                if at(end) == Some(&Token::LParen) {
                    end = after_parenthesis(tokens, end);
                }
            }
            Some(Token::SingleQuotedString(_) | Token::Placeholder(_) | Token::Number(..)) => end += 1,
            Some(Token::LParen) => end = after_parenthesis(tokens, end),
            _ => {}
        }
        if end == begin || at(end) != Some(&Token::StringConcat) {
            return end.min(tokens.len());
        }
        end += 1;
    }
}

/// Returns the place behind the parenthesis that is closed last of those that open at `from`.
pub(super) fn after_parenthesis(tokens: &[TokenWithSpan], from: usize) -> usize {
    let mut open = 0;
    for (place, token) in tokens.iter().enumerate().skip(from) {
        match token.token {
            Token::LParen => open += 1,
            Token::RParen => open -= 1,
            _ => {}
        }
        if open == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

fn word(text: &str, keyword: Keyword) -> Token {
    Token::Word(Word {
        value: text.to_owned(),
        quote_style: None,
        keyword,
    })
}

/// Translates a pattern of `GLOB` as SQLite reads it: `*`, `?` and sets in brackets; case matters.
pub(crate) fn regular_expression(glob: &str) -> Result<String> {
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
        super::super::parse(sql, &mut Default::default())
            .unwrap()
            .iter()
            .map(|parsed| match parsed {
                super::super::Parsed::Plain(statement) => statement.to_string(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn modules_are_left_out_and_their_tables_are_plain_ones() {
        let sql = "INCLUDE PERFETTO MODULE slices.with_context;\ncreate perfetto table a(x LONG, y JOINID(thread.id)) as select 1; create perfetto index b on a(x); CREATE OR REPLACE PERFETTO VIEW b AS SELECT 2";
        assert_eq!(
            rewritten(sql),
            [
                "CREATE TABLE a AS SELECT 1",
                "CREATE OR REPLACE VIEW b AS SELECT 2"
            ]
        );
    }

    #[test]
    fn is_compares_with_any_value() {
        assert_eq!(
            rewritten(
                "select 1 from d where a is b and a is not 'c' and a is null and a is not null and a is true and a is not distinct from b"
            ),
            [
                "SELECT 1 FROM d WHERE a <=> b AND NOT (a <=> 'c') AND a IS NULL AND a IS NOT NULL AND truth(a) IS TRUE AND a IS NOT DISTINCT FROM b"
            ]
        );
    }

    #[test]
    fn integers_have_64_bits_in_casts_and_only_there() {
        assert_eq!(
            rewritten("select cast(a + (b) as int), (select c as int) as long from d"),
            [
                "SELECT int_of_sqlite(a + (b)) AS \"CAST(a + (b) AS INTEGER)\", (SELECT c AS int) AS long FROM d"
            ]
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
        assert_eq!(
            rewritten(
                "select 1 from h where a glob b.c || 'd' || f(e, (1)) and g and i not glob (select 1) or j glob $k"
            ),
            [
                "SELECT 1 FROM h WHERE a ~ regex_of_glob(b.c || 'd' || f(e, (1))) AND truth(g) AND i !~ regex_of_glob((SELECT 1)) OR j ~ regex_of_glob($k)"
            ]
        );
    }
}
