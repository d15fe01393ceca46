//! Reads tokens as fields of a message and appends what they are worth, in the order of the text.
//!
//! Mistakes that concern one field only (an unknown name, a value of the wrong type) are noted and reading goes
//! on behind it; after one that leaves open where the next field begins, it stops.

use ferretto_wire::{Writer, zigzag};

use super::UnknownNames;
use super::error::{Problem, TextError, TextErrors, line_number};
use super::lexer::{Lexer, Token, TokenKind};
use super::literal::{BadInteger, float, integer, unescape};
use super::schema::{Encoding, EnumId, Field, Integer, Kind, Message, MessageId, Schema};
use super::suggest::nearest;

/// The deepest nesting of messages. The schema's deepest is below 10; this bounds the stack against hostile text.
const MAX_DEPTH: usize = 64;

/// How many mistakes are listed.
const MAX_ERRORS: usize = 20;

/// Reading cannot go on; the reason is in the list of errors.
struct Stop;

/// One message being read.
struct Frame {
    /// `None` while what an unknown field holds is skipped.
    message: Option<MessageId>,
    /// What was given so far of fields that can be given once.
    seen: Vec<Seen>,
}

struct Seen {
    field: Field,
    start: usize,
}

/// A scalar as it stands in the text.
enum Literal {
    Bytes(Vec<u8>),
    Number,
    Identifier,
}

struct Scalar<'a> {
    literal: Literal,
    negative: bool,
    /// Without the sign; of a string the first literal.
    text: &'a str,
    start: usize,
    end: usize,
}

