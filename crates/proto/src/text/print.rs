//! Prints encoded messages as text, for people and for `grep`.
//!
//! `ferretto text` calls it for each packet. The text is the same as that of upstream's `traceconv text`, and keeps the order of the
//! bytes. It has one field per line, and two spaces for each level. The values of packed fields are printed one by one. Strings and
//! bytes have C's escapes for all characters except printable ASCII. A field that the schema does not have, or has with another wire
//! type, is printed with its number as its name: varints as signed numbers, fixed-width values as hexadecimal, others as strings.
//! Bytes that cannot be read as a field are printed as a comment, and end the message.
//!
//! The text differs where upstream's loses information. If six decimals do not identify a floating-point number, it has as many
//! digits as it needs. An enum value without a name is printed with the name of its field, where upstream prints the field's number.
//! Messages below [`MAX_DEPTH`] are printed as strings, because a hostile file could otherwise exhaust the stack.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use ferretto_wire::{Reader, Value, take_varint, unzigzag};

use super::schema::{self, Encoding, EnumId, Field, Integer, Kind, MessageId, Schema};
use crate::messages::MAX_DEPTH;

#[cfg(test)]
mod tests;

/// Prints messages of one type.
///
/// ```
/// use ferretto_proto::text::{self, Printer};
///
/// let printer = Printer::new(text::TRACE_PACKET).expect("the schema has it");
/// let mut out = Vec::new();
/// printer.print(&[0x40, 0x2a, 0x0a, 0x03, 0x62, 0x01, b'a'], 1, &mut out)?;
/// assert_eq!(out, b"  timestamp: 42\n  ftrace_events {\n    12: \"a\"\n  }\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    schema: &'static Schema,
    message: MessageId,
}

impl Printer {
    /// Makes a printer for `message` (full name, such as [`TRACE_PACKET`](super::TRACE_PACKET)). `None` if the schema does not have it.
    #[must_use]
    pub fn new(message: &str) -> Option<Printer> {
        let schema = &*schema::TRACE;
        let message = schema.find_message(message)?;
        Some(Printer { schema, message })
    }

    /// Prints the fields of `encoded`, indented by `level` times two spaces. It allocates almost nothing. It writes many small
    /// pieces, so `out` should be buffered.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn print(&self, encoded: &[u8], level: usize, out: &mut impl Write) -> io::Result<()> {
        let mut text = Text {
            schema: self.schema,
            out,
            deepest: level.saturating_add(MAX_DEPTH as usize),
        };
        text.fields(encoded, self.message, level)
    }
}

struct Text<'a, W> {
    schema: &'static Schema,
    out: &'a mut W,
    /// The first level whose messages are printed as strings.
    deepest: usize,
}

