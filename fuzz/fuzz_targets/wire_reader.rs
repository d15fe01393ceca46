//! `Reader` on arbitrary bytes: its fields tile the bytes up to the first error, each survives being written again,
//! and a naive reader finds the same.

#![no_main]

use ferretto_fuzz::{TagWidth, naive_fields};
use ferretto_wire::{Reader, Value, WireError, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| read(data, 0));

fn read(data: &[u8], depth: usize) {
    let mut reader = Reader::new(data);
    let mut at = 0;
    let mut numbers = Vec::new();
    let mut written = Writer::new();
    let mut values = Vec::new();
    while let Some(field) = reader.next() {
        let field = match field {
            Ok(field) => field,
            Err(error) => {
                let (WireError::Truncated { position }
                | WireError::OverlongVarint { position }
                | WireError::InvalidFieldNumber { position, .. }
                | WireError::UnsupportedWireType { position, .. }) = error;
                assert_eq!((position, reader.position()), (at, at));
                assert_eq!(reader.remaining(), &data[at..]);
                assert!(!error.to_string().is_empty());
                assert!(reader.next().is_none(), "a field after an error");
                break;
            }
        };
        assert_eq!(field.raw, &data[at..at + field.raw.len()]);
        at += field.raw.len();
        assert_eq!(reader.position(), at);
        match field.value {
            Value::Varint(value) => written.varint_field(field.number, value),
            Value::Fixed32(value) => written.fixed32_field(field.number, value),
            Value::Fixed64(value) => written.fixed64_field(field.number, value),
            Value::Bytes(bytes) => {
                if depth == 0 {
                    written.bytes_field(field.number, bytes);
                } else {
                    written.nested(field.number, |nested| nested.raw(bytes));
                }
                if depth < 8 {
                    read(bytes, depth + 1);
                }
            }
        }
        numbers.push(u64::from(field.number));
        values.push((field.number, field.value));
    }
    assert!(written.len() <= at, "what is written again is never longer");
    let again = Reader::new(written.as_slice()).map(|field| field.expect("our own encoding"));
    assert!(again.map(|field| (field.number, field.value)).eq(values));
    let naive = naive_fields(&data[..at], TagWidth::Bits64).expect("whole fields");
    assert!(naive.iter().map(|field| field.number).eq(numbers));
}
