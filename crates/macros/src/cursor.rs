//! A way through tokens, with the few parts of Rust's grammar that it takes to find the ends of things.

use proc_macro::{Delimiter, Group, Ident, Literal, Spacing, Span, TokenStream, TokenTree};

use crate::error::Error;

/// Reads tokens one after the other.
pub(crate) struct Cursor {
    tokens: Vec<TokenTree>,
    next: usize,
    /// The place for errors about something missing at the end.
    end: Span,
}

impl Cursor {
    pub(crate) fn new(tokens: TokenStream, end: Span) -> Self {
        Self {
            tokens: tokens.into_iter().collect(),
            next: 0,
            end,
        }
    }

    /// A cursor over the contents of `group`.
    pub(crate) fn inside(group: &Group) -> Self {
        Self::new(group.stream(), group.span_close())
    }

    pub(crate) fn peek(&self) -> Option<&TokenTree> {
        self.tokens.get(self.next)
    }

    pub(crate) fn at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    /// The span of the next token, or of the end.
    pub(crate) fn span(&self) -> Span {
        self.peek().map_or(self.end, TokenTree::span)
    }

    pub(crate) fn next(&mut self) -> Option<TokenTree> {
        let token = self.tokens.get(self.next).cloned();
        self.next += usize::from(token.is_some());
        token
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> TokenStream {
        let rest = self.tokens[self.next..].iter().cloned().collect();
        self.next = self.tokens.len();
        rest
    }

    pub(crate) fn is_keyword(&self, keyword: &str) -> bool {
        matches!(self.peek(), Some(TokenTree::Ident(ident)) if ident.to_string() == keyword)
    }

    pub(crate) fn is_punct(&self, char: char) -> bool {
        is_punct(self.peek(), char)
    }

    pub(crate) fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = self.is_keyword(keyword);
        self.next += usize::from(found);
        found
    }

    pub(crate) fn take_punct(&mut self, char: char) -> bool {
        let found = self.is_punct(char);
        self.next += usize::from(found);
        found
    }

    /// Takes `=>`.
    pub(crate) fn take_fat_arrow(&mut self) -> bool {
        let found = self.is_punct('=') && is_punct(self.tokens.get(self.next + 1), '>');
        self.next += 2 * usize::from(found);
        found
    }

    pub(crate) fn take_ident(&mut self) -> Option<Ident> {
        match self.peek() {
            Some(TokenTree::Ident(ident)) => {
                let ident = ident.clone();
                self.next += 1;
                Some(ident)
            }
            _ => None,
        }
    }

    pub(crate) fn take_literal(&mut self) -> Option<Literal> {
        // A literal that a macro was given as `$name:literal` comes wrapped up.
        let literal = match self.peek() {
            Some(TokenTree::Literal(literal)) => Some(literal.clone()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::None => {
                let mut inside = Cursor::inside(group);
                inside.take_literal().filter(|_| inside.at_end())
            }
            _ => None,
        };
        self.next += usize::from(literal.is_some());
        literal
    }

    pub(crate) fn take_group(&mut self, delimiter: Delimiter) -> Option<Group> {
        match self.peek() {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
                let group = group.clone();
                self.next += 1;
                Some(group)
            }
            _ => None,
        }
    }

    pub(crate) fn expect_ident(&mut self, what: &str) -> Result<Ident, Error> {
        let span = self.span();
        self.take_ident()
            .ok_or_else(|| Error::new(span, format!("expected {what}")))
    }

    /// Takes a comma, or finds the end.
    pub(crate) fn expect_comma(&mut self) -> Result<(), Error> {
        if self.at_end() || self.take_punct(',') {
            return Ok(());
        }
        Err(Error::new(self.span(), "expected `,`"))
    }

