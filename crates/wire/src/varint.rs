//! Variable-length integers and field numbers: what writer and reader share.
//!
//! A varint holds seven bits a byte, the lowest first; the top bit of a byte says that another one follows.

/// The largest field number that a tag can hold.
pub const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

/// The most bytes that a 64-bit varint takes.
pub const MAX_VARINT_LEN: usize = 10;

/// Maps a signed value to an unsigned one so that small magnitudes stay small (`sint32`, `sint64`).
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// How many bytes `value` takes as a varint: 1 to 10.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    // Seven bits a byte; `| 1` because zero takes a byte too.
    ((63 - (value | 1).leading_zeros()) / 7 + 1) as usize
}

/// Takes a varint off the bytes; `None`, and nothing taken, if they do not begin with one. For what is packed; the fields of a
/// message are walked by [`Reader`](crate::Reader).
#[inline]
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate() {
        // The tenth byte has room for the 64th bit alone.
        if index == 9 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Writes `value` at `at` and returns the position behind it.
///
/// # Safety
/// `at` must be valid for writing [`MAX_VARINT_LEN`] bytes, or [`varint_len`]`(value)` when the caller knows the value.
#[inline(always)]
pub(crate) unsafe fn put_varint(mut at: *mut u8, mut value: u64) -> *mut u8 {
    // SAFETY: each round writes one of the `varint_len(value)` bytes that the caller vouches for.
    unsafe {
        while value >= 0x80 {
            at.write(value as u8 | 0x80);
            at = at.add(1);
            value >>= 7;
        }
        at.write(value as u8);
        at.add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zigzag_round_trips_and_keeps_small_magnitudes_small(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
            prop_assert!(zigzag(value) / 2 <= value.unsigned_abs());
        }

        #[test]
        fn varint_len_is_what_put_varint_writes(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut buffer = [0u8; MAX_VARINT_LEN];
            let start = buffer.as_mut_ptr();
            // SAFETY: the buffer holds the longest varint.
            let end = unsafe { put_varint(start, value) };
            prop_assert_eq!(end as usize - start as usize, varint_len(value));
            let mut rest = &buffer[..varint_len(value)];
            prop_assert_eq!(take_varint(&mut rest), Some(value));
            prop_assert!(rest.is_empty());
            let mut cut = &buffer[..varint_len(value) - 1];
            prop_assert_eq!((take_varint(&mut cut), cut.len()), (None, varint_len(value) - 1));
        }
    }
}
