//! Walks the fields of one encoded message, whatever its bytes.
//!
//! Used wherever messages of other processes are looked into without decoding them whole: validation, filtering,
//! copying fields byte for byte. It never allocates, never recurses (a nested message is [`Value::Bytes`], to be given
//! to another reader) and stops at the first error.

use crate::tag::{MAX_FIELD_NUMBER, WireType, field_number, wire_type};
use crate::varint::{VarintError, decode_varint, load_varint};
use std::fmt;
use std::iter::FusedIterator;

#[cfg(test)]
mod tests;

/// The value of a field, by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// `int32`, `int64`, `uint32`, `uint64`, `sint32`, `sint64`, `bool`, an enum.
    Varint(u64),
    /// `fixed32`, `sfixed32`, `float`.
    Fixed32(u32),
    /// `fixed64`, `sfixed64`, `double`.
    Fixed64(u64),
    /// `bytes`, `string`, a message, or a packed repeated field.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The number of a varint.
    #[inline]
    pub fn as_varint(self) -> Option<u64> {
        match self {
            Value::Varint(value) => Some(value),
            _ => None,
        }
    }

    /// The contents of a length-delimited field.
    #[inline]
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// 1 to [`MAX_FIELD_NUMBER`].
    pub number: u32,
    /// The field's value.
    pub value: Value<'a>,
    /// The field as it was encoded, tag and length included, so that it can be copied byte for byte.
    pub raw: &'a [u8],
}

/// Why bytes are not a message. Positions are byte offsets from the start of the [`Reader`]'s bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes end inside the field that begins at `position`.
    Truncated {
        /// Where the field begins.
        position: usize,
    },
    /// A varint of the field has more than ten bytes or more than 64 bits.
    OverlongVarint {
        /// Where the field begins.
        position: usize,
    },
    /// The field's number is 0 or above [`MAX_FIELD_NUMBER`].
    InvalidFieldNumber {
        /// Where the field begins.
        position: usize,
        /// The number.
        number: u64,
    },
    /// The field is a group, or of a wire type that does not exist.
    UnsupportedWireType {
        /// Where the field begins.
        position: usize,
        /// 3 or 4 (groups), 6 or 7 (unassigned).
        wire_type: u8,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Truncated { position } => {
                write!(f, "message ends inside the field that begins at byte {position}")
            }
            WireError::OverlongVarint { position } => {
                write!(f, "field at byte {position} holds a varint of more than 64 bits")
            }
            WireError::InvalidFieldNumber { position, number } => {
                write!(
                    f,
                    "field at byte {position} has number {number}, outside 1..={MAX_FIELD_NUMBER}"
                )
            }
            WireError::UnsupportedWireType {
                position,
                wire_type: wire_type @ (3 | 4),
            } => {
                write!(
                    f,
                    "field at byte {position} is a group (wire type {wire_type}), which no message here has"
                )
            }
            WireError::UnsupportedWireType { position, wire_type } => {
                write!(
                    f,
                    "field at byte {position} has wire type {wire_type}, which does not exist"
                )
            }
        }
    }
}

impl std::error::Error for WireError {}

/// Iterates over the fields of a message; ends after the first error. Never allocates and never recurses: a nested message
/// is [`Value::Bytes`], to be given to another reader.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    /// What is not read yet.
    rest: &'a [u8],
    /// The bytes of the whole message.
    len: usize,
    failed: bool,
}

impl<'a> Reader<'a> {
    /// Reads the fields of the message encoded in `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            len: bytes.len(),
            failed: false,
        }
    }

    /// Offset of the next field; of the field that is wrong after an error.
    #[inline]
    pub fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Everything from [`Reader::position`] on.
    #[inline]
    pub fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// The next field; `None` at the end, and from the first error on. For loops that are hot: this is always compiled into its caller, where the fields
    /// that it has no use for cost little.
    #[inline(always)]
    pub fn next_field(&mut self) -> Option<Field<'a>> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let field = self.read_field();
        self.failed = field.is_err();
        field.ok()
    }

    #[inline(always)]
    fn read_field(&mut self) -> Result<Field<'a>, WireError> {
        let mut cursor = Cursor {
            field: Reader::position(self),
            rest: self.rest,
        };
        let tag = cursor.varint()?;
        let number = field_number(tag);
        if number == 0 || number > u64::from(MAX_FIELD_NUMBER) {
            let position = cursor.field;
            return Err(WireError::InvalidFieldNumber { position, number });
        }
        let value = match wire_type(tag) {
            Ok(WireType::Varint) => Value::Varint(cursor.varint()?),
            Ok(WireType::Fixed64) => Value::Fixed64(u64::from_le_bytes(cursor.array()?)),
            Ok(WireType::Bytes) => {
                let len = cursor.varint()?;
                Value::Bytes(cursor.take(len)?)
            }
            Ok(WireType::Fixed32) => Value::Fixed32(u32::from_le_bytes(cursor.array()?)),
            Err(wire_type) => {
                let position = cursor.field;
                return Err(WireError::UnsupportedWireType { position, wire_type });
            }
        };
        // This cannot panic, so the compiler drops it where the caller does not use `raw`.
        let raw = self.rest.get(..self.rest.len() - cursor.rest.len());
        self.rest = cursor.rest;
        Ok(Field {
            number: number as u32,
            value,
            raw: raw.unwrap_or_default(),
        })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let field = self.read_field();
        self.failed = field.is_err();
        Some(field)
    }
}

impl FusedIterator for Reader<'_> {}

/// The remaining bytes while one field is read.
struct Cursor<'a> {
    /// Where that field begins, for errors.
    field: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Most varints have one byte.
    #[inline(always)]
    fn varint(&mut self) -> Result<u64, WireError> {
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let (value, len) = long_varint(self.rest);
        match self.rest.get(len..) {
            Some(rest) if len > 0 => {
                self.rest = rest;
                Ok(value)
            }
            _ => Err(self.no_varint()),
        }
    }

    #[cold]
    fn no_varint(&self) -> WireError {
        let position = self.field;
        match decode_varint(self.rest) {
            Err(VarintError::Overlong) => WireError::OverlongVarint { position },
            Err(VarintError::Truncated) | Ok(_) => WireError::Truncated { position },
        }
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(WireError::Truncated { position: self.field })?;
        self.rest = rest;
        Ok(*array)
    }

    #[inline(always)]
    fn take(&mut self, len: u64) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len))
            .ok_or(WireError::Truncated { position: self.field })?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// The varint that `bytes` begin with, and its size; 0 if they do not begin with one. A function of its own, so that the loops that read fields stay small;
/// both numbers come back in registers.
#[inline(never)]
fn long_varint(bytes: &[u8]) -> (u64, usize) {
    load_varint(bytes)
        .or_else(|| decode_varint(bytes).ok())
        .unwrap_or_default()
}
