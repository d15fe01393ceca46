//! Reads tokens as fields of a message, and appends the encoded fields in the order of the text.
//!
//! After a mistake, the parser goes on where the next field seems to begin, so that one run reports several mistakes. It stops
//! after a mistake that leaves no such place, and after [`MAX_ERRORS`]. [`scalar`](super::scalar) reads values, and
//! [`hints`](super::hints) guesses what the writer of the text meant.

use ferretto_wire::Writer;

use super::UnknownNames;
use super::error::{Problem, TextError, TextErrors};
use super::lexer::{Lexer, Token, TokenKind};
use super::place::line_number;
use super::positions::Positions;
use super::schema::{Field, Kind, MessageId, Schema};

/// The deepest nesting of messages. The schema's deepest is below 10. The limit bounds the stack against hostile text.
const MAX_TEXT_DEPTH: usize = 64;

/// The number of mistakes that are listed.
const MAX_ERRORS: usize = 20;

/// The parser cannot go on. The reason is in the list of errors.
pub(super) struct Stop;

/// A message that the parser is reading.
pub(super) struct Frame<'a> {
    /// `None` while the parser skips the contents of an unknown field.
    pub(super) message: Option<MessageId>,
    /// The field that has this message as its value; empty for the outermost message.
    pub(super) name: &'a str,
    /// Whether the field is repeated.
    pub(super) repeated: bool,
    /// The token that opened the message, and the character that closes it.
    opened: Option<(Token, char)>,
    /// The fields so far that may occur only once.
    seen: Vec<Seen>,
    /// The number of values of each repeated field so far, by field number.
    counts: Vec<(u32, usize)>,
}

/// A message whose last line is indented like the end of another message.
pub(super) struct Crooked<'a> {
    pub(super) name: &'a str,
    /// The lines of its beginning and its end.
    pub(super) from: usize,
    pub(super) to: usize,
}

struct Seen {
    field: Field,
    start: usize,
}

