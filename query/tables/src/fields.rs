//! Reads single fields of encoded messages, as protobuf's decoders do: the last of several counts, and what is damaged ends the message.
//!
//! The tokenizer and the trackers use it, with the field numbers of `ferretto_proto::write`.

use ferretto_wire::{Field, Reader, Value, take_varint};

/// Walks the fields of a message up to its end or to the first damage.
#[inline(always)]
pub(crate) fn fields(message: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let mut reader = Reader::new(message);
    std::iter::from_fn(move || reader.next_field())
}

/// Returns the number in a field, however it is encoded.
#[inline]
pub(crate) fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Varint(value) | Value::Fixed64(value) => Some(value),
        Value::Fixed32(value) => Some(value.into()),
        Value::Bytes(_) => None,
    }
}

/// Returns the last number with this field number.
pub(crate) fn number_of(message: &[u8], field: u32) -> Option<u64> {
    fields(message)
        .filter(|it| it.number == field)
        .filter_map(|it| number(it.value))
        .last()
}

/// Returns the last bytes with this field number.
pub(crate) fn bytes_of(message: &[u8], field: u32) -> Option<&[u8]> {
    fields(message)
        .filter(|it| it.number == field)
        .filter_map(|it| it.value.as_bytes())
        .last()
}

/// Returns all bytes with this field number.
pub(crate) fn all_bytes(message: &[u8], field: u32) -> impl Iterator<Item = &[u8]> {
    fields(message)
        .filter(move |it| it.number == field)
        .filter_map(|it| it.value.as_bytes())
}

/// Calls `visit` with each number of a repeated field, packed or not.
pub(crate) fn each_varint(value: Value<'_>, mut visit: impl FnMut(u64)) {
    match value {
        Value::Bytes(mut packed) => {
            while let Some(number) = take_varint(&mut packed) {
                visit(number);
            }
        }
        other => {
            if let Some(number) = number(other) {
                visit(number);
            }
        }
    }
}
