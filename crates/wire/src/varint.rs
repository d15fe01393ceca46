//! Varints: their encoders and decoders, for all crates.
//!
//! A varint holds seven bits per byte, the lowest first; the top bit of a byte says that another byte follows. It may be padded: bytes without bits
//! at its end change nothing, up to ten bytes in all.
//!
//! Several encoders and decoders, for different places:
//! - [`encode_varint`] and [`push_varint`] are the plain encoders, based on `put_varint` (in this crate). `put_varint_without_loop` and
//!   [`short_varint`] do the same in steps that do not depend on the value.
//! - [`put_padded_varint`] fills a place of given size, for lengths that are written before they are known.
//! - [`decode_varint`] and [`take_varint`] refuse varints of more than 64 bits. [`decode_varint_wrapping`] cuts excess bits off, as upstream does:
//!   for bytes that upstream has to understand in the same way.
//! - [`load_varint`] and [`load_length`] are for loops that are hot: they decode the common cases from one load, and leave the others to the decoders
//!   above.

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

/// Encodes `value` into `buffer`, and returns the bytes that it took.
#[inline]
pub fn encode_varint(value: u64, buffer: &mut [u8; MAX_VARINT_LEN]) -> &[u8] {
    let start = buffer.as_mut_ptr();
    // SAFETY: the buffer holds the longest varint, and both pointers lie in it.
    let len = unsafe { put_varint(start, value).offset_from(start) } as usize;
    &buffer[..len]
}

/// Appends `value`.
#[inline]
pub fn push_varint(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(encode_varint(value, &mut [0; MAX_VARINT_LEN]));
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

/// As [`put_varint`], in a number of steps that does not depend on the value, except for very large values.
///
/// # Safety
/// `at` must be valid for writing [`MAX_VARINT_LEN`] bytes.
#[inline(always)]
pub(crate) unsafe fn put_varint_without_loop(at: *mut u8, value: u64) -> *mut u8 {
    // SAFETY: at most ten bytes are written.
    unsafe {
        if value < 0x80 {
            at.write(value as u8);
            return at.add(1);
        }
        if value < MAX_SHORT_VARINT as u64 {
            return put_short_varint(at, value as u32);
        }
        // Seven bits into each of eight bytes: first into two halves, then each half into two, and again.
        let halves = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
        let quarters = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
        let spread = quarters & 0x007f_007f_007f_007f | (quarters & 0x3f80_3f80_3f80_3f80) << 1;
        if value < 1 << 56 {
            let len = varint_len(value);
            // All bytes but the last say that another one follows.
            let more = 0x8080_8080_8080_8080 & !(u64::MAX << (8 * (len - 1)));
            at.cast::<[u8; 8]>()
                .write_unaligned((spread | more).to_le_bytes());
            return at.add(len);
        }
        at.cast::<[u8; 8]>()
            .write_unaligned((spread | 0x8080_8080_8080_8080).to_le_bytes());
        let rest = value >> 56;
        if rest < 0x80 {
            at.add(8).write(rest as u8);
            at.add(9)
        } else {
            at.add(8).write(rest as u8 | 0x80);
            at.add(9).write((rest >> 7) as u8);
            at.add(10)
        }
    }
}

/// As [`put_varint`], for a value below [`MAX_SHORT_VARINT`].
///
/// # Safety
/// `at` must be valid for writing four bytes.
#[inline(always)]
pub(crate) unsafe fn put_short_varint(at: *mut u8, value: u32) -> *mut u8 {
    let (bytes, len) = short_varint(value);
    // SAFETY: four bytes are written, of which one to four count.
    unsafe {
        at.cast::<[u8; 4]>().write_unaligned(bytes.to_le_bytes());
        at.add(len)
    }
}

/// [`short_varint`] takes values below this.
pub const MAX_SHORT_VARINT: u32 = 1 << 28;

/// A value below [`MAX_SHORT_VARINT`] as a varint, without branches: its bytes from the lowest on, and how many they are.
#[inline(always)]
pub fn short_varint(value: u32) -> (u32, usize) {
    /// For each length, the continuation bits of the bytes: of all but the last.
    const FOLLOWED: [u32; 4] = [0, 0x80, 0x8080, 0x80_8080];
    debug_assert!(value < MAX_SHORT_VARINT);
    let spread = value & 0x7f | (value & 0x3f80) << 1 | (value & 0x1f_c000) << 2 | (value & 0xfe0_0000) << 3;
    // One less than the length, at seven bits per byte.
    let last = usize::from(value >= 1 << 7) + usize::from(value >= 1 << 14) + usize::from(value >= 1 << 21);
    (spread | FOLLOWED[last & 3], last + 1)
}

/// Writes `value` as a varint that takes all of `place`, padded if it needs less; bits for which there is no room are cut off.
#[inline]
pub fn put_padded_varint(place: &mut [u8], mut value: u64) {
    let Some((last, others)) = place.split_last_mut() else {
        return;
    };
    for byte in others {
        *byte = value as u8 | 0x80;
        value >>= 7;
    }
    *last = value as u8 & 0x7f;
}

/// Why bytes do not begin with a varint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarintError {
    /// The bytes end before it does.
    Truncated,
    /// It has more than ten bytes, or more than 64 bits.
    Overlong,
}

