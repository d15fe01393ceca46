//! Cuts a text into tokens that know their places. It accepts every input and always ends.
//!
//! The rules are those of protobuf's text format specification, and three more. `//` starts a comment, as in Perfetto's
//! documentation. A string may run over several lines, as in Perfetto's own parser. A byte order mark is skipped, because some
//! editors write one.

/// One token. Its place in the source is `start..end`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Identifier,
    /// It starts like a number. The caller decides whether it is one.
    Number,
    /// A string, including its quotes.
    String,
    /// A string without a closing quote: it extends to the end of the source.
    UnclosedString,
    /// A C comment. The format has no such comments.
    BlockComment,
    /// Any other single character.
    Symbol(char),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        let at = if source.starts_with('\u{feff}') {
            '\u{feff}'.len_utf8()
        } else {
            0
        };
        Self { source, at }
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest
                .find(|letter: char| !matches!(letter, ' ' | '\t'..='\r'))
                .unwrap_or(rest.len());
            self.at += blank;
            let rest = self.rest();
            if !rest.starts_with('#') && !rest.starts_with("//") {
                return;
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    pub(super) fn next(&mut self) -> Token {
        self.skip_blanks();
        let start = self.at;
        let (kind, len) = scan(self.rest());
        self.at += len;
        Token {
            kind,
            start,
            end: self.at,
        }
    }
}

/// Returns the first token of `rest` and its length. `rest` does not start with a blank.
fn scan(rest: &str) -> (TokenKind, usize) {
    let mut letters = rest.chars();
    let Some(first) = letters.next() else {
        return (TokenKind::End, 0);
    };
    match first {
        'a'..='z' | 'A'..='Z' | '_' => {
            let len = rest.find(|letter: char| !is_word(letter)).unwrap_or(rest.len());
            (TokenKind::Identifier, len)
        }
        '0'..='9' => (TokenKind::Number, number_len(rest)),
        '.' if letters.next().is_some_and(|second| second.is_ascii_digit()) => {
            (TokenKind::Number, number_len(rest))
        }
        '"' | '\'' => string(rest, first),
        '/' if rest.starts_with("/*") => (
            TokenKind::BlockComment,
            rest.find("*/").map_or(rest.len(), |end| end + 2),
        ),
        other => (TokenKind::Symbol(other), other.len_utf8()),
    }
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Returns the length of a number, including characters that touch it (`1e-5`, `10s`, `1.2.3`): so a mistake is one token.
fn number_len(rest: &str) -> usize {
    let hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
    let mut previous = '0';
    for (at, letter) in rest.char_indices() {
        let exponent_sign = matches!(letter, '+' | '-') && matches!(previous, 'e' | 'E') && !hexadecimal;
        if !is_word(letter) && letter != '.' && !exponent_sign {
            return at;
        }
        previous = letter;
    }
    rest.len()
}

fn string(rest: &str, quote: char) -> (TokenKind, usize) {
    let mut escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return (TokenKind::String, at + 1),
            _ => {}
        }
    }
    (TokenKind::UnclosedString, rest.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(source: &str) -> Vec<(TokenKind, &str)> {
        let mut lexer = Lexer::new(source);
        std::iter::from_fn(|| {
            let token = lexer.next();
            (token.kind != TokenKind::End).then(|| (token.kind, &source[token.start..token.end]))
        })
        .collect()
    }

    #[test]
    fn blanks_and_comments_separate() {
        let source = "\u{feff}a # b\n// c\r\n\u{b}\u{c}d#\n";
        assert_eq!(
            tokens(source),
            [(TokenKind::Identifier, "a"), (TokenKind::Identifier, "d")]
        );
    }

    #[test]
    fn what_clings_to_a_number_is_part_of_it() {
        for number in ["10s", "1.2.3", "0x1F", "1e-5", "1.5E+3f", ".5", "5.", "1_000"] {
            assert_eq!(tokens(number), [(TokenKind::Number, number)]);
        }
        assert_eq!(tokens("0xe-1")[0], (TokenKind::Number, "0xe"));
        assert_eq!(tokens(".x")[0], (TokenKind::Symbol('.'), "."));
    }

    #[test]
    fn strings_end_at_their_own_quote() {
        assert_eq!(
            tokens(r#""a'\"b" 'c"\''"#),
            [
                (TokenKind::String, r#""a'\"b""#),
                (TokenKind::String, r#"'c"\''"#)
            ]
        );
        assert_eq!(tokens("'a\nb'"), [(TokenKind::String, "'a\nb'")]);
        assert_eq!(tokens("\"abc\\\""), [(TokenKind::UnclosedString, "\"abc\\\"")]);
    }

    proptest! {
        #[test]
        fn tokens_never_overlap_and_cover_all_but_blanks(source in any::<String>()) {
            let mut lexer = Lexer::new(&source);
            let mut at = 0;
            loop {
                let token = lexer.next();
                prop_assert!(token.start >= at);
                if token.kind == TokenKind::End {
                    prop_assert_eq!(token.start, source.len());
                    break;
                }
                prop_assert!(token.end > token.start);
                at = token.end;
            }
        }
    }
}
