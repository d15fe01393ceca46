//! Scalars in a text: reads them, checks them against their field, and encodes them.
//!
//! [`parser`](super::parser) calls these functions; they are part of its state.

use ferretto_wire::{Writer, zigzag};

use super::UnknownNames;
use super::error::Problem;
use super::lexer::{Token, TokenKind};
use super::literal::{BadInteger, float, integer, unescape};
use super::parser::{Parser, Stop};
use super::schema::{Encoding, EnumId, Field, Integer, Kind};

/// The kind of a scalar in the text.
pub(super) enum Literal {
    Bytes(Vec<u8>),
    Number,
    Identifier,
    /// Words and signs without a blank between them. It is not a valid value of any field, but was probably meant as one.
    Word,
}

pub(super) struct Scalar<'a> {
    pub(super) literal: Literal,
    pub(super) negative: bool,
    /// The scalar without its sign; of several strings, the first one.
    pub(super) text: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl<'a> Parser<'a> {
    /// Reads a scalar. Appends it if there is a field.
    pub(super) fn scalar(
        &mut self,
        field: Option<Field>,
        name: Token,
        writer: &mut Writer,
    ) -> Result<(), Stop> {
        let Some(scalar) = self.read_scalar(field, name)? else {
            return Ok(());
        };
        match field {
            Some(field) => self.append(field, &scalar, writer),
            None if matches!(scalar.literal, Literal::Word) => {
                let problem = Problem::Unexpected {
                    expected: format!("a value for `{}`", self.text(name)),
                    found: self.describe(scalar.start, scalar.end),
                };
                self.note(scalar.start, scalar.end, problem, None)
            }
            None => Ok(()),
        }
    }

    /// Reads one scalar, or several adjacent strings, which form one. Returns `None` after it has reported that there is no scalar.
    fn read_scalar(&mut self, field: Option<Field>, name: Token) -> Result<Option<Scalar<'a>>, Stop> {
        let start = self.next.start;
        let sign = match self.next.kind {
            TokenKind::Symbol('-') => Some(self.advance()),
            _ => None,
        };
        let negative = sign.is_some();
        let token = self.next;
        let literal = match token.kind {
            TokenKind::Number => Literal::Number,
            TokenKind::Identifier => Literal::Identifier,
            // The word may be a number with a plus, or a name that begins with a slash.
            TokenKind::Symbol('+' | '/' | '.' | '*' | '$' | '~' | '@' | '%') if !negative => Literal::Word,
            TokenKind::String if !negative => {
                let mut value = Vec::new();
                let mut end = token.end;
                while self.next.kind == TokenKind::String {
                    end = self.string(&mut value)?;
                }
                return Ok(Some(Scalar {
                    literal: Literal::Bytes(value),
                    negative,
                    text: self.text(token),
                    start,
                    end,
                }));
            }
            _ => {
                let expected = if negative {
                    "a number after `-`".to_owned()
                } else {
                    let wanted = field.map_or("a value".to_owned(), |field| self.wanted(field));
                    format!("{wanted} for `{}`", self.text(name))
                };
                self.note_unexpected(token, expected, None)?;
                self.skip_word();
                return Ok(None);
            }
        };
        self.advance();
        let end = self.clinging(token);
        let literal = if end == token.end { literal } else { Literal::Word };
        Ok(Some(Scalar {
            literal,
            negative,
            text: &self.source[token.start..end],
            start,
            end,
        }))
    }

    /// Takes the tokens that touch a value's `first` token, the last one taken, and cannot be anything but a part of the value: an
    /// example is `linux.ftrace` without quotes. Returns the end of the value.
    fn clinging(&mut self, first: Token) -> usize {
        let mut end = first.end;
        let mut inside = matches!(first.kind, TokenKind::Symbol(_));
        while self.next.start == end {
            match self.next.kind {
                TokenKind::Symbol(',' | ';' | '{' | '}' | '<' | '>' | '[' | ']' | ':' | '=') => break,
                TokenKind::Symbol(_) => inside = true,
                TokenKind::Identifier | TokenKind::Number if inside => {}
                _ => break,
            }
            end = self.advance().end;
        }
        end
    }

    /// Skips a token that is not a value, and the tokens that touch it.
    fn skip_word(&mut self) {
        let mut end = self.next.start;
        while self.next.start == end
            && !matches!(
                self.next.kind,
                TokenKind::End | TokenKind::Symbol('}' | '>' | ']' | ',' | ';')
            )
        {
            end = self.advance().end;
        }
    }

    /// Appends one string literal to `value`, and returns its end.
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
        let mut hint = self.value_hint(field, scalar);
        let problem = match mismatch {
            Mismatch::Problem(problem) => *problem,
            Mismatch::UnknownName => {
                hint = hint.or_else(|| Some(format!("expected {}", self.wanted(field))));
                Problem::UnknownEnumValue {
                    field: field.name.to_owned(),
                    value: self.source[scalar.start..scalar.end].to_owned(),
                }
            }
            Mismatch::Kind => Problem::Unexpected {
                expected: format!("{} for `{}`", self.wanted(field), field.name),
                found: self.describe(scalar.start, scalar.end),
            },
        };
        self.note(scalar.start, scalar.end, problem, hint)
    }
}

/// The reason why a scalar is not a value of its field.
enum Mismatch {
    /// The scalar is of another kind.
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
        Literal::Bytes(_) | Literal::Word => return Err(Mismatch::Kind),
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