/// The varint that `bytes` begin with, and how many of them it takes.
///
/// # Errors
/// The bytes do not begin with a varint of 64 bits.
#[inline(always)]
pub fn decode_varint(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    match decode_up_to_nine_bytes(bytes) {
        Ok(decoded) => Ok(decoded),
        // The tenth byte has room for the 64th bit alone.
        Err(value) => match bytes.get(MAX_VARINT_LEN - 1) {
            Some(last @ 0..=1) => Ok((value | u64::from(*last) << 63, MAX_VARINT_LEN)),
            Some(_) => Err(VarintError::Overlong),
            None => Err(VarintError::Truncated),
        },
    }
}

/// As [`decode_varint`], but bits beyond the 64th are cut off, as upstream does. `None` if the varint is cut off or longer than ten bytes.
#[inline(always)]
pub fn decode_varint_wrapping(bytes: &[u8]) -> Option<(u64, usize)> {
    match decode_up_to_nine_bytes(bytes) {
        Ok(decoded) => Some(decoded),
        Err(value) => match bytes.get(MAX_VARINT_LEN - 1) {
            Some(last @ 0..0x80) => Some((value | u64::from(*last) << 63, MAX_VARINT_LEN)),
            _ => None,
        },
    }
}

/// The varint and its size if it ends within nine bytes; else the bits of the first nine bytes, or of all bytes if they are fewer.
#[inline(always)]
fn decode_up_to_nine_bytes(bytes: &[u8]) -> Result<(u64, usize), u64> {
    match bytes.first() {
        Some(byte @ 0..0x80) => Ok((u64::from(*byte), 1)),
        _ => decode_two_to_nine_bytes(bytes),
    }
}

#[inline]
fn decode_two_to_nine_bytes(bytes: &[u8]) -> Result<(u64, usize), u64> {
    let mut value = 0;
    let mut len = 0;
    // An iterator over the first nine takes a tenth more instructions.
    while len < bytes.len() && len < MAX_VARINT_LEN - 1 {
        let byte = bytes[len];
        value |= u64::from(byte & 0x7f) << (7 * len);
        len += 1;
        if byte & 0x80 == 0 {
            return Ok((value, len));
        }
    }
    Err(value)
}

/// Takes a varint off the bytes; `None`, and nothing taken, if they do not begin with one. For packed fields; [`Reader`](crate::Reader) walks the
/// fields of a message.
#[inline]
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (value, len) = decode_varint(bytes).ok()?;
    *bytes = &bytes[len..];
    Some(value)
}

/// The varint that `bytes` begin with and its size, when it has one byte, or at most eight and as many bytes are there to be loaded at
/// once.
#[inline]
pub fn load_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let last_bytes = !word & 0x8080_8080_8080_8080;
    if last_bytes == 0 {
        return None;
    }
    let bits = last_bytes.trailing_zeros() + 1;
    let mut value = word & 0x7f7f_7f7f_7f7f_7f7f & (u64::MAX >> (64 - bits));
    // Close the gaps: 7 bits in 8 become 14 in 16, then 28 in 32, then 56.
    value = value & 0x007f_007f_007f_007f | (value & 0x7f00_7f00_7f00_7f00) >> 1;
    value = value & 0x0000_3fff_0000_3fff | (value & 0x3fff_0000_3fff_0000) >> 2;
    value = value & 0x0fff_ffff | (value & 0x0fff_ffff_0000_0000) >> 4;
    Some((value, bits as usize / 8))
}

/// The varint that `bytes` begin with and its size, when it is of the lengths there are in front of most packets: of one byte, of two,
/// and of two padded to four, as upstream's trace writers do that reserve four before they know the length. Four bytes must be there.
///
/// The length says where the next packet begins. So all four bytes are loaded at once, and the processor predicts how many count, instead of waiting
/// for the sum.
#[inline]
pub fn load_length(bytes: &[u8]) -> Option<(u64, usize)> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let two_bytes = u64::from(word & 0x7f | word >> 1 & 0x3f80);
    if word & 0x80 == 0 {
        Some((u64::from(word & 0x7f), 1))
    } else if word & 0xffff_8080 == 0x0080_8080 {
        Some((two_bytes, 4))
    } else if word & 0x8000 == 0 {
        Some((two_bytes, 2))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
