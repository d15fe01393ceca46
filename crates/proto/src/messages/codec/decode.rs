//! The functions that generated messages call to decode fields, and the bounds that they enforce.
//!
//! Bytes come from other processes, so nesting is bounded ([`MAX_DEPTH`]), and so is the memory of elements and messages
//! ([`MAX_ELEMENT_MEMORY`]), which can take hundreds of times their bytes on the wire. Everything else takes about as much memory as
//! there are bytes.

use std::fmt;

use ferretto_wire::{Field, Reader, Value, WireError, take_varint};

use super::message::{Enums, Fields, Messages, UnknownFields};
use super::scalar::Scalar;

/// How deep messages may nest; protobuf's own limit.
pub const MAX_DEPTH: u32 = 100;

/// Bytes that the elements of repeated fields and the nested messages of one decoded message may take, without the memory that they
/// own.
pub const MAX_ELEMENT_MEMORY: usize = 32 << 20;

/// Why bytes do not decode as the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are no message at all.
    Malformed(WireError),
    /// A field's type differs from the schema's.
    WrongType {
        /// The field's number.
        field: u32,
    },
    /// A text is not UTF-8.
    NotUtf8 {
        /// The field's number.
        field: u32,
    },
    /// Messages nest deeper than [`MAX_DEPTH`].
    TooDeep,
    /// The message would take more memory than [`MAX_ELEMENT_MEMORY`].
    TooLarge,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Malformed(reason) => reason.fmt(f),
            DecodeError::WrongType { field } => {
                write!(f, "field {field} has another type than in the schema")
            }
            DecodeError::NotUtf8 { field } => write!(f, "the text in field {field} is not UTF-8"),
            DecodeError::TooDeep => write!(f, "messages are nested more than {MAX_DEPTH} deep"),
            DecodeError::TooLarge => write!(f, "its elements take more than {MAX_ELEMENT_MEMORY} bytes"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<WireError> for DecodeError {
    fn from(error: WireError) -> Self {
        DecodeError::Malformed(error)
    }
}

/// The remains of the bounds while a message is decoded.
#[derive(Debug)]
pub struct Decoder {
    depth: u32,
    memory: usize,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Decoder {
            depth: MAX_DEPTH,
            memory: MAX_ELEMENT_MEMORY,
        }
    }

    /// Merges the fields of an encoded message.
    #[inline(never)]
    pub(super) fn fields(&mut self, bytes: &[u8], message: &mut dyn Fields) -> Result<(), DecodeError> {
        self.depth = self.depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
        for field in Reader::new(bytes) {
            message.merge(&field?, self)?;
        }
        self.depth += 1;
        Ok(())
    }

    fn charge(&mut self, memory: usize) -> Result<(), DecodeError> {
        self.memory = self.memory.checked_sub(memory).ok_or(DecodeError::TooLarge)?;
        Ok(())
    }

    /// A message in a field that is set.
    ///
    /// # Errors
    /// If the field is no message, does not decode, or is nested too deep, or if there are more messages than memory is allowed for.
    #[inline(never)]
    pub fn nested(&mut self, field: &Field<'_>, message: &mut dyn Fields) -> Result<(), DecodeError> {
        self.charge(size_of_val(message))?;
        self.fields(contents(field)?, message)
    }

    /// A message, or one of many.
    ///
    /// # Errors
    /// As [`Self::nested`].
    #[inline(never)]
    pub fn messages(&mut self, field: &Field<'_>, to: &mut dyn Messages) -> Result<(), DecodeError> {
        self.nested(field, to.next())
    }

    /// One of many texts.
    ///
    /// # Errors
    /// If the field is no text, or if there are more than memory is allowed for.
    #[inline(never)]
    pub fn strings(&mut self, field: &Field<'_>, to: &mut Vec<String>) -> Result<(), DecodeError> {
        self.charge(size_of::<String>())?;
        to.push(text(field)?);
        Ok(())
    }

    /// One of many of bytes.
    ///
    /// # Errors
    /// If the field holds no bytes, or if there are more than memory is allowed for.
    #[inline(never)]
    pub(crate) fn bytes_list(&mut self, field: &Field<'_>, to: &mut Vec<Vec<u8>>) -> Result<(), DecodeError> {
        self.charge(size_of::<Vec<u8>>())?;
        to.push(contents(field)?.to_vec());
        Ok(())
    }
}

fn wrong_type(field: &Field<'_>) -> DecodeError {
    DecodeError::WrongType { field: field.number }
}

fn contents<'a>(field: &Field<'a>) -> Result<&'a [u8], DecodeError> {
    field.value.as_bytes().ok_or_else(|| wrong_type(field))
}

/// A scalar.
#[inline(never)]
pub(crate) fn scalar<S: Scalar>(field: &Field<'_>, to: &mut Option<S::Value>) -> Result<(), DecodeError> {
    *to = Some(S::take(field.value).ok_or_else(|| wrong_type(field))?);
    Ok(())
}

/// One or, packed, several of many scalars.
#[inline(never)]
pub(crate) fn scalars<S: Scalar>(field: &Field<'_>, to: &mut Vec<S::Value>) -> Result<(), DecodeError> {
    let Value::Bytes(mut packed) = field.value else {
        to.push(S::take(field.value).ok_or_else(|| wrong_type(field))?);
        return Ok(());
    };
    while !packed.is_empty() {
        to.push(S::take_packed(&mut packed).ok_or_else(|| wrong_type(field))?);
    }
    Ok(())
}

fn text(field: &Field<'_>) -> Result<String, DecodeError> {
    match str::from_utf8(contents(field)?) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(DecodeError::NotUtf8 { field: field.number }),
    }
}

/// A text.
#[inline(never)]
pub(crate) fn string(field: &Field<'_>, to: &mut Option<String>) -> Result<(), DecodeError> {
    *to = Some(text(field)?);
    Ok(())
}

/// Bytes.
#[inline(never)]
pub(crate) fn bytes(field: &Field<'_>, to: &mut Option<Vec<u8>>) -> Result<(), DecodeError> {
    *to = Some(contents(field)?.to_vec());
    Ok(())
}

/// A value of an enum. An unknown value goes to `unknown`.
#[inline(never)]
pub(crate) fn enums(
    field: &Field<'_>,
    to: &mut dyn Enums,
    unknown: &mut UnknownFields,
) -> Result<(), DecodeError> {
    let number = field.value.as_varint().ok_or_else(|| wrong_type(field))?;
    if !to.take(number as i32) {
        unknown.push(field);
    }
    Ok(())
}

/// One or, packed, several values of a repeated enum. Unknown values go to `unknown`.
#[inline(never)]
pub(crate) fn enums_packed(
    field: &Field<'_>,
    to: &mut dyn Enums,
    unknown: &mut UnknownFields,
) -> Result<(), DecodeError> {
    let Value::Bytes(mut packed) = field.value else {
        return enums(field, to, unknown);
    };
    while !packed.is_empty() {
        let number = take_varint(&mut packed).ok_or_else(|| wrong_type(field))?;
        if !to.take(number as i32) {
            unknown.push_varint(field.number, number);
        }
    }
    Ok(())
}