impl<W: Write> Text<'_, W> {
    fn fields(&mut self, encoded: &[u8], message: MessageId, level: usize) -> io::Result<()> {
        let message = self.schema.message(message);
        let mut reader = Reader::new(encoded);
        while let Some(field) = reader.next() {
            let Ok(field) = field else {
                self.indent(level)?;
                self.out.write_all(b"# Extra bytes: ")?;
                self.string(reader.remaining())?;
                return self.out.write_all(b"\n");
            };
            let known = message.field_numbered(field.number);
            let printed = match known {
                Some(known) => self.known(known, field.value, level)?,
                None => false,
            };
            if !printed {
                self.unknown(field.number, field.value, level)?;
            }
        }
        Ok(())
    }

    /// Prints a field according to the schema, and returns whether that was possible.
    fn known(&mut self, field: &Field, value: Value<'_>, level: usize) -> io::Result<bool> {
        match (field.kind, value) {
            (Kind::Message(message), Value::Bytes(encoded)) if level < self.deepest => {
                self.indent(level)?;
                self.out.write_all(field.name.as_bytes())?;
                self.out.write_all(b" {\n")?;
                self.fields(encoded, message, level + 1)?;
                self.indent(level)?;
                self.out.write_all(b"}\n")?;
                Ok(true)
            }
            (Kind::Message(_), _) => Ok(false),
            (Kind::Text | Kind::Bytes, Value::Bytes(bytes)) => {
                self.name(field.name, level)?;
                self.string(bytes)?;
                self.out.write_all(b"\n")?;
                Ok(true)
            }
            (Kind::Text | Kind::Bytes, _) => Ok(false),
            (_, Value::Bytes(bytes)) => self.packed(field, bytes, level).map(|()| true),
            (_, value) => self.scalar(field, value, level),
        }
    }

    fn scalar(&mut self, field: &Field, value: Value<'_>, level: usize) -> io::Result<bool> {
        let Some(scalar) = Scalar::new(field.kind, value) else {
            return Ok(false);
        };
        self.name(field.name, level)?;
        match scalar {
            Scalar::Unsigned(value) => self.decimal(value)?,
            Scalar::Signed(value) => self.signed(value)?,
            Scalar::Bool(value) => self.out.write_all(if value { b"true" } else { b"false" })?,
            Scalar::Double(value) => floating(value, self.out)?,
            Scalar::Float(value) => floating(value, self.out)?,
            Scalar::Enum(id, value) => match self.schema.enumeration(id).name_of(value) {
                Some(name) => self.out.write_all(name.as_bytes())?,
                None => self.signed(value.into())?,
            },
        }
        self.out.write_all(b"\n")?;
        Ok(true)
    }

    /// Prints the values of a packed field, each on its own line. Whether the schema says that the field is packed makes no
    /// difference, because parsers accept both.
    fn packed(&mut self, field: &Field, mut bytes: &[u8], level: usize) -> io::Result<()> {
        while !bytes.is_empty() {
            let Some(value) = next_packed(field.kind, &mut bytes) else {
                self.indent(level)?;
                self.out.write_all(b"# Packed decoding failure for field ")?;
                self.out.write_all(field.name.as_bytes())?;
                return self.out.write_all(b"\n");
            };
            self.scalar(field, value, level)?;
        }
        Ok(())
    }

    fn unknown(&mut self, number: u32, value: Value<'_>, level: usize) -> io::Result<()> {
        self.indent(level)?;
        self.decimal(number.into())?;
        self.out.write_all(b": ")?;
        match value {
            Value::Varint(value) => self.signed(value as i64)?,
            Value::Fixed32(value) => write!(self.out, "{value:#010x}")?,
            Value::Fixed64(value) => write!(self.out, "{value:#018x}")?,
            Value::Bytes(bytes) => self.string(bytes)?,
        }
        self.out.write_all(b"\n")
    }

    fn name(&mut self, name: &str, level: usize) -> io::Result<()> {
        self.indent(level)?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(b": ")
    }

    fn indent(&mut self, level: usize) -> io::Result<()> {
        const SPACES: &[u8] = &[b' '; 2 * 32];
        let mut spaces = level * 2;
        while spaces > 0 {
            let now = spaces.min(SPACES.len());
            self.out.write_all(&SPACES[..now])?;
            spaces -= now;
        }
        Ok(())
    }

    fn signed(&mut self, value: i64) -> io::Result<()> {
        if value < 0 {
            self.out.write_all(b"-")?;
        }
        self.decimal(value.unsigned_abs())
    }

    /// Prints a number. Most of a trace's text is numbers, and `write!` would take several times as long.
    fn decimal(&mut self, mut value: u64) -> io::Result<()> {
        let mut digits = [0; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return self.out.write_all(&digits[start..]);
            }
        }
    }

    fn string(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(b"\"")?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
            let (now, later) = rest.split_at(plain);
            self.out.write_all(now)?;
            rest = later;
            let Some((byte, later)) = rest.split_first() else {
                break;
            };
            rest = later;
            self.escape(*byte)?;
        }
        self.out.write_all(b"\"")
    }

    fn escape(&mut self, byte: u8) -> io::Result<()> {
        let letter = match byte {
            0x07 => b'a',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0b => b'v',
            0x0c => b'f',
            b'\r' => b'r',
            b'"' | b'\'' | b'\\' => byte,
            // There are always three digits, so that a digit after the escape is not read as part of it.
            _ => {
                let [high, middle, low] = [byte >> 6, byte >> 3 & 7, byte & 7].map(|digit| b'0' + digit);
                return self.out.write_all(&[b'\\', high, middle, low]);
            }
        };
        self.out.write_all(&[b'\\', letter])
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\'' | b'\\')
}

