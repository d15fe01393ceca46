//! The scalar types of the schema: how each is stored in a struct and on the wire.

use ferretto_wire::{Value, Writer, take_varint, unzigzag, zigzag};

/// A scalar type.
pub(crate) trait Scalar {
    /// The type in a struct.
    type Value: Copy + std::fmt::Debug;

    /// Appends a field.
    fn put(writer: &mut Writer, number: u32, value: Self::Value);

    /// Appends an element of a packed field.
    fn put_packed(writer: &mut Writer, value: Self::Value);

    /// The value, if it has the scalar's wire type.
    fn take(value: Value<'_>) -> Option<Self::Value>;

    /// Takes an element off the bytes of a packed field; `None` if they are not such elements.
    fn take_packed(bytes: &mut &[u8]) -> Option<Self::Value>;
}

macro_rules! varints {
    ($($name:ident: $type:ty, $encode:expr, $decode:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[derive(Debug)]
        #[allow(dead_code, reason = "which of the scalar types there are fields of depends on the features")]
        pub(crate) struct $name;

        impl Scalar for $name {
            type Value = $type;

            fn put(writer: &mut Writer, number: u32, value: $type) {
                let encode: fn($type) -> u64 = $encode;
                writer.varint_field(number, encode(value));
            }

            fn put_packed(writer: &mut Writer, value: $type) {
                let encode: fn($type) -> u64 = $encode;
                writer.varint(encode(value));
            }

            fn take(value: Value<'_>) -> Option<$type> {
                let decode: fn(u64) -> $type = $decode;
                value.as_varint().map(decode)
            }

            fn take_packed(bytes: &mut &[u8]) -> Option<$type> {
                let decode: fn(u64) -> $type = $decode;
                take_varint(bytes).map(decode)
            }
        }
    )*};
}

macro_rules! fixed {
    ($($name:ident: $type:ty, $put:ident, $wire:ident, $encode:expr, $decode:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[derive(Debug)]
        #[allow(dead_code, reason = "which of the scalar types there are fields of depends on the features")]
        pub(crate) struct $name;

        impl Scalar for $name {
            type Value = $type;

            fn put(writer: &mut Writer, number: u32, value: $type) {
                writer.$put(number, $encode(value));
            }

            fn put_packed(writer: &mut Writer, value: $type) {
                writer.raw(&value.to_le_bytes());
            }

            fn take(value: Value<'_>) -> Option<$type> {
                match value {
                    Value::$wire(bits) => Some($decode(bits)),
                    _ => None,
                }
            }

            fn take_packed(bytes: &mut &[u8]) -> Option<$type> {
                let (value, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$type>::from_le_bytes(*value))
            }
        }
    )*};
}

// If a varint is too large for its type, its lowest bits count.
varints! {
    Int32: i32, |value| i64::from(value) as u64, |bits| bits as i32;
    Int64: i64, |value| value as u64, |bits| bits as i64;
    Uint32: u32, u64::from, |bits| bits as u32;
    Uint64: u64, |value| value, |bits| bits;
    Sint32: i32, |value| zigzag(value.into()), |bits| unzigzag(bits & u64::from(u32::MAX)) as i32;
    Sint64: i64, zigzag, unzigzag;
    Bool: bool, u64::from, |bits| bits != 0;
}

fixed! {
    Fixed32: u32, fixed32_field, Fixed32, u32::from, u32::from;
    Sfixed32: i32, fixed32_field, Fixed32, i32::cast_unsigned, u32::cast_signed;
    Float: f32, fixed32_field, Fixed32, f32::to_bits, f32::from_bits;
    Fixed64: u64, fixed64_field, Fixed64, u64::from, u64::from;
    Sfixed64: i64, fixed64_field, Fixed64, i64::cast_unsigned, u64::cast_signed;
    Double: f64, fixed64_field, Fixed64, f64::to_bits, f64::from_bits;
}