    /// Takes all `#[...]`; returns the contents of the brackets.
    pub(crate) fn take_attributes(&mut self) -> Vec<Group> {
        let mut attributes = Vec::new();
        while self.is_punct('#') {
            let Some(TokenTree::Group(group)) = self.tokens.get(self.next + 1) else {
                break;
            };
            attributes.push(group.clone());
            self.next += 2;
        }
        attributes
    }

    /// Takes `#![...]` as often as it comes.
    pub(crate) fn take_inner_attributes(&mut self) -> TokenStream {
        let start = self.next;
        while self.is_punct('#')
            && is_punct(self.tokens.get(self.next + 1), '!')
            && matches!(self.tokens.get(self.next + 2), Some(TokenTree::Group(_)))
        {
            self.next += 3;
        }
        self.tokens[start..self.next].iter().cloned().collect()
    }

    /// Takes `pub`, `pub(crate)` and the like, if it is there.
    pub(crate) fn skip_visibility(&mut self) {
        if let Some(TokenTree::Group(group)) = self.peek()
            && group.delimiter() == Delimiter::None
        {
            // A `$vis:vis` fragment of a macro, which may be empty. A type may come as a group as well.
            let mut inside = Cursor::inside(group);
            inside.skip_visibility();
            self.next += usize::from(inside.at_end());
        } else if self.take_keyword("pub")
            && let Some(TokenTree::Group(group)) = self.peek()
            && group.delimiter() == Delimiter::Parenthesis
        {
            // In front of a tuple field, the parentheses may be a type.
            let inside = Cursor::inside(group);
            let restricts = ["crate", "self", "super", "in"]
                .iter()
                .any(|word| inside.is_keyword(word));
            self.next += usize::from(restricts);
        }
    }

    /// Takes the tokens of a type, a bound or a pattern, up to one that `ends` it outside of all angle brackets.
    pub(crate) fn take_type(&mut self, ends: impl Fn(&TokenTree) -> bool) -> TokenStream {
        let start = self.next;
        let mut depth = 0usize;
        let mut after_minus = false;
        while let Some(token) = self.peek() {
            // The `>` of an arrow is part of one.
            if depth == 0 && !after_minus && ends(token) {
                break;
            }
            let is_minus = matches!(token, TokenTree::Punct(punct) if punct.as_char() == '-' && punct.spacing() == Spacing::Joint);
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
                TokenTree::Punct(punct) if punct.as_char() == '>' && !after_minus => {
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
            after_minus = is_minus;
            self.next += 1;
        }
        self.tokens[start..self.next].iter().cloned().collect()
    }

    /// Takes an expression, up to a comma. Angle brackets count only if they are those of `::<`.
    pub(crate) fn take_expression(&mut self) -> TokenStream {
        let start = self.next;
        let mut depth = 0usize;
        let mut after_colon = false;
        while let Some(token) = self.peek() {
            if depth == 0 && is_punct(Some(token), ',') {
                break;
            }
            if is_punct(Some(token), '<') && (after_colon || depth > 0) {
                depth += 1;
            } else if is_punct(Some(token), '>') {
                depth = depth.saturating_sub(1);
            }
            after_colon = is_punct(Some(token), ':');
            self.next += 1;
        }
        self.tokens[start..self.next].iter().cloned().collect()
    }

    /// Takes the rest of a function's parameter, and the comma behind it.
    pub(crate) fn skip_parameter(&mut self) {
        self.take_type(|token| is_punct(Some(token), ','));
        self.take_punct(',');
    }

    /// Takes `<...>`, if it is there; returns its contents.
    pub(crate) fn take_angle_brackets(&mut self) -> Option<TokenStream> {
        if !self.take_punct('<') {
            return None;
        }
        let inside = self.take_type(|token| is_punct(Some(token), '>'));
        self.take_punct('>');
        Some(inside)
    }
}

/// Whether `token` is the punctuation `char`.
pub(crate) fn is_punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

/// The name of an identifier, without the `r#` of a raw one.
pub(crate) fn name_of(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}
