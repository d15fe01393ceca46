//! Messages at random, by their descriptors, for tests that compare with an independent implementation.

use proptest::prelude::ProptestConfig;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

/// A small generator of numbers, so that one seed stands for one message.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit as u64) as usize
    }

    /// Small numbers and extremes more often than the rest.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.roll() % 256,
            1 => u64::MAX - self.roll() % 2,
            2 => 1 << self.below(64),
            _ => self.roll(),
        }
    }

    fn float(&mut self) -> f64 {
        let float = f64::from_bits(self.roll());
        match self.below(4) {
            0 => f64::INFINITY,
            1 => f64::from(self.roll() as i8) / 4.0,
            _ if float.is_nan() => 0.0,
            _ => float,
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.below(12)).map(|_| self.roll() as u8).collect()
    }

    fn text(&mut self) -> String {
        const LETTERS: [char; 14] = [
            'a', 'Z', '0', '"', '\'', '\\', '\n', '\t', '\0', '\u{7f}', 'é', '😀', '#', '/',
        ];
        (0..self.below(12))
            .map(|_| LETTERS[self.below(LETTERS.len())])
            .collect()
    }

    fn value(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        match field.kind() {
            Kind::Double => Value::F64(self.float()),
            Kind::Float => Value::F32(self.float() as f32),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.number() as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.number() as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.number() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.number()),
            Kind::Bool => Value::Bool(self.below(2) == 0),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes(self.bytes().into()),
            Kind::Message(descriptor) => Value::Message(self.message(&descriptor, depth + 1)),
            Kind::Enum(descriptor) => {
                let values: Vec<_> = descriptor.values().collect();
                Value::EnumNumber(values[self.below(values.len())].number())
            }
        }
    }

    pub(crate) fn message(&mut self, descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        let fields: Vec<_> = descriptor.fields().collect();
        if fields.is_empty() || depth > 6 {
            return message;
        }
        for _ in 0..self.below(6) {
            let field = &fields[self.below(fields.len())];
            if field.is_list() {
                let values = (0..1 + self.below(3)).map(|_| self.value(field, depth)).collect();
                message.set_field(field, Value::List(values));
            } else {
                let value = self.value(field, depth);
                message.set_field(field, value);
            }
        }
        message
    }
}

/// A failing seed is printed, and not written into the source tree.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
