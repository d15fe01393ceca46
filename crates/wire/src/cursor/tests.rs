//! The cursor against the writer.

use super::{Cursor, MAX_SHORT_LEN, ShortMessage};
use crate::{MAX_SHORT_VARINT, Writer};
use proptest::prelude::*;
use std::ptr::NonNull;

#[derive(Clone, Debug)]
enum Field {
    Varint(u32, u64),
    ShortVarint(u32, u32),
    Fixed64(u32, u64),
    Bytes(u32, Vec<u8>),
    WithFront(Vec<u8>, Vec<Field>),
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let number = prop_oneof![1u32..16, 16u32..100, 1000u32..10_000];
    let leaf = prop_oneof![
        (number.clone(), any::<u64>(), 0u32..64)
            .prop_map(|(number, value, shift)| Field::Varint(number, value >> shift)),
        (number.clone(), 0..MAX_SHORT_VARINT, 0u32..28)
            .prop_map(|(number, value, shift)| Field::ShortVarint(number, value >> shift)),
        (number.clone(), any::<u64>()).prop_map(|(number, value)| Field::Fixed64(number, value)),
        (number.clone(), prop::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(number, bytes)| Field::Bytes(number, bytes)),
    ];
    let field = leaf.prop_recursive(3, 12, 4, |inner| {
        let inner = prop::collection::vec(inner, 0..4);
        (prop::collection::vec(any::<u8>(), 0..8), inner)
            .prop_map(|(front, fields)| Field::WithFront(front, fields))
    });
    prop::collection::vec(field, 0..6)
}

fn put<'w>(cursor: Cursor<'w>, fields: &[Field]) -> Option<Cursor<'w>> {
    fields.iter().try_fold(cursor, |cursor, field| match field {
        Field::Varint(number, value) => cursor.varint_field(*number, *value),
        Field::ShortVarint(number, value) => cursor.short_varint_field(*number, *value),
        Field::Fixed64(number, value) => cursor.fixed64_field(*number, *value),
        Field::Bytes(number, bytes) => cursor.bytes_field(*number, bytes),
        Field::WithFront(front, fields) => {
            let mut bytes = [0xee; 16];
            // Field 1, and a length.
            bytes[..2].copy_from_slice(&[0x0a, 0]);
            bytes[2..][..front.len()].copy_from_slice(front);
            let (cursor, length) = cursor.nested_with_front(&bytes, 2 + front.len(), 1)?;
            Some(put(cursor, fields)?.end_nested(length))
        }
    })
}

impl ShortMessage for &[Field] {
    fn put<'w>(self, cursor: Cursor<'w>) -> Option<Cursor<'w>> {
        put(cursor, self)
    }
}

fn write(writer: &mut Writer, fields: &[Field]) {
    for field in fields {
        match field {
            Field::Varint(number, value) => writer.varint_field(*number, *value),
            Field::ShortVarint(number, value) => writer.varint_field(*number, u64::from(*value)),
            Field::Fixed64(number, value) => writer.fixed64_field(*number, *value),
            Field::Bytes(number, bytes) => writer.bytes_field(*number, bytes),
            Field::WithFront(front, fields) => writer.nested(1, |writer| {
                writer.raw(front);
                write(writer, fields);
            }),
        }
    }
}

proptest! {
    #[test]
    fn messages_that_fit_equal_the_writers_and_nothing_is_written_outside(
        fields in fields(),
        capacity in 0usize..200,
    ) {
        let mut expected = Writer::new();
        expected.delimited(|writer| write(writer, &fields));
        let mut memory = vec![0xaa; capacity + 32];
        let window = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the window lies in the vector, which is not touched meanwhile.
        let len = unsafe { Cursor::delimited(window, capacity, &fields[..]) };
        match len {
            Some(len) => prop_assert_eq!(&memory[..len], expected.as_slice()),
            // Space is checked for the longest encodings.
            None => prop_assert!(expected.len() + 16 > capacity.min(1 + MAX_SHORT_LEN)),
        }
        prop_assert!(memory[capacity..].iter().all(|byte| *byte == 0xaa));
    }
}
