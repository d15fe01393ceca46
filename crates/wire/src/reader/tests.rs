//! The reader on the output of the writer, and on bytes that no writer should have made.

use super::{Field, Reader, Value, WireError};
use crate::{MAX_FIELD_NUMBER, Writer};
use proptest::prelude::*;

fn only_error(bytes: &[u8]) -> WireError {
    let mut reader = Reader::new(bytes);
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(reader.next(), None, "a reader ends after its first error");
    error
}

#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(Vec<u8>),
}

fn fields() -> impl Strategy<Value = Vec<(u32, Owned)>> {
    let value = prop_oneof![
        (any::<u64>(), 0u32..64).prop_map(|(value, shift)| Owned::Varint(value >> shift)),
        any::<u32>().prop_map(Owned::Fixed32),
        any::<u64>().prop_map(Owned::Fixed64),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Owned::Bytes),
    ];
    prop::collection::vec((1u32..=MAX_FIELD_NUMBER, value), 0..20)
}

fn encode(fields: &[(u32, Owned)]) -> Writer {
    let mut writer = Writer::new();
    for (number, value) in fields {
        match value {
            Owned::Varint(value) => writer.varint_field(*number, *value),
            Owned::Fixed32(value) => writer.fixed32_field(*number, *value),
            Owned::Fixed64(value) => writer.fixed64_field(*number, *value),
            Owned::Bytes(bytes) => writer.bytes_field(*number, bytes),
        }
    }
    writer
}

fn owned(field: Field<'_>) -> (u32, Owned) {
    let value = match field.value {
        Value::Varint(value) => Owned::Varint(value),
        Value::Fixed32(value) => Owned::Fixed32(value),
        Value::Fixed64(value) => Owned::Fixed64(value),
        Value::Bytes(bytes) => Owned::Bytes(bytes.to_vec()),
    };
    (field.number, value)
}

proptest! {
    #[test]
    fn reads_back_the_writers_fields(fields in fields()) {
        let writer = encode(&fields);
        let read: Result<Vec<_>, _> = Reader::new(writer.as_slice()).map(|field| field.map(owned)).collect();
        prop_assert_eq!(read.unwrap(), fields);
    }

    #[test]
    fn raw_fields_in_a_row_are_the_message(fields in fields()) {
        let writer = encode(&fields);
        let mut copy: Vec<u8> = Vec::new();
        let mut reader = Reader::new(writer.as_slice());
        while let Some(field) = reader.next() {
            copy.extend(field.unwrap().raw);
            prop_assert_eq!(copy.len(), reader.position());
            prop_assert_eq!(reader.remaining(), &writer.as_slice()[copy.len()..]);
        }
        prop_assert_eq!(copy, writer.as_slice());
    }

    #[test]
    fn a_cut_message_gives_its_whole_fields_then_an_error(fields in fields(), cut: prop::sample::Index) {
        let writer = encode(&fields);
        let bytes = &writer.as_slice()[..cut.index(writer.len() + 1)];
        let mut end = 0;
        for field in Reader::new(bytes) {
            match field {
                Ok(field) => end += field.raw.len(),
                Err(error) => {
                    prop_assert_eq!(error, WireError::Truncated { position: end });
                    end = bytes.len();
                }
            }
        }
        prop_assert_eq!(end, bytes.len());
    }

    #[test]
    fn any_bytes_give_fields_or_one_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut covered = 0;
        for field in Reader::new(&bytes) {
            match field {
                Ok(field) => {
                    prop_assert_eq!(field.raw, &bytes[covered..covered + field.raw.len()]);
                    prop_assert!(field.number >= 1 && field.number <= MAX_FIELD_NUMBER);
                    covered += field.raw.len();
                }
                Err(_) => covered = bytes.len(),
            }
        }
        prop_assert_eq!(covered, bytes.len());
    }
}

#[test]
fn field_numbers_outside_the_range_are_refused() {
    assert_eq!(
        only_error(&[0x00, 1]),
        WireError::InvalidFieldNumber {
            position: 0,
            number: 0
        }
    );
    // Tag of field 2^29: one more than a tag can mean.
    let mut writer = Writer::new();
    writer.varint(1 << 32);
    assert_eq!(
        only_error(writer.as_slice()),
        WireError::InvalidFieldNumber {
            position: 0,
            number: 1 << 29
        }
    );
}

#[test]
fn groups_and_unassigned_wire_types_are_refused() {
    for wire_type in [3, 4, 6, 7] {
        assert_eq!(
            only_error(&[1 << 3 | wire_type, 0]),
            WireError::UnsupportedWireType {
                position: 0,
                wire_type
            }
        );
    }
}

#[test]
fn varints_beyond_64_bits_are_refused() {
    let overlong = WireError::OverlongVarint { position: 0 };
    let mut ten_bytes = vec![8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    assert_eq!(only_error(&ten_bytes), overlong);
    ten_bytes[10] = 0x81;
    ten_bytes.push(0);
    assert_eq!(only_error(&ten_bytes), overlong);
    assert_eq!(only_error(&[0xff; 30]), overlong);
}

#[test]
fn padded_varints_are_fine() {
    // Upstream writes lengths that it patches later as four bytes, whatever their value.
    let field = Reader::new(&[0x0a, 0x81, 0x80, 0x80, 0x00, 7])
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(field.value, Value::Bytes(&[7]));
    assert_eq!(field.value.as_bytes(), Some(&[7u8][..]));
    assert_eq!(field.value.as_varint(), None);
}

#[test]
fn a_length_beyond_the_end_is_refused_without_looking_there() {
    let mut writer = Writer::new();
    writer.varint_field(1, 1);
    writer.varint(2 << 3 | 2);
    writer.varint(u64::MAX);
    let mut reader = Reader::new(writer.as_slice());
    assert_eq!(reader.next().unwrap().unwrap().value.as_varint(), Some(1));
    assert_eq!(reader.next(), Some(Err(WireError::Truncated { position: 2 })));
    assert_eq!(reader.position(), 2);
}
