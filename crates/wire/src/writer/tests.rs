//! The writer against an encoder that pushes byte by byte, on the heap and over regions of every size.

use super::{Finished, Writer};
use crate::zigzag;
use proptest::prelude::*;
use std::ptr::NonNull;

#[derive(Clone, Debug)]
enum Node {
    Varint(u32, u64),
    Fixed32(u32, u32),
    Fixed64(u32, u64),
    Bytes(u32, Vec<u8>),
    Packed(u32, Vec<u64>),
    Nested(u32, Vec<Node>),
}

fn naive_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = (value % 128) as u8;
        value /= 128;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte + 128);
    }
}

fn naive_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    naive_varint(out, u64::from(number) * 8 + 2);
    naive_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn naive(nodes: &[Node]) -> Vec<u8> {
    let mut out = Vec::new();
    for node in nodes {
        match node {
            Node::Varint(number, value) => {
                naive_varint(&mut out, u64::from(*number) * 8);
                naive_varint(&mut out, *value);
            }
            Node::Fixed32(number, value) => {
                naive_varint(&mut out, u64::from(*number) * 8 + 5);
                out.extend(value.to_le_bytes());
            }
            Node::Fixed64(number, value) => {
                naive_varint(&mut out, u64::from(*number) * 8 + 1);
                out.extend(value.to_le_bytes());
            }
            Node::Bytes(number, bytes) => naive_bytes(&mut out, *number, bytes),
            Node::Packed(_, values) if values.is_empty() => {}
            Node::Packed(number, values) => {
                let mut packed = Vec::new();
                values.iter().for_each(|value| naive_varint(&mut packed, *value));
                naive_bytes(&mut out, *number, &packed);
            }
            Node::Nested(number, children) => naive_bytes(&mut out, *number, &naive(children)),
        }
    }
    out
}

fn write(writer: &mut Writer, nodes: &[Node]) {
    for node in nodes {
        match node {
            Node::Varint(number, value) => writer.varint_field(*number, *value),
            Node::Fixed32(number, value) => writer.fixed32_field(*number, *value),
            Node::Fixed64(number, value) => writer.fixed64_field(*number, *value),
            Node::Bytes(number, bytes) => writer.bytes_field(*number, bytes),
            Node::Packed(number, values) => writer.packed_field(*number, values.iter().copied()),
            Node::Nested(number, children) => writer.nested(*number, |writer| write(writer, children)),
        }
    }
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![1u32..16, 1u32..3000, 1u32..=crate::MAX_FIELD_NUMBER]
}

fn value() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let leaf = prop_oneof![
        (number(), value()).prop_map(|(number, value)| Node::Varint(number, value)),
        (number(), any::<u32>()).prop_map(|(number, value)| Node::Fixed32(number, value)),
        (number(), any::<u64>()).prop_map(|(number, value)| Node::Fixed64(number, value)),
        (number(), prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(|(number, bytes)| Node::Bytes(number, bytes)),
        (number(), prop::collection::vec(value(), 0..40))
            .prop_map(|(number, values)| Node::Packed(number, values)),
    ];
    let node = leaf.prop_recursive(4, 60, 8, |inner| {
        (number(), prop::collection::vec(inner, 0..8)).prop_map(|(number, nodes)| Node::Nested(number, nodes))
    });
    prop::collection::vec(node, 0..12)
}

/// A region with guard bytes on both sides, so that a write outside it shows.
struct Guarded {
    memory: Vec<u8>,
    capacity: usize,
}

const GUARD: usize = 32;

impl Guarded {
    fn new(capacity: usize) -> Self {
        Self {
            memory: vec![0xa5; capacity + 2 * GUARD],
            capacity,
        }
    }

    fn write(&mut self, writer: &mut Writer, nodes: &[Node]) -> (&'static str, Vec<u8>) {
        let region = NonNull::new(self.memory[GUARD..].as_mut_ptr()).unwrap();
        // SAFETY: the region is part of `memory`, which nothing else touches before `finish`.
        unsafe { writer.start_in_region(region, self.capacity) };
        write(writer, nodes);
        let len = writer.len();
        let (place, bytes) = match writer.finish() {
            Finished::InPlace(len) => ("in place", self.memory[GUARD..GUARD + len].to_vec()),
            Finished::Spilled(bytes) => ("spilled", bytes.to_vec()),
        };
        assert_eq!(bytes.len(), len);
        let guards = [&self.memory[..GUARD], &self.memory[GUARD + self.capacity..]].concat();
        assert!(
            guards.iter().all(|byte| *byte == 0xa5),
            "wrote outside the region"
        );
        (place, bytes)
    }
}

proptest! {
    #[test]
    fn heap_writer_equals_the_naive_encoder(first in nodes(), second in nodes()) {
        let mut writer = Writer::new();
        write(&mut writer, &first);
        prop_assert_eq!(writer.as_slice(), naive(&first));
        writer.clear();
        write(&mut writer, &second);
        prop_assert_eq!(writer.as_slice(), naive(&second));
        prop_assert_eq!(writer.finish(), Finished::Spilled(&naive(&second)));
        prop_assert!(writer.is_empty());
    }

    #[test]
    fn a_region_of_any_size_gives_the_same_bytes(nodes in nodes(), capacity in 0usize..3000) {
        let expected = naive(&nodes);
        let mut writer = Writer::new();
        let mut region = Guarded::new(capacity);
        let (place, bytes) = region.write(&mut writer, &nodes);
        prop_assert_eq!(&bytes, &expected);
        if expected.len() > capacity {
            prop_assert_eq!(place, "spilled");
        }
        if expected.len() + 16 <= capacity {
            prop_assert_eq!(place, "in place");
        }
        // The writer is as new for the next message, whatever became of this one.
        prop_assert_eq!(region.write(&mut writer, &nodes), (place, expected));
    }
}

#[test]
fn nested_lengths_take_as_few_bytes_as_they_can() {
    for (len, header) in [
        (0, 2),
        (127, 2),
        (128, 3),
        (16_383, 3),
        (16_384, 4),
        (2_097_151, 4),
        (2_097_152, 5),
    ] {
        let mut writer = Writer::new();
        writer.nested(1, |writer| writer.raw(&vec![7; len]));
        assert_eq!(writer.len(), len + header, "message of {len} bytes");
    }
}

#[test]
fn sint_fields_are_zigzagged() {
    let mut writer = Writer::with_capacity(64);
    writer.varint_field(1, zigzag(-1));
    writer.varint_field(1, zigzag(1));
    assert_eq!(writer.as_slice(), [8, 1, 8, 2]);
}

#[test]
fn truncating_inside_nested_drops_the_field_itself() {
    let mut writer = Writer::new();
    writer.varint_field(1, 1);
    let before = writer.len();
    writer.nested(2, |writer| {
        writer.varint_field(1, 5);
        writer.truncate(before);
    });
    assert_eq!(writer.as_slice(), [8, 1]);
}

#[test]
#[should_panic(expected = "cannot be borrowed")]
fn bytes_in_a_region_cannot_be_borrowed() {
    let mut memory = [0u8; 64];
    let mut writer = Writer::new();
    // SAFETY: `memory` outlives the writer's use of it.
    unsafe { writer.start_in_region(NonNull::new(memory.as_mut_ptr()).unwrap(), 64) };
    writer.varint_field(1, 1);
    let _ = writer.as_slice();
}
