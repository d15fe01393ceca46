//! Tags: the varint in front of each field, made of the field's number and of how its value is encoded.

use crate::varint::put_varint;

/// The largest field number that a tag can hold.
pub const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

/// The most bytes that a tag takes: 29 bits of field number and three of wire type.
pub(crate) const MAX_TAG_LEN: usize = 5;

/// How the value of a field is encoded. Groups are missing: no message of Perfetto has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireType {
    /// A varint.
    Varint = 0,
    /// Eight bytes, the lowest first.
    Fixed64 = 1,
    /// A length as a varint, and that many bytes: text, a message, a packed repeated field.
    Bytes = 2,
    /// Four bytes, the lowest first.
    Fixed32 = 5,
}

/// The tag of a field, to be encoded as a varint. The number must lie in 1..=[`MAX_FIELD_NUMBER`], which debug builds check.
#[inline(always)]
pub const fn tag(number: u32, wire_type: WireType) -> u32 {
    debug_assert!(number != 0 && number <= MAX_FIELD_NUMBER);
    number << 3 | wire_type as u32
}

/// The field number in a tag, which may be one that no field can have.
#[inline(always)]
pub const fn field_number(tag: u64) -> u64 {
    tag >> 3
}

/// Returns the wire type in a tag; the bits themselves if they are those of a group (3, 4) or of no type (6, 7). Match on the result at once:
/// compilers then make one jump of both matches.
///
/// # Errors
/// If the bits are those of a group or of no type.
#[inline(always)]
pub const fn wire_type(tag: u64) -> Result<WireType, u8> {
    match tag as u8 & 7 {
        0 => Ok(WireType::Varint),
        1 => Ok(WireType::Fixed64),
        2 => Ok(WireType::Bytes),
        5 => Ok(WireType::Fixed32),
        other => Err(other),
    }
}

/// Writes a tag at `at` and returns the position behind it.
///
/// # Safety
/// `at` must be valid for writing [`MAX_TAG_LEN`] bytes.
#[inline(always)]
pub(crate) unsafe fn put_tag(at: *mut u8, number: u32, wire_type: WireType) -> *mut u8 {
    // SAFETY: a 32-bit value takes at most `MAX_TAG_LEN` bytes. If the number is a constant, the loop's length is constant too.
    unsafe { put_varint(at, u64::from(tag(number, wire_type))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_apart_as_they_were_put_together() {
        for number in [1, 15, 16, 2047, MAX_FIELD_NUMBER] {
            for kind in [
                WireType::Varint,
                WireType::Fixed64,
                WireType::Bytes,
                WireType::Fixed32,
            ] {
                let tag = u64::from(tag(number, kind));
                assert_eq!(tag, u64::from(number) * 8 + kind as u64);
                assert_eq!((field_number(tag), wire_type(tag)), (number.into(), Ok(kind)));
            }
        }
    }

    #[test]
    fn invalid_wire_types_are_returned_as_they_are() {
        for bits in [3, 4, 6, 7] {
            assert_eq!(wire_type(8 + bits), Err(bits as u8));
        }
        assert_eq!(field_number(2), 0);
        assert_eq!(field_number(u64::MAX), u64::MAX >> 3);
    }
}
