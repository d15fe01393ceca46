//! What generated messages call to append their fields. Fields that are not set append nothing.

use ferretto_wire::Writer;

use super::message::{Enumeration, Fields, MessageField, UnknownFields};
use super::scalar::Scalar;

/// A scalar.
#[inline(never)]
pub(crate) fn scalar<S: Scalar>(writer: &mut Writer, number: u32, value: &Option<S::Value>) {
    if let Some(value) = value {
        S::put(writer, number, *value);
    }
}

/// Scalars, each with its tag.
#[inline(never)]
pub(crate) fn scalars<S: Scalar>(writer: &mut Writer, number: u32, values: &[S::Value]) {
    values.iter().for_each(|value| S::put(writer, number, *value));
}

/// Scalars, packed.
#[inline(never)]
pub(crate) fn packed<S: Scalar>(writer: &mut Writer, number: u32, values: &[S::Value]) {
    if !values.is_empty() {
        writer.nested(number, |writer| {
            values.iter().for_each(|value| S::put_packed(writer, *value));
        });
    }
}

/// A value of an enum.
#[inline(never)]
pub(crate) fn enumeration<E: Enumeration>(writer: &mut Writer, number: u32, value: &Option<E>) {
    if let Some(value) = value {
        writer.varint_field(number, i64::from(value.to_i32()) as u64);
    }
}

/// Values of an enum, each with its tag.
#[inline(never)]
pub(crate) fn enumerations<E: Enumeration>(writer: &mut Writer, number: u32, values: &[E]) {
    values
        .iter()
        .for_each(|value| enumeration(writer, number, &Some(*value)));
}

/// A text.
#[inline(never)]
pub(crate) fn string(writer: &mut Writer, number: u32, value: &Option<String>) {
    if let Some(value) = value {
        contents(writer, number, value.as_bytes());
    }
}

/// Texts.
#[inline(never)]
pub(crate) fn strings(writer: &mut Writer, number: u32, values: &[String]) {
    values
        .iter()
        .for_each(|value| contents(writer, number, value.as_bytes()));
}

/// Text or bytes that are there.
#[inline(never)]
pub(crate) fn contents(writer: &mut Writer, number: u32, value: &[u8]) {
    writer.bytes_field(number, value);
}

/// Bytes.
#[inline(never)]
pub(crate) fn bytes(writer: &mut Writer, number: u32, value: &Option<Vec<u8>>) {
    if let Some(value) = value {
        contents(writer, number, value);
    }
}

/// Several of bytes.
#[inline(never)]
pub(crate) fn bytes_list(writer: &mut Writer, number: u32, values: &[Vec<u8>]) {
    values.iter().for_each(|value| contents(writer, number, value));
}

/// A message that is there.
#[inline(never)]
pub(crate) fn nested(writer: &mut Writer, number: u32, value: &dyn Fields) {
    writer.nested(number, |writer| value.write(writer));
}

/// A message.
#[inline(never)]
pub(crate) fn message<T: Fields>(writer: &mut Writer, number: u32, value: &MessageField<T>) {
    if let Some(value) = value.as_option() {
        nested(writer, number, value);
    }
}

/// Messages.
#[inline(never)]
pub(crate) fn messages<T: Fields>(writer: &mut Writer, number: u32, values: &[T]) {
    for value in values {
        nested(writer, number, value);
    }
}

/// What the schema does not know.
#[inline(never)]
pub(crate) fn unknown(writer: &mut Writer, fields: &UnknownFields) {
    writer.raw(fields.as_bytes());
}