pub(super) struct Parser<'a> {
    schema: &'static Schema,
    source: &'a str,
    lexer: Lexer<'a>,
    next: Token,
    unknown_names: UnknownNames,
    /// The messages that are open, outermost first.
    enclosing: Vec<MessageId>,
    depth: usize,
    errors: Vec<TextError>,
    /// The last string that runs over several lines: if something is wrong where it ends, its start may be why.
    long_string: Option<Token>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(schema: &'static Schema, source: &'a str, unknown_names: UnknownNames) -> Self {
        let mut lexer = Lexer::new(source);
        let next = lexer.next();
        Self {
            schema,
            source,
            lexer,
            next,
            unknown_names,
            enclosing: Vec::new(),
            depth: 0,
            errors: Vec::new(),
            long_string: None,
        }
    }

    /// Reads the whole text as one message.
    pub(super) fn run(mut self, message: MessageId) -> Result<Vec<u8>, TextErrors> {
        let mut writer = Writer::new();
        // A stop has left its error in the list.
        let _ = self.body(Some(message), None, &mut writer);
        if self.errors.is_empty() {
            Ok(writer.as_slice().to_vec())
        } else {
            Err(TextErrors(self.errors))
        }
    }

    fn advance(&mut self) -> Token {
        let token = self.next;
        self.next = self.lexer.next();
        token
    }

    fn take(&mut self, symbol: char) -> Option<Token> {
        (self.next.kind == TokenKind::Symbol(symbol)).then(|| self.advance())
    }

    fn text(&self, token: Token) -> &'a str {
        &self.source[token.start..token.end]
    }

    fn note(&mut self, start: usize, end: usize, problem: Problem, hint: Option<String>) -> Result<(), Stop> {
        if self.errors.len() == MAX_ERRORS {
            let problem = Problem::TooMany { limit: MAX_ERRORS };
            self.errors
                .push(TextError::new(self.source, start, end, problem, None));
            return Err(Stop);
        }
        let hint = hint.or_else(|| self.long_string_hint(start));
        self.errors
            .push(TextError::new(self.source, start, end, problem, hint));
        Ok(())
    }

    fn long_string_hint(&self, start: usize) -> Option<String> {
        let string = self.long_string?;
        let between = self.source.get(string.end..start)?;
        (!between.contains('\n')).then(|| {
            let (from, to) = (
                line_number(self.source, string.start),
                line_number(self.source, string.end),
            );
            format!("a string runs from line {from} to line {to}: is its closing quote missing?")
        })
    }

    /// Notes that `expected` should stand where the next token is, and stops.
    fn unexpected(&mut self, expected: impl Into<String>) -> Stop {
        let token = self.next;
        let problem = match token.kind {
            TokenKind::UnclosedString => {
                let quote = self.source[token.start..].chars().next().unwrap_or('"');
                Problem::NeverClosed {
                    opener: quote,
                    closer: quote,
                }
            }
            _ => Problem::Unexpected {
                expected: expected.into(),
                found: self.describe(token),
            },
        };
        let hint = (token.kind == TokenKind::BlockComment)
            .then(|| "the text format has only comments to the end of the line, after # or //".to_owned());
        let end = if token.kind == TokenKind::UnclosedString {
            token.start + 1
        } else {
            token.end
        };
        let _ = self.note(token.start, end, problem, hint);
        Stop
    }

    fn describe(&self, token: Token) -> String {
        const LONGEST: usize = 40;
        let text = self.text(token);
        match token.kind {
            TokenKind::End => "the end of the text".to_owned(),
            TokenKind::BlockComment => "a /* comment */".to_owned(),
            _ if text.contains('\n') => "a string of several lines".to_owned(),
            _ if text.chars().count() > LONGEST => {
                format!("`{}…`", text.chars().take(LONGEST).collect::<String>())
            }
            _ => format!("`{text}`"),
        }
    }

    /// The fields of a message, up to the end of the text or to what closes `opener`.
    fn body(
        &mut self,
        message: Option<MessageId>,
        opener: Option<(Token, char)>,
        writer: &mut Writer,
    ) -> Result<(), Stop> {
        let mut frame = Frame {
            message,
            seen: Vec::new(),
        };
        self.enclosing.extend(message);
        loop {
            match (self.next.kind, opener) {
                (TokenKind::End, None) => break,
                (TokenKind::End, Some((opening, closer))) => {
                    let problem = Problem::NeverClosed {
                        opener: self.first_letter(opening),
                        closer,
                    };
                    self.note(opening.start, opening.end, problem, None)?;
                    return Err(Stop);
                }
                (TokenKind::Symbol(found), Some((_, closer))) if found == closer => {
                    self.advance();
                    break;
                }
                (TokenKind::Identifier, _) => self.field(&mut frame, writer)?,
                (TokenKind::Symbol('['), _) => self.extension(&frame)?,
                (TokenKind::Symbol('}' | '>'), None) => {
                    return Err(self.unexpected("a field name (there is nothing left to close)"));
                }
                (_, Some((opening, closer))) => {
                    let line = line_number(self.source, opening.start);
                    let opener = self.first_letter(opening);
                    let expected = format!("a field name, or `{closer}` for the `{opener}` of line {line}");
                    return Err(self.unexpected(expected));
                }
                (_, None) => return Err(self.unexpected("a field name")),
            }
        }
        if message.is_some() {
            self.enclosing.pop();
        }
        Ok(())
    }

    fn first_letter(&self, token: Token) -> char {
        self.text(token).chars().next().unwrap_or('{')
    }

    /// `name: value`, `name { … }`, `name: [ … ]`, and a separator if there is one.
    fn field(&mut self, frame: &mut Frame, writer: &mut Writer) -> Result<(), Stop> {
        let name = self.advance();
        let field = match frame.message {
            Some(id) => self.find(id, name)?,
            None => None,
        };
        if let Some(field) = field {
            self.check_once(frame, field, name)?;
        }
        let colon = self.take(':').is_some();
        if let Some(opening) = self.take('[') {
            self.list(field, name, opening, writer)?;
        } else {
            if !colon && self.next.kind == TokenKind::Identifier && self.begins_a_field() {
                return Err(self.unexpected(format!("a value for `{}`", self.text(name))));
            }
            self.value(field, name, writer)?;
        }
        if self.take(',').is_none() {
            self.take(';');
        }
        Ok(())
    }

    /// Whether a colon or a brace follows the next token, which is then a name and not a value.
    fn begins_a_field(&self) -> bool {
        matches!(self.lexer.clone().next().kind, TokenKind::Symbol(':' | '{' | '<'))
    }

    fn find(&mut self, id: MessageId, name: Token) -> Result<Option<Field>, Stop> {
        let schema = self.schema;
        let message = schema.message(id);
        let text = self.text(name);
        if let Some(field) = message.field(text) {
            return Ok(Some(*field));
        }
        let reserved = message.reserved.contains(&text);
        if self.unknown_names == UnknownNames::Refuse && !reserved {
            let problem = Problem::UnknownField {
                message: message.name.clone(),
                field: text.to_owned(),
            };
            let hint = self.where_field_belongs(message, text);
            self.note(name.start, name.end, problem, hint)?;
        }
        Ok(None)
    }

    fn where_field_belongs(&self, message: &Message, name: &str) -> Option<String> {
        let around = self.enclosing.iter().rev().map(|id| self.schema.message(*id));
        if let Some(outer) = around.skip(1).find(|outer| outer.field(name).is_some()) {
            return Some(format!(
                "it is a field of the enclosing {}: is a closing brace missing?",
                outer.name
            ));
        }
        let inside = message.fields.iter().find(|field| match field.kind {
            Kind::Message(id) => self.schema.message(id).field(name).is_some(),
            _ => false,
        });
        let similar = nearest(name, message.fields.iter().map(|field| field.name));
        match (similar, inside) {
            (Some(similar), _) => Some(format!("did you mean `{similar}`?")),
            (None, Some(field)) => Some(format!("it belongs into `{} {{ … }}`", field.name)),
            (None, None) => None,
        }
    }

    /// Notes it if `field` may not be given again, or not beside another one.
    fn check_once(&mut self, frame: &mut Frame, field: Field, name: Token) -> Result<(), Stop> {
        if field.repeated {
            return Ok(());
        }
        let clash = frame.seen.iter().find(|seen| {
            seen.field.number == field.number || (field.oneof.is_some() && seen.field.oneof == field.oneof)
        });
        let problem = clash.map(|seen| {
            let line = line_number(self.source, seen.start);
            let oneof = field.oneof.and_then(|index| {
                frame
                    .message
                    .and_then(|id| self.schema.message(id).oneofs.get(index))
                    .copied()
            });
            match oneof {
                Some(oneof) if seen.field.number != field.number => Problem::Exclusive {
                    field: field.name.to_owned(),
                    other: seen.field.name.to_owned(),
                    line,
                    oneof: oneof.to_owned(),
                },
                _ => Problem::Duplicate {
                    field: field.name.to_owned(),
                    line,
                },
            }
        });
        match problem {
            Some(problem) => self.note(name.start, name.end, problem, None),
            None => {
                frame.seen.push(Seen {
                    field,
                    start: name.start,
                });
                Ok(())
            }
        }
    }

    /// `[name] …`: nothing in the schema can be written so; what it holds is skipped.
    fn extension(&mut self, frame: &Frame) -> Result<(), Stop> {
        let opening = self.advance();
        let mut end = opening.end;
        while !matches!(self.next.kind, TokenKind::Symbol(']')) {
            match self.next.kind {
                TokenKind::Identifier | TokenKind::Number => {}
                TokenKind::Symbol('.' | '/' | '-' | '%') => {}
                _ => return Err(self.unexpected("the name of an extension and `]`")),
            }
            end = self.advance().end;
        }
        self.advance();
        if let (Some(id), UnknownNames::Refuse) = (frame.message, self.unknown_names) {
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
        if self.take(',').is_none() {
            self.take(';');
        }
        Ok(())
    }

    /// The values after the `[` of a list.
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
            self.value(field, name, writer)?;
            if self.take(']').is_some() {
                return Ok(());
            }
            if self.next.kind == TokenKind::End {
                let problem = Problem::NeverClosed {
                    opener: '[',
                    closer: ']',
                };
                self.note(opening.start, opening.end, problem, None)?;
                return Err(Stop);
            }
            if self.take(',').is_none() {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    /// One value: a message or a scalar. `field` is `None` if it is only skipped.
    fn value(&mut self, field: Option<Field>, name: Token, writer: &mut Writer) -> Result<(), Stop> {
        let closer = match self.next.kind {
            TokenKind::Symbol('{') => '}',
            TokenKind::Symbol('<') => '>',
            _ => {
                let scalar = self.scalar(field, name)?;
                return match field {
                    Some(field) => self.append(field, &scalar, writer),
                    None => Ok(()),
                };
            }
        };
        let opening = self.advance();
        if self.depth == MAX_DEPTH {
            self.note(
                opening.start,
                opening.end,
                Problem::TooDeep { limit: MAX_DEPTH },
                None,
            )?;
            return Err(Stop);
        }
        self.depth += 1;
        match field {
            Some(Field {
                kind: Kind::Message(id),
                number,
                ..
            }) => {
                writer.nested(number, |writer| {
                    self.body(Some(id), Some((opening, closer)), writer)
                })?;
            }
            _ => {
                if let Some(field) = field {
                    let problem = Problem::Unexpected {
                        expected: format!("{} for `{}`", self.wanted(field), field.name),
                        found: "a message".to_owned(),
                    };
                    self.note(opening.start, opening.end, problem, None)?;
                }
                self.body(None, Some((opening, closer)), writer)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// What values `field` takes, in words.
    fn wanted(&self, field: Field) -> String {
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

    /// One scalar, or several strings in a row, which are one.
    fn scalar(&mut self, field: Option<Field>, name: Token) -> Result<Scalar<'a>, Stop> {
        let start = self.next.start;
        let negative = self.take('-').is_some();
        let token = self.next;
        let literal = match token.kind {
            TokenKind::Number => Literal::Number,
            TokenKind::Identifier => Literal::Identifier,
            TokenKind::String if !negative => {
                let mut value = Vec::new();
                let mut end = token.end;
                while self.next.kind == TokenKind::String {
                    end = self.string(&mut value)?;
                }
                return Ok(Scalar {
                    literal: Literal::Bytes(value),
                    negative,
                    text: self.text(token),
                    start,
                    end,
                });
            }
            _ if negative => return Err(self.unexpected("a number after `-`")),
            _ => {
                let wanted = field.map_or("a value".to_owned(), |field| self.wanted(field));
                return Err(self.unexpected(format!("{wanted} for `{}`", self.text(name))));
            }
        };
        self.advance();
        Ok(Scalar {
            literal,
            negative,
            text: self.text(token),
            start,
            end: token.end,
        })
    }

    /// Appends one string literal to `value` and returns where it ends.
    fn string(&mut self, value: &mut Vec<u8>) -> Result<usize, Stop> {
        let token = self.advance();
        let text = self.text(token);
        if text.contains('\n') {
            self.long_string = Some(token);
        }
        if let Err(bad) = unescape(text, value) {
            let start = token.start + bad.at;
            let found = format!("`{}`", &self.source[start..start + bad.len]);
            let problem = Problem::Unexpected {
                expected: bad.expected.to_owned(),
                found,
            };
            self.note(start, start + bad.len, problem, None)?;
        }
        Ok(token.end)
    }

    fn append(&mut self, field: Field, scalar: &Scalar<'_>, writer: &mut Writer) -> Result<(), Stop> {
        let number = field.number;
        let outcome = match field.kind {
            Kind::Integer(integer) => {
                integer_value(field, integer, scalar).map(|value| match integer.encoding {
                    Encoding::Varint => writer.varint_field(number, value as u64),
                    Encoding::Zigzag => writer.varint_field(number, zigzag(value as i64)),
                    Encoding::Fixed32 => writer.fixed32_field(number, value as u32),
                    Encoding::Fixed64 => writer.fixed64_field(number, value as u64),
                })
            }
            Kind::Double => float_value(scalar).map(|value| writer.fixed64_field(number, value.to_bits())),
            Kind::Float => {
                float_value(scalar).map(|value| writer.fixed32_field(number, (value as f32).to_bits()))
            }
            Kind::Bool => bool_value(scalar).map(|value| writer.varint_field(number, value.into())),
            Kind::Text | Kind::Bytes => match &scalar.literal {
                Literal::Bytes(bytes) if field.kind == Kind::Text && std::str::from_utf8(bytes).is_err() => {
                    Err(Mismatch::Problem(Box::new(Problem::NotUtf8 {
                        field: field.name.to_owned(),
                    })))
                }
                Literal::Bytes(bytes) => {
                    writer.bytes_field(number, bytes);
                    Ok(())
                }
                _ => Err(Mismatch::Kind),
            },
            Kind::Enum(id) => match self.enum_value(id, scalar) {
                Ok(value) => {
                    writer.varint_field(number, i64::from(value) as u64);
                    Ok(())
                }
                Err(Mismatch::UnknownName) if self.unknown_names == UnknownNames::Drop => Ok(()),
                Err(mismatch) => Err(mismatch),
            },
            Kind::Message(_) => Err(Mismatch::Kind),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(mismatch) => self.note_mismatch(field, scalar, mismatch),
        }
    }

    fn enum_value(&self, id: EnumId, scalar: &Scalar<'_>) -> Result<i32, Mismatch> {
        let values = &self.schema.enumeration(id).values;
        match scalar.literal {
            Literal::Identifier if !scalar.negative => values
                .iter()
                .find(|(name, _)| *name == scalar.text)
                .map(|(_, number)| *number)
                .ok_or(Mismatch::UnknownName),
            Literal::Number => {
                let magnitude = integer(scalar.text).map_err(|_| Mismatch::Kind)?;
                let number = if scalar.negative {
                    -i128::from(magnitude)
                } else {
                    magnitude.into()
                };
                let known = values
                    .iter()
                    .map(|(_, known)| *known)
                    .find(|known| i128::from(*known) == number);
                known.ok_or(Mismatch::UnknownName)
            }
            _ => Err(Mismatch::Kind),
        }
    }

    fn note_mismatch(&mut self, field: Field, scalar: &Scalar<'_>, mismatch: Mismatch) -> Result<(), Stop> {
        let token = Token {
            kind: TokenKind::Number,
            start: scalar.start,
            end: scalar.end,
        };
        let mut hint = None;
        let problem = match mismatch {
            Mismatch::Problem(problem) => *problem,
            Mismatch::UnknownName => {
                let Kind::Enum(id) = field.kind else { return Ok(()) };
                let names = self.schema.enumeration(id).values.iter().map(|(name, _)| *name);
                hint = match nearest(scalar.text, names) {
                    Some(similar) => Some(format!("did you mean `{similar}`?")),
                    None => Some(format!("expected {}", self.wanted(field))),
                };
                let value = self.source[scalar.start..scalar.end].to_owned();
                Problem::UnknownEnumValue {
                    field: field.name.to_owned(),
                    value,
                }
            }
            Mismatch::Kind => Problem::Unexpected {
                expected: format!("{} for `{}`", self.wanted(field), field.name),
                found: self.describe(token),
            },
        };
        self.note(scalar.start, scalar.end, problem, hint)
    }
}

/// Why a scalar is not a value of its field.
enum Mismatch {
    /// It is of another kind.
    Kind,
    /// The enum has no such value.
    UnknownName,
    Problem(Box<Problem>),
}

fn integer_value(field: Field, kind: Integer, scalar: &Scalar<'_>) -> Result<i128, Mismatch> {
    let out_of_range = || {
        Mismatch::Problem(Box::new(Problem::OutOfRange {
            field: field.name.to_owned(),
            value: format!("{}{}", if scalar.negative { "-" } else { "" }, scalar.text),
            type_name: kind.name,
            min: kind.min,
            max: kind.max,
        }))
    };
    let Literal::Number = scalar.literal else {
        return Err(Mismatch::Kind);
    };
    let magnitude = integer(scalar.text).map_err(|bad| match bad {
        BadInteger::Malformed => Mismatch::Kind,
        BadInteger::TooLarge => out_of_range(),
    })?;
    let value = if scalar.negative {
        -i128::from(magnitude)
    } else {
        magnitude.into()
    };
    if (kind.min..=kind.max).contains(&value) {
        Ok(value)
    } else {
        Err(out_of_range())
    }
}

fn float_value(scalar: &Scalar<'_>) -> Result<f64, Mismatch> {
    let magnitude = match scalar.literal {
        Literal::Number => float(scalar.text).ok_or(Mismatch::Kind)?,
        Literal::Identifier => match scalar.text.to_ascii_lowercase().as_str() {
            "inf" | "infinity" => f64::INFINITY,
            "nan" => f64::NAN,
            _ => return Err(Mismatch::Kind),
        },
        Literal::Bytes(_) => return Err(Mismatch::Kind),
    };
    Ok(if scalar.negative { -magnitude } else { magnitude })
}

fn bool_value(scalar: &Scalar<'_>) -> Result<bool, Mismatch> {
    match (&scalar.literal, scalar.negative) {
        (Literal::Identifier, false) => match scalar.text {
            "true" | "True" | "t" => Ok(true),
            "false" | "False" | "f" => Ok(false),
            _ => Err(Mismatch::Kind),
        },
        (Literal::Number, false) => match integer(scalar.text) {
            Ok(0) => Ok(false),
            Ok(1) => Ok(true),
            _ => Err(Mismatch::Kind),
        },
        _ => Err(Mismatch::Kind),
    }
}