/// A value, converted to its field's type.
enum Scalar {
    Unsigned(u64),
    Signed(i64),
    Bool(bool),
    Double(f64),
    Float(f32),
    Enum(EnumId, i32),
}

impl Scalar {
    /// `None` if the field's type has another wire type.
    fn new(kind: Kind, value: Value<'_>) -> Option<Scalar> {
        Some(match (kind, value) {
            (Kind::Integer(integer), value) => return Scalar::integer(integer, value),
            (Kind::Bool, Value::Varint(value)) => Scalar::Bool(value != 0),
            (Kind::Enum(id), Value::Varint(value)) => Scalar::Enum(id, value as i32),
            (Kind::Double, Value::Fixed64(bits)) => Scalar::Double(f64::from_bits(bits)),
            (Kind::Float, Value::Fixed32(bits)) => Scalar::Float(f32::from_bits(bits)),
            _ => return None,
        })
    }

    fn integer(integer: Integer, value: Value<'_>) -> Option<Scalar> {
        let is_signed = integer.min < 0;
        let is_short = integer.max <= u32::MAX.into();
        Some(match (integer.encoding, value) {
            // Parsers drop the upper half of a varint that is too long.
            (Encoding::Varint, Value::Varint(value)) => match (is_signed, is_short) {
                (true, true) => Scalar::Signed((value as i32).into()),
                (true, false) => Scalar::Signed(value as i64),
                (false, true) => Scalar::Unsigned((value as u32).into()),
                (false, false) => Scalar::Unsigned(value),
            },
            (Encoding::Zigzag, Value::Varint(value)) if is_short => {
                Scalar::Signed((unzigzag(value as u32 as u64) as i32).into())
            }
            (Encoding::Zigzag, Value::Varint(value)) => Scalar::Signed(unzigzag(value)),
            (Encoding::Fixed32, Value::Fixed32(value)) if is_signed => Scalar::Signed((value as i32).into()),
            (Encoding::Fixed32, Value::Fixed32(value)) => Scalar::Unsigned(value.into()),
            (Encoding::Fixed64, Value::Fixed64(value)) if is_signed => Scalar::Signed(value as i64),
            (Encoding::Fixed64, Value::Fixed64(value)) => Scalar::Unsigned(value),
            _ => return None,
        })
    }
}

/// Takes the next value of a packed field off `bytes`. `None` if `bytes` does not begin with a value.
fn next_packed(kind: Kind, bytes: &mut &[u8]) -> Option<Value<'static>> {
    let encoding = match kind {
        Kind::Integer(integer) => integer.encoding,
        Kind::Bool | Kind::Enum(_) => Encoding::Varint,
        Kind::Double => Encoding::Fixed64,
        Kind::Float => Encoding::Fixed32,
        Kind::Text | Kind::Bytes | Kind::Message(_) => return None,
    };
    Some(match encoding {
        Encoding::Varint | Encoding::Zigzag => Value::Varint(take_varint(bytes)?),
        Encoding::Fixed32 => Value::Fixed32(u32::from_le_bytes(take_array(bytes)?)),
        Encoding::Fixed64 => Value::Fixed64(u64::from_le_bytes(take_array(bytes)?)),
    })
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

/// Prints with the usual digits if they are exact, or else with as many as the value needs.
fn floating<T>(value: T, out: &mut impl Write) -> io::Result<()>
where
    T: Copy + fmt::Display + fmt::Debug + FromStr<Err: PartialEq> + PartialEq,
{
    let usual = format!("{value:.6}");
    if usual == "NaN" {
        out.write_all(b"nan")
    } else if usual.parse() == Ok(value) {
        out.write_all(usual.as_bytes())
    } else {
        write!(out, "{value:?}")
    }
}
