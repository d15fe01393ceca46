//! Appends protobuf fields to a short window of memory, by value.
//!
//! For the hottest paths: a packet of some twenty bytes. A [`Writer`](crate::Writer) keeps its position in memory, where each field
//! loads and stores it; a cursor is handed from call to call, so that compilers keep it in registers. In exchange it cannot grow:
//! when something does not fit, or a length takes more than a byte, there is no cursor any more, and the caller does it over with
//! a `Writer`.

use crate::tag::{MAX_TAG_LEN, WireType, put_tag};
use crate::varint::{MAX_VARINT_LEN, put_short_varint, put_varint_without_loop};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

#[cfg(test)]
mod tests;

/// The room that is required before each field, whatever its size: one comparison for all. The longest tag and varint take fifteen bytes.
const FIELD_ROOM: usize = 16;

/// The longest message that a nested one can be here: its length takes one byte.
pub const MAX_SHORT_LEN: usize = 0x7f;

/// A position in a window; see `Cursor::delimited`. The lifetime is that of the window, and no other cursor has it.
#[derive(Debug)]
pub struct Cursor<'w> {
    /// Valid for writing [`FIELD_ROOM`] bytes more than there are up to `limit`.
    at: *mut u8,
    limit: *mut u8,
    /// Makes the lifetime invariant.
    window: PhantomData<fn(&'w ()) -> &'w ()>,
}

/// A message that writes itself with a cursor. Not a closure, because closures are not always inlined.
pub trait ShortMessage {
    /// Appends its fields; `None` if they do not fit.
    fn put<'w>(self, cursor: Cursor<'w>) -> Option<Cursor<'w>>;
}

/// The place of a nested message's length: see [`Cursor::nested_with_front`].
#[derive(Debug)]
#[must_use = "the length is written by `Cursor::end_nested`"]
pub struct NestedLength<'w> {
    /// In the window, and written.
    at: *mut u8,
    window: PhantomData<fn(&'w ()) -> &'w ()>,
}

impl<'w> Cursor<'w> {
    /// Has a message of up to [`MAX_SHORT_LEN`] bytes write itself, behind its length, to the start of the window. Returns how many bytes that took;
    /// `None` if it did not fit, and then the window holds garbage.
    ///
    /// # Safety
    /// During the call `window` must be valid for writing `capacity` bytes, and nothing else in this process may access it. Another
    /// process may.
    #[inline(always)]
    pub unsafe fn delimited(
        window: NonNull<u8>,
        capacity: usize,
        message: impl ShortMessage,
    ) -> Option<usize> {
        let capacity = capacity.min(1 + MAX_SHORT_LEN);
        if capacity < 1 + FIELD_ROOM {
            return None;
        }
        let start = window.as_ptr();
        // SAFETY: the window is valid for `capacity` bytes, which are no fewer than these.
        let (at, limit) = unsafe { (start.add(1), start.add(capacity - FIELD_ROOM)) };
        let filled = message.put(Cursor {
            at,
            limit,
            window: PhantomData,
        })?;
        // SAFETY: only a cursor of this window has its lifetime, and such a cursor never passes the window's end. A byte was kept for the length,
        // which fits it because of the capacity.
        unsafe {
            let len = filled.at.offset_from(at) as usize;
            start.write(len as u8);
            Some(1 + len)
        }
    }

    /// Whether [`FIELD_ROOM`] bytes fit, and `more` beyond.
    #[inline(always)]
    fn has_room(&self, more: usize) -> bool {
        let has_some = self.at <= self.limit;
        // SAFETY: both lie in the same window, in this order.
        has_some && (more == 0 || more <= unsafe { self.limit.offset_from(self.at) as usize })
    }

    /// # Safety
    /// `at` must lie in the window or at its end, and everything before it must be written.
    #[inline(always)]
    unsafe fn moved_to(self, at: *mut u8) -> Self {
        Self { at, ..self }
    }

