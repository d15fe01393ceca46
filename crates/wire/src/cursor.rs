//! Appends protobuf fields to a short window of memory, by value.
//!
//! For the hottest paths: a packet of some twenty bytes. A [`Writer`](crate::Writer) keeps its position in memory, where each field
//! loads and stores it; a cursor is handed from call to call, so that compilers keep it in registers. In exchange it cannot grow:
//! when something does not fit, or a length takes more than a byte, there is no cursor any more, and the caller does it over with
//! a `Writer`.

use crate::varint::{MAX_FIELD_NUMBER, MAX_VARINT_LEN, put_varint, varint_len};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

#[cfg(test)]
mod tests;

/// The most bytes that a tag takes.
const MAX_TAG_LEN: usize = 5;

/// The longest message that a nested one can be here: its length takes one byte.
pub const MAX_SHORT_LEN: usize = 0x7f;

/// A position in a window; see `Cursor::delimited`. The lifetime is that of the window, and no other cursor has it.
#[derive(Debug)]
pub struct Cursor<'w> {
    /// Valid for writing up to `end`.
    at: *mut u8,
    end: *mut u8,
    /// Neither longer nor shorter.
    window: PhantomData<fn(&'w ()) -> &'w ()>,
}

impl<'w> Cursor<'w> {
    /// Has `fill` write a message of up to [`MAX_SHORT_LEN`] bytes, behind its length, to the start of the window. Returns how
    /// many bytes that took; `None` if it did not fit, and what the window holds is garbage then.
    ///
    /// # Safety
    /// During the call `window` must be valid for writing `capacity` bytes, and nothing else in this process may access it. Another
    /// process may.
    #[inline(always)]
    pub unsafe fn delimited(
        window: NonNull<u8>,
        capacity: usize,
        fill: impl for<'a> FnOnce(Cursor<'a>) -> Option<Cursor<'a>>,
    ) -> Option<usize> {
        if capacity == 0 {
            return None;
        }
        let start = window.as_ptr();
        let capacity = capacity.min(1 + MAX_SHORT_LEN);
        // SAFETY: the window is valid for `capacity` bytes, which are at least one.
        let (at, end) = unsafe { (start.add(1), start.add(capacity)) };
        let filled = fill(Cursor {
            at,
            end,
            window: PhantomData,
        })?;
        // SAFETY: only a cursor of this window has its lifetime, and those never pass `end`. A byte was kept for the length, which
        // fits it because of the capacity.
        unsafe {
            let len = filled.at.offset_from(at) as usize;
            start.write(len as u8);
            Some(1 + len)
        }
    }

    /// Bytes that still fit.
    #[inline(always)]
    fn room(&self) -> usize {
        // SAFETY: both lie in the same window, or at its end.
        unsafe { self.end.offset_from(self.at) as usize }
    }

    /// # Safety
    /// `at` must lie in the window or at its end, and everything before it must be written.
    #[inline(always)]
    unsafe fn moved_to(self, at: *mut u8) -> Self {
        Self { at, ..self }
    }

    /// Appends the first `len` bytes of `bytes` by storing all of them: there must be room for that.
    ///
    /// # Panics
    /// If there are not that many.
    #[inline(always)]
    pub fn front_of<const N: usize>(self, bytes: &[u8; N], len: usize) -> Option<Self> {
        assert!(len <= N);
        if self.room() < N {
            return None;
        }
        // SAFETY: the window has room for `N` bytes; the write needs no alignment.
        unsafe {
            self.at.cast::<[u8; N]>().write_unaligned(*bytes);
            let at = self.at.add(len);
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `uint32`, `uint64`, `int32`, `int64`, `bool` or an enum, as
    /// [`Writer::varint_field`](crate::Writer::varint_field) does.
    #[inline(always)]
    pub fn varint_field(self, number: u32, value: u64) -> Option<Self> {
        if self.room() < MAX_TAG_LEN + MAX_VARINT_LEN {
            return None;
        }
        // SAFETY: the longest tag and the longest varint fit.
        unsafe {
            let at = put_tag(self.at, number, 0);
            let at = put_varint_without_loop(at, value);
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `fixed64`, `sfixed64` or (as its bits) `double`.
    #[inline(always)]
    pub fn fixed64_field(self, number: u32, value: u64) -> Option<Self> {
        if self.room() < MAX_TAG_LEN + 8 {
            return None;
        }
        // SAFETY: the longest tag and eight bytes fit; the write needs no alignment.
        unsafe {
            let at = put_tag(self.at, number, 1);
            at.cast::<[u8; 8]>().write_unaligned(value.to_le_bytes());
            let at = at.add(8);
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `bytes` or `string`.
    #[inline(always)]
    pub fn bytes_field(self, number: u32, bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_SHORT_LEN || self.room() < MAX_TAG_LEN + 1 + bytes.len() {
            return None;
        }
        // SAFETY: tag, length and bytes fit. `bytes` cannot overlap, for no reference is ever made to a window.
        unsafe {
            let at = put_tag(self.at, number, 2);
            at.write(bytes.len() as u8);
            let at = copy_short(bytes, at.add(1));
            Some(self.moved_to(at))
        }
    }

    /// Appends a message field whose contents `fill` writes.
    #[inline(always)]
    pub fn nested(self, number: u32, fill: impl FnOnce(Self) -> Option<Self>) -> Option<Self> {
        if self.room() < MAX_TAG_LEN + 1 {
            return None;
        }
        // SAFETY: the longest tag and one byte for the length fit.
        let length = unsafe { put_tag(self.at, number, 2) };
        // SAFETY: as before; the byte is written below.
        let filled = fill(unsafe { self.moved_to(length.add(1)) })?;
        // SAFETY: what `fill` returned is a cursor of this window, for it has its lifetime. Should it be one from before this field,
        // the length is garbage, but nothing is written outside. All of a window is no longer than fits a byte.
        unsafe { length.write(filled.at.offset_from(length.add(1)) as u8) };
        Some(filled)
    }

    /// Appends a message field that begins like this: `front` is stored as [`Cursor::front_of`] does, its byte at `length_at` is
    /// replaced by the length of what follows that byte, and `fill` writes the rest.
    ///
    /// # Panics
    /// If `length_at` does not lie before `len`, or `len` is too long.
    #[inline(always)]
    pub fn nested_with_front<const N: usize>(
        self,
        front: &[u8; N],
        len: usize,
        length_at: usize,
        fill: impl FnOnce(Self) -> Option<Self>,
    ) -> Option<Self> {
        assert!(length_at < len);
        let start = self.at;
        let filled = fill(self.front_of(front, len)?)?;
        // SAFETY: the byte is one of those that were just written, and lies before the end of what was filled.
        unsafe {
            let length = start.add(length_at);
            length.write(filled.at.offset_from(length.add(1)) as u8);
        }
        Some(filled)
    }
}

/// # Safety
/// `at` must be valid for writing [`MAX_TAG_LEN`] bytes.
#[inline(always)]
unsafe fn put_tag(at: *mut u8, number: u32, wire_type: u32) -> *mut u8 {
    debug_assert!((1..=MAX_FIELD_NUMBER).contains(&number));
    // SAFETY: a 32-bit value takes at most `MAX_TAG_LEN` bytes. Numbers are constants where this is called, and so is the loop's length.
    unsafe { put_varint(at, u64::from(number << 3 | wire_type)) }
}

/// As `put_varint`, in a number of steps that does not depend on the value, but for the very large.
///
/// # Safety
/// `at` must be valid for writing [`MAX_VARINT_LEN`] bytes.
#[inline(always)]
unsafe fn put_varint_without_loop(at: *mut u8, value: u64) -> *mut u8 {
    // SAFETY: at most ten bytes are written.
    unsafe {
        if value < 0x80 {
            at.write(value as u8);
            return at.add(1);
        }
        // Seven bits into each of eight bytes: first into two halves, then those into two each, and again.
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

/// Copies bytes, without a call if they are few. Returns the position behind them.
///
/// # Safety
/// `at` must be valid for writing the bytes' length, and not overlap them.
#[inline(always)]
unsafe fn copy_short(bytes: &[u8], at: *mut u8) -> *mut u8 {
    let len = bytes.len();
    let from = bytes.as_ptr();
    // SAFETY: each branch reads and writes within the first `len` bytes, some of them twice.
    unsafe {
        match len {
            8..=16 => copy_ends::<8>(from, at, len),
            4..=7 => copy_ends::<4>(from, at, len),
            2..=3 => copy_ends::<2>(from, at, len),
            0 => {}
            1 => at.write(from.read()),
            17..=32 => copy_ends::<16>(from, at, len),
            _ => ptr::copy_nonoverlapping(from, at, len),
        }
        at.add(len)
    }
}

/// Copies `len` bytes, which are `N` to twice as many, as the first and the last `N`.
///
/// # Safety
/// Both pointers must be valid for `len` bytes, and `len` be at least `N`.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(from: *const u8, at: *mut u8, len: usize) {
    // SAFETY: the caller vouches for both ends.
    unsafe {
        let first = from.cast::<[u8; N]>().read_unaligned();
        let last = from.add(len - N).cast::<[u8; N]>().read_unaligned();
        at.cast::<[u8; N]>().write_unaligned(first);
        at.add(len - N).cast::<[u8; N]>().write_unaligned(last);
    }
}