/// The state of the parser.
pub(super) struct Parser<'a> {
    pub(super) schema: &'static Schema,
    pub(super) source: &'a str,
    pub(super) lexer: Lexer<'a>,
    pub(super) next: Token,
    /// The end of the last token.
    pub(super) end: usize,
    pub(super) unknown_names: UnknownNames,
    /// The open messages, outermost first.
    pub(super) frames: Vec<Frame<'a>>,
    errors: Vec<TextError>,
    /// The last string that runs over several lines. Its start may be the cause of a mistake in the line where it ends.
    pub(super) long_string: Option<Token>,
    /// Whether a missing closing brace has been reported.
    brace_missing: bool,
    /// The first message whose end is not indented like its beginning. If a brace is missing, it may be the brace of this message.
    pub(super) crooked: Option<Crooked<'a>>,
    positions: Option<Positions>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(schema: &'static Schema, source: &'a str, unknown_names: UnknownNames) -> Self {
        let mut parser = Self {
            schema,
            source,
            lexer: Lexer::new(source),
            next: Token {
                kind: TokenKind::End,
                start: 0,
                end: 0,
            },
            end: 0,
            unknown_names,
            frames: Vec::new(),
            errors: Vec::new(),
            long_string: None,
            brace_missing: false,
            crooked: None,
            positions: None,
        };
        parser.advance();
        parser
    }

    /// Also notes the place of each field.
    pub(super) fn with_positions(mut self) -> Self {
        self.positions = Some(Positions::new(self.source));
        self
    }

    /// Reads the whole text as one message. The positions are empty without [`with_positions`](Self::with_positions).
    pub(super) fn run(mut self, message: MessageId) -> Result<(Vec<u8>, Positions), TextErrors> {
        let mut writer = Writer::new();
        let outermost = Frame {
            message: Some(message),
            name: "",
            repeated: false,
            opened: None,
            seen: Vec::new(),
            counts: Vec::new(),
        };
        // The reason for a stop is in the list of errors.
        let _ = self.whole(outermost, &mut writer);
        if self.errors.is_empty() {
            let positions = self.positions.unwrap_or_else(|| Positions::new(""));
            Ok((writer.as_slice().to_vec(), positions))
        } else {
            Err(TextErrors(self.errors))
        }
    }

    fn whole(&mut self, mut outermost: Frame<'a>, writer: &mut Writer) -> Result<(), Stop> {
        if let TokenKind::Symbol('{') = self.next.kind {
            let opening = self.advance();
            match self.next.kind {
                TokenKind::String | TokenKind::UnclosedString => {
                    let hint = self.json_hint();
                    self.note(opening.start, opening.end, Problem::Json, Some(hint))?;
                    return Err(Stop);
                }
                _ => {
                    let hint = "a config has no braces around it";
                    self.note_unexpected(opening, "a field name", Some(hint.to_owned()))?;
                    outermost.opened = Some((opening, '}'));
                }
            }
        }
        self.body(outermost, writer)
    }

    /// Writes the first field of a JSON object as it would be in the text format.
    fn json_hint(&self) -> String {
        let name = self.text(self.next).trim_matches(['"', '\'']);
        let name = self.snake_case(name).unwrap_or_else(|| name.to_owned());
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let name = if is_name { &name } else { "duration_ms" };
        let field = self
            .schema
            .find_message(super::TRACE_CONFIG)
            .and_then(|id| self.schema.message(id).field(name));
        let value = match field.map(|field| field.kind) {
            Some(Kind::Message(_)) => " { … }",
            Some(Kind::Bool) => ": true",
            Some(Kind::Text | Kind::Bytes) => ": \"…\"",
            _ => ": 10000",
        };
        format!(
            "names have no quotes, nothing is around the whole, and commas may be left out: `{name}{value}`"
        )
    }

    /// Goes on to the next token, and returns the previous one.
    pub(super) fn advance(&mut self) -> Token {
        let token = self.next;
        self.end = token.end;
        loop {
            self.next = self.lexer.next();
            if self.next.kind != TokenKind::BlockComment {
                return token;
            }
            let (start, end) = (self.next.start, self.next.end);
            let problem = Problem::Unexpected {
                expected: "a comment after # or //, to the end of its line".to_owned(),
                found: "a /* comment */".to_owned(),
            };
            // If there are too many mistakes, the next one stops the parser.
            let _ = self.note(start, end, problem, None);
        }
    }

    fn take(&mut self, symbol: char) -> Option<Token> {
        (self.next.kind == TokenKind::Symbol(symbol)).then(|| self.advance())
    }

    pub(super) fn text(&self, token: Token) -> &'a str {
        &self.source[token.start..token.end]
    }

    /// Whether a new line begins between the last token and the next.
    fn on_a_new_line(&self) -> bool {
        self.source[self.end..self.next.start].contains('\n')
    }

    pub(super) fn note(
        &mut self,
        start: usize,
        end: usize,
        problem: Problem,
        hint: Option<String>,
    ) -> Result<(), Stop> {
        if self.errors.len() >= MAX_ERRORS {
            if self.errors.len() == MAX_ERRORS {
                let problem = Problem::TooMany { limit: MAX_ERRORS };
                self.errors
                    .push(TextError::new(self.source, start, end, problem, None));
            }
            return Err(Stop);
        }
        if let Some(string) = self.suspect_string(start) {
            let problem = Problem::LongString {
                from: line_number(self.source, string.start),
                to: line_number(self.source, string.end),
                found: self.describe(start, end),
            };
            self.errors.push(TextError::new(
                self.source,
                string.start,
                string.end,
                problem,
                None,
            ));
            // The rest of the text cannot be understood.
            return Err(Stop);
        }
        self.errors
            .push(TextError::new(self.source, start, end, problem, hint));
        Ok(())
    }

    /// A string of several lines that ends before the mistake at `start`, in the same line.
    fn suspect_string(&self, start: usize) -> Option<Token> {
        let string = self.long_string?;
        let between = self.source.get(string.end..start)?;
        (!between.contains('\n')).then_some(string)
    }

    /// Notes that the text has this token in the place of `expected`.
    pub(super) fn note_unexpected(
        &mut self,
        token: Token,
        expected: impl Into<String>,
        hint: Option<String>,
    ) -> Result<(), Stop> {
        if token.kind == TokenKind::UnclosedString {
            return Err(self.never_closed_string(token));
        }
        let problem = Problem::Unexpected {
            expected: expected.into(),
            found: self.describe(token.start, token.end),
        };
        let hint = hint.or_else(|| self.strange_character_hint(token));
        self.note(token.start, token.end, problem, hint)
    }

    /// Reports a quote that is never closed.
    fn never_closed_string(&mut self, token: Token) -> Stop {
        let quote = self.source[token.start..].chars().next().unwrap_or('"');
        let problem = Problem::NeverClosed {
            opener: quote,
            closer: quote,
        };
        let _ = self.note(token.start, token.start + 1, problem, None);
        Stop
    }

    /// Reads the fields of a message, up to its closing character or the end of the text.
    fn body(&mut self, frame: Frame<'a>, writer: &mut Writer) -> Result<(), Stop> {
        let opened = frame.opened;
        self.frames.push(frame);
        loop {
            match (self.next.kind, opened) {
                (TokenKind::End, None) => break,
                (TokenKind::End, Some((opening, closer))) => {
                    if !self.brace_missing {
                        self.note_never_closed(opening, closer)?;
                    }
                    return Err(Stop);
                }
                (TokenKind::Symbol(found), Some((opening, closer))) if found == closer => {
                    self.compare_indentation(opening);
                    self.advance();
                    break;
                }
                (TokenKind::Identifier, _) => self.field(writer)?,
                (TokenKind::String, _) if self.is_quoted_name() => {
                    let token = self.next;
                    let hint = format!("write `{}`", &self.source[token.start + 1..token.end - 1]);
                    self.note_unexpected(token, "a field name without quotes", Some(hint))?;
                    self.field(writer)?;
                }
                (TokenKind::Symbol('['), _) => self.extension()?,
                (TokenKind::Symbol('}' | '>'), None) => {
                    self.note_unexpected(
                        self.next,
                        "a field name",
                        Some("there is nothing left to close".to_owned()),
                    )?;
                    self.advance();
                }
                (TokenKind::Symbol('}' | '>'), Some((opening, closer))) => {
                    self.note_unexpected(self.next, self.field_or_closer(opening, closer), None)?;
                    // It was probably meant to close this message.
                    self.advance();
                    break;
                }
                (_, opened) => {
                    let expected = match opened {
                        Some((opening, closer)) => self.field_or_closer(opening, closer),
                        None => "a field name".to_owned(),
                    };
                    let hint = self.stray_value_hint();
                    self.note_unexpected(self.next, expected, hint)?;
                    self.skip_line();
                }
            }
        }
        self.frames.pop();
        Ok(())
    }

    /// Compares the indentation of the closing line with the line that opened the innermost message: in an indented text they are equal.
    fn compare_indentation(&mut self, opening: Token) {
        if self.crooked.is_some() {
            return;
        }
        let before = &self.source[..self.next.start];
        let line = before.trim_end_matches([' ', '\t']);
        // In one long line, looking for its beginning at each end would take quadratic time.
        if !line.is_empty() && !line.ends_with('\n') {
            return;
        }
        let found = &before[line.len()..];
        let from = self.source[..opening.start]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let opened = &self.source[from..];
        let expected = &opened[..opened.len() - opened.trim_start_matches([' ', '\t']).len()];
        if from != line.len() && found != expected {
            self.crooked = self.frames.last().map(|frame| Crooked {
                name: frame.name,
                from: line_number(self.source, opening.start),
                to: line_number(self.source, self.next.start),
            });
        }
    }

    fn field_or_closer(&self, opening: Token, closer: char) -> String {
        let line = line_number(self.source, opening.start);
        let opener = self.first_letter(opening);
        format!("a field name, or `{closer}` for the `{opener}` of line {line}")
    }

    fn note_never_closed(&mut self, opening: Token, closer: char) -> Result<(), Stop> {
        let problem = Problem::NeverClosed {
            opener: self.first_letter(opening),
            closer,
        };
        let hint = (closer == '}').then(|| self.crooked_hint()).flatten();
        self.note(opening.start, opening.end, problem, hint)
    }

    /// Skips at least one token, up to the end of the line or a closing character.
    fn skip_line(&mut self) {
        loop {
            self.advance();
            let closes = matches!(self.next.kind, TokenKind::Symbol('}' | '>'));
            if closes || self.next.kind == TokenKind::End || self.on_a_new_line() {
                return;
            }
        }
    }

    fn first_letter(&self, token: Token) -> char {
        self.text(token).chars().next().unwrap_or('{')
    }

    /// Whether the next token is a name in quotes: after it comes a character that follows names.
    fn is_quoted_name(&self) -> bool {
        let text = self.text(self.next);
        let name = &text[1..text.len() - 1];
        let is_name = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name && self.begins_a_field()
    }

    /// Reads `name: value`, `name { … }` or `name: [ … ]`, and a separator if there is one.
    fn field(&mut self, writer: &mut Writer) -> Result<(), Stop> {
        let mut name = self.advance();
        if name.kind == TokenKind::String {
            name.start += 1;
            name.end -= 1;
        }
        let found = self.find(name)?;
        if let Some((field, frame)) = found {
            self.check_once(frame, field, name)?;
        }
        let field = found.map(|(field, _)| field);
        let mut colon = self.take(':').is_some();
        if let TokenKind::Symbol('=' | ':') = self.next.kind {
            let expected = match colon {
                true => format!("a value for `{}`", self.text(name)),
                false => format!("`:` after `{}`", self.text(name)),
            };
            let hint = "one colon separates names and values".to_owned();
            self.note_unexpected(self.next, expected, Some(hint))?;
            self.advance();
            colon = true;
        }
        if let Some(opening) = self.take('[') {
            self.list(field, name, opening, writer)?;
        } else if self.lacks_value(colon) {
            let wanted = field.map_or("a value".to_owned(), |field| self.wanted(field));
            let expected = format!("{wanted} for `{}`", self.text(name));
            let found = if self.next.kind == TokenKind::End {
                "the end of the text"
            } else if self.on_a_new_line() {
                "the end of the line"
            } else {
                &self.describe(self.next.start, self.next.end)
            };
            let problem = Problem::Unexpected {
                expected,
                found: found.to_owned(),
            };
            let (start, end) = if self.on_a_new_line() || self.next.kind == TokenKind::End {
                (self.end, self.end)
            } else {
                (self.next.start, self.next.end)
            };
            self.note(start, end, problem, None)?;
        } else {
            self.value(field, name, writer)?;
        }
        self.separator();
        Ok(())
    }

    fn separator(&mut self) {
        if self.take(',').is_none() {
            self.take(';');
        }
    }

    /// Whether something other than a value comes next.
    fn lacks_value(&self, colon: bool) -> bool {
        match self.next.kind {
            TokenKind::End | TokenKind::Symbol('}' | '>' | ']' | ',' | ';') => true,
            TokenKind::Identifier => (!colon || self.on_a_new_line()) && self.begins_a_field(),
            _ => false,
        }
    }

    /// Whether a colon or a brace follows the next token, which makes it a name and not a value.
    pub(super) fn begins_a_field(&self) -> bool {
        matches!(
            self.lexer.clone().next().kind,
            TokenKind::Symbol(':' | '{' | '<' | '=')
        )
    }

    /// Finds the field of this name, and the open message that has it: the innermost, unless a brace is missing.
    fn find(&mut self, name: Token) -> Result<Option<(Field, usize)>, Stop> {
        let innermost = self.frames.len() - 1;
        let Some(id) = self.frames[innermost].message else {
            return Ok(None);
        };
        let schema = self.schema;
        let message = schema.message(id);
        let text = self.text(name);
        if let Some(field) = message.field(text) {
            return Ok(Some((*field, innermost)));
        }
        if self.unknown_names == UnknownNames::Drop || message.reserved.contains(&text) {
            return Ok(None);
        }
        let outer = self.enclosing_with(text);
        if let Some((_, frame)) = outer
            && self.lacks_a_brace()
        {
            if !self.brace_missing {
                let problem = Problem::UnknownField {
                    message: message.name.clone(),
                    field: text.to_owned(),
                };
                let hint = self.missing_brace_hint(frame);
                self.note(name.start, name.end, problem, Some(hint))?;
                self.brace_missing = true;
            }
            return Ok(outer);
        }
        let problem = Problem::UnknownField {
            message: message.name.clone(),
            field: text.to_owned(),
        };
        let hint = self.where_field_belongs(message, text);
        self.note(name.start, name.end, problem, hint)?;
        Ok(None)
    }

    /// Finds the nearest message around the innermost one that has a field of this name.
    pub(super) fn enclosing_with(&self, name: &str) -> Option<(Field, usize)> {
        let around = self.frames.iter().enumerate().rev().skip(1);
        around
            .filter_map(|(at, frame)| {
                let field = self.schema.message(frame.message?).field(name)?;
                Some((*field, at))
            })
            .next()
    }

    /// Whether the rest of the text closes fewer messages than are open.
    fn lacks_a_brace(&self) -> bool {
        if self.brace_missing {
            return true;
        }
        let mut open = self.frames.iter().filter(|frame| frame.opened.is_some()).count();
        let mut lexer = self.lexer.clone();
        let mut token = self.next;
        loop {
            match token.kind {
                TokenKind::End => return open > 0,
                TokenKind::Symbol('{' | '<') => open += 1,
                // A surplus brace is another mistake.
                TokenKind::Symbol('}' | '>') => open = open.saturating_sub(1),
                _ => {}
            }
            token = lexer.next();
        }
    }

    /// The line in which this open message begins.
    pub(super) fn opening_line(&self, frame: usize) -> usize {
        let opened = self.frames[frame].opened;
        opened.map_or(1, |(opening, _)| line_number(self.source, opening.start))
    }

    /// Reports `field` if it may not occur again, or not beside an earlier field.
    fn check_once(&mut self, frame: usize, field: Field, name: Token) -> Result<(), Stop> {
        if field.repeated {
            return Ok(());
        }
        let message = self.frames[frame].message;
        let clash = self.frames[frame].seen.iter().find(|seen| {
            seen.field.number == field.number || (field.oneof.is_some() && seen.field.oneof == field.oneof)
        });
        let Some(clash) = clash else {
            self.frames[frame].seen.push(Seen {
                field,
                start: name.start,
            });
            return Ok(());
        };
        let line = line_number(self.source, clash.start);
        let (other, same) = (clash.field.name, clash.field.number == field.number);
        let oneof = field.oneof.and_then(|index| {
            message
                .and_then(|id| self.schema.message(id).oneofs.get(index))
                .copied()
        });
        match oneof {
            Some(oneof) if !same => {
                let problem = Problem::Exclusive {
                    field: field.name.to_owned(),
                    other: other.to_owned(),
                    line,
                    oneof: oneof.to_owned(),
                };
                self.note(name.start, name.end, problem, None)
            }
            _ => {
                let problem = Problem::Duplicate {
                    field: field.name.to_owned(),
                    line,
                };
                let hint = self.twice_hint(frame, field);
                self.note(name.start, name.end, problem, Some(hint))
            }
        }
    }

    /// Skips `[name] …`. The schema has no extensions.
    fn extension(&mut self) -> Result<(), Stop> {
        let opening = self.advance();
        let mut end = opening.end;
        while !matches!(self.next.kind, TokenKind::Symbol(']')) {
            match self.next.kind {
                TokenKind::Identifier | TokenKind::Number => {}
                TokenKind::Symbol('.' | '/' | '-' | '%') => {}
                _ => {
                    self.note_unexpected(self.next, "the name of an extension and `]`", None)?;
                    self.skip_line();
                    return Ok(());
                }
            }
            end = self.advance().end;
        }
        self.advance();
        let message = self.frames.last().and_then(|frame| frame.message);
        if let (Some(id), UnknownNames::Refuse) = (message, self.unknown_names) {
            let problem = Problem::Extension {
                message: self.schema.message(id).name.clone(),
                name: self.source[opening.end..end].to_owned(),
            };
            self.note(opening.start, end + 1, problem, None)?;
        }
        self.take(':');
        let nowhere = &mut Writer::new();
        match self.take('[') {
            Some(opening_list) => self.list(None, opening, opening_list, nowhere)?,
            None => self.value(None, opening, nowhere)?,
        }
        self.separator();
        Ok(())
    }

    /// Reads the values after the `[` of a list.
    fn list(
        &mut self,
        field: Option<Field>,
        name: Token,
        opening: Token,
        writer: &mut Writer,
    ) -> Result<(), Stop> {
        let mut field = field;
        if let Some(single) = field.filter(|field| !field.repeated) {
            let problem = Problem::NotRepeated {
                field: single.name.to_owned(),
            };
            self.note(opening.start, opening.end, problem, None)?;
            field = None;
        }
        if self.take(']').is_some() {
            return Ok(());
        }
        loop {
            if let TokenKind::Symbol(']') = self.next.kind {
                let hint = Some("leave out the comma before it".to_owned());
                self.note_unexpected(
                    self.next,
                    format!("another value for `{}`", self.text(name)),
                    hint,
                )?;
                self.advance();
                return Ok(());
            }
            self.value(field, name, writer)?;
            if self.take(']').is_some() {
                return Ok(());
            }
            if self.next.kind == TokenKind::End {
                self.note_never_closed(opening, ']')?;
                return Err(Stop);
            }
            if self.take(',').is_none() {
                let line = line_number(self.source, opening.start);
                self.note_unexpected(self.next, format!("`,`, or `]` for the `[` of line {line}"), None)?;
                // If the next token is no value, the list was not closed.
                let value = match self.next.kind {
                    TokenKind::Number | TokenKind::String => true,
                    TokenKind::Identifier => !self.begins_a_field(),
                    TokenKind::Symbol('{' | '<') => true,
                    _ => false,
                };
                if !value {
                    return Ok(());
                }
            }
        }
    }

    /// Reads one value: a message or a scalar. Without a `field`, the value is skipped.
    fn value(&mut self, field: Option<Field>, name: Token, writer: &mut Writer) -> Result<(), Stop> {
        let mark = self.enter(field, name);
        let done = match self.next.kind {
            TokenKind::Symbol('{') => self.message(field, name, '}', writer),
            TokenKind::Symbol('<') => self.message(field, name, '>', writer),
            _ => self.scalar(field, name, writer),
        };
        if let (Some(mark), Some(positions)) = (mark, &mut self.positions) {
            positions.leave(mark);
        }
        done
    }

    /// Notes the place of a value. The place of a message is its name, the place of a scalar is the scalar.
    fn enter(&mut self, field: Option<Field>, name: Token) -> Option<usize> {
        let field = field?;
        let positions = self.positions.as_mut()?;
        let index = field.repeated.then(|| {
            let counts = self.frames.last_mut().map(|frame| &mut frame.counts)?;
            match counts.iter_mut().find(|(number, _)| *number == field.number) {
                Some((_, count)) => {
                    *count += 1;
                    Some(*count)
                }
                None => {
                    counts.push((field.number, 0));
                    Some(0)
                }
            }
        });
        let place = match field.kind {
            Kind::Message(_) => name,
            _ => self.next,
        };
        Some(positions.enter(field.name, index.flatten(), place.start..place.end))
    }

    fn message(
        &mut self,
        field: Option<Field>,
        name: Token,
        closer: char,
        writer: &mut Writer,
    ) -> Result<(), Stop> {
        let opening = self.advance();
        if self.frames.len() > MAX_TEXT_DEPTH {
            let problem = Problem::TooDeep {
                limit: MAX_TEXT_DEPTH,
            };
            self.note(opening.start, opening.end, problem, None)?;
            return Err(Stop);
        }
        let mut frame = Frame {
            message: None,
            name: self.text(name),
            repeated: field.is_some_and(|field| field.repeated),
            opened: Some((opening, closer)),
            seen: Vec::new(),
            counts: Vec::new(),
        };
        match field {
            Some(Field {
                kind: Kind::Message(id),
                number,
                ..
            }) => {
                frame.message = Some(id);
                writer.nested(number, |writer| self.body(frame, writer))
            }
            _ => {
                if let Some(field) = field {
                    let problem = Problem::Unexpected {
                        expected: format!("{} for `{}`", self.wanted(field), field.name),
                        found: "a message".to_owned(),
                    };
                    self.note(opening.start, opening.end, problem, None)?;
                }
                self.body(frame, writer)
            }
        }
    }

    /// The values that `field` accepts, in words.
    pub(super) fn wanted(&self, field: Field) -> String {
        match field.kind {
            Kind::Integer(integer) => format!("an integer ({})", integer.name),
            Kind::Double | Kind::Float => "a number".to_owned(),
            Kind::Bool => "true or false".to_owned(),
            Kind::Text | Kind::Bytes => "a string in quotes".to_owned(),
            Kind::Message(_) => "`{`".to_owned(),
            Kind::Enum(id) => {
                const MOST: usize = 8;
                let values = &self.schema.enumeration(id).values;
                let names: Vec<_> = values.iter().take(MOST).map(|(name, _)| *name).collect();
                let more = if values.len() > MOST { ", …" } else { "" };
                format!("one of {}{more}", names.join(", "))
            }
        }
    }
}