    /// Appends the first `len` bytes of `bytes`, or all if there are fewer, by storing all of them: there must be room for that.
    #[inline(always)]
    pub fn front_of<const N: usize>(self, bytes: &[u8; N], len: usize) -> Option<Self> {
        if !self.has_room(N.saturating_sub(FIELD_ROOM)) {
            return None;
        }
        // SAFETY: the window has room for `N` bytes; the write needs no alignment.
        unsafe {
            self.at.cast::<[u8; N]>().write_unaligned(*bytes);
            let at = self.at.add(len.min(N));
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `uint32`, `uint64`, `int32`, `int64`, `bool` or an enum, as
    /// [`Writer::varint_field`](crate::Writer::varint_field) does.
    #[inline(always)]
    pub fn varint_field(self, number: u32, value: u64) -> Option<Self> {
        const { assert!(MAX_TAG_LEN + MAX_VARINT_LEN <= FIELD_ROOM) };
        if !self.has_room(0) {
            return None;
        }
        // SAFETY: the longest tag and the longest varint fit.
        unsafe {
            let at = put_tag(self.at, number, WireType::Varint);
            let at = put_varint_without_loop(at, value);
            Some(self.moved_to(at))
        }
    }

    /// As [`Cursor::varint_field`], for values below [`MAX_SHORT_VARINT`](crate::MAX_SHORT_VARINT), without a branch.
    #[inline(always)]
    pub fn short_varint_field(self, number: u32, value: u32) -> Option<Self> {
        if !self.has_room(0) {
            return None;
        }
        // SAFETY: the longest tag and four bytes fit.
        unsafe {
            let at = put_tag(self.at, number, WireType::Varint);
            let at = put_short_varint(at, value);
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `fixed64`, `sfixed64` or (as its bits) `double`.
    #[inline(always)]
    pub fn fixed64_field(self, number: u32, value: u64) -> Option<Self> {
        if !self.has_room(0) {
            return None;
        }
        // SAFETY: the longest tag and eight bytes fit; the write needs no alignment.
        unsafe {
            let at = put_tag(self.at, number, WireType::Fixed64);
            at.cast::<[u8; 8]>().write_unaligned(value.to_le_bytes());
            let at = at.add(8);
            Some(self.moved_to(at))
        }
    }

    /// Appends a field of type `bytes` or `string`.
    #[inline(always)]
    pub fn bytes_field(self, number: u32, bytes: &[u8]) -> Option<Self> {
        if !self.has_room(bytes.len()) {
            return None;
        }
        // SAFETY: tag, length and bytes fit, so that the length fits a byte. `bytes` cannot overlap, because no reference is ever made to a window.
        unsafe {
            let at = put_tag(self.at, number, WireType::Bytes);
            at.write(bytes.len() as u8);
            let at = copy_short(bytes, at.add(1));
            Some(self.moved_to(at))
        }
    }

    /// Begins a message field, as `front` does: its first `len` bytes are stored as by [`Cursor::front_of`]. The byte at `length_at` becomes the
    /// length of all bytes after it, up to [`Cursor::end_nested`].
    ///
    /// # Panics
    /// If `front` is no longer than `length_at`.
    #[inline(always)]
    pub fn nested_with_front<const N: usize>(
        self,
        front: &[u8; N],
        len: usize,
        length_at: usize,
    ) -> Option<(Self, NestedLength<'w>)> {
        assert!(length_at < N);
        let start = self.at;
        let cursor = self.front_of(front, len)?;
        let length = NestedLength {
            // SAFETY: `front_of` has stored `N` bytes at `start`, and `length_at` is below `N`.
            at: unsafe { start.add(length_at) },
            window: PhantomData,
        };
        Some((cursor, length))
    }

    /// Ends a message field here.
    #[inline(always)]
    pub fn end_nested(self, length: NestedLength<'w>) -> Self {
        // SAFETY: the byte lies in the window of this cursor, which has the same lifetime, and was written. If the cursor is one from before this
        // field, the length is garbage, but nothing is written outside. The length of a whole window fits a byte.
        unsafe {
            length.at.write(self.at.offset_from(length.at.add(1)) as u8);
        }
        self
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
